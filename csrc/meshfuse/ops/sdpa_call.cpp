// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/sdpa_call.h>

namespace meshfuse {
namespace {

bool isStaticOne(const IterDomain* id) { return id->isBroadcast() && !id->expandedExtent(); }

const IterDomain* axisOf(const TensorView* tv, int64_t axis) {
  const auto logical = tv->domain().withoutReductions(tv->domain().logical());
  return tv->domain().id(logical[static_cast<size_t>(axis)]);
}

bool isReal(DataType type) { return isFloating(type) || isIntegral(type); }

}  // namespace

void checkSettings(const OpCall& call, const SettingParams& params) {
  const std::string& op = call.op().name();
  const TensorView* first = call.tensors().at(0);
  const auto type = [&](size_t p) { return call.fusion().scalars().dtype(call.scalar(p)); };
  MESHFUSE_CHECK(!call.has(params.dropout_p) || isReal(type(params.dropout_p)), op,
                 ": Expected dropout to be a real-valued scalar. In the call on ", at(first),
                 " dropout_p is ", type(params.dropout_p), ". Give a number from 0 to 1.");
  MESHFUSE_CHECK(!call.has(params.is_causal) || type(params.is_causal) == DataType::Bool, op,
                 ": Expected is_causal to be a scalar boolean. In the call on ", at(first),
                 " it is ", type(params.is_causal), ". Give True or False.");
  MESHFUSE_CHECK(!call.has(params.scale) || isReal(type(params.scale)), op,
                 ": Expected scale to be a real-valued scalar. In the call on ", at(first),
                 " it is ", type(params.scale), ". Give a number, or leave it out.");
}

AttentionSettings settingsOf(const OpCall& call, const SettingParams& params) {
  AttentionSettings settings;
  if (call.has(params.dropout_p)) settings.dropout_p = toDouble(call.value(params.dropout_p));
  if (call.has(params.is_causal)) settings.is_causal = toInt(call.value(params.is_causal)) != 0;
  if (call.has(params.scale)) settings.scale = toDouble(call.value(params.scale));
  MESHFUSE_CHECK(settings.dropout_p >= 0 && settings.dropout_p <= 1, call.op().name(),
                 ": dropout_p is ", settings.dropout_p, " in the call on ",
                 at(call.tensors().at(0)), ". Give a probability, from 0 to 1.");
  return settings;
}

void checkSameLeading(const OpCall& call, const TensorView* like, const TensorView* tv,
                      int64_t count) {
  const ScalarPool& pool = call.fusion().scalars();
  for (int64_t axis = 0; axis < count; ++axis) {
    const IterDomain *a = axisOf(like, axis), *b = axisOf(tv, axis);
    const auto size_a = pool.constInt(a->getMaybeExpandedExtent());
    const auto size_b = pool.constInt(b->getMaybeExpandedExtent());
    const auto text = [](std::optional<int64_t> size) {
      return size ? std::to_string(*size) : "of any number";
    };
    const bool differ = size_a && size_b ? *size_a != *size_b : isStaticOne(a) != isStaticOne(b);
    MESHFUSE_CHECK(!differ, call.op().name(), ": axis ", AtAxis{axis}, " of ", at(like),
                   " has size ", text(size_a), " but axis ", axis, " of ", tv->name(), " has size ",
                   text(size_b), "; ", axis + 3 == like->ndim() ? "heads" : "batches",
                   " do not broadcast. Expand or repeat one of them.");
  }
}

void checkAttentionOperands(const OpCall& call, const TensorView* query, const TensorView* key,
                            const TensorView* value) {
  const std::string& op = call.op().name();
  const int64_t n = query->ndim();
  MESHFUSE_CHECK(n == 4 || n == 5, op, ": Expect Q/K/V to be either 4D or 5D, but ", at(query),
                 " has ", n,
                 " axes. Give [batch, heads, sequence, head size], with one axis for devices in "
                 "front at most.");
  MESHFUSE_CHECK(isFloating(query->dtype()), op, ": Q/K/V must have one floating point type, but ",
                 at(query), " is ", query->dtype(), ". Cast it to a floating point type.");
  for (const TensorView* tv : {key, value}) {
    MESHFUSE_CHECK(tv->ndim() == n, op, ": Expect Q/K/V to be either 4D or 5D, all alike, but ",
                   at(tv), " has ", tv->ndim(), " axes and ", query->name(), " has ", n,
                   ". Give [batch, heads, sequence, head size], with one axis for devices in "
                   "front at most.");
    MESHFUSE_CHECK(tv->dtype() == query->dtype(), op,
                   ": Q/K/V must have one floating point type, but ", at(tv), " is ", tv->dtype(),
                   " and ", query->name(), " is ", query->dtype(), ". Cast them to one type.");
  }
  checkSameLeading(call, query, key, n - 2);
  checkSameLeading(call, query, value, n - 2);
}

at::Tensor foldLeading(const at::Tensor& t, int64_t kept) {
  return t.dim() > kept + 1 ? t.flatten(0, t.dim() - kept - 1) : t;
}

at::Tensor unfoldLeading(const at::Tensor& t, const at::Tensor& like) {
  return like.dim() == 5 ? t.unflatten(0, {like.size(0), like.size(1)}) : t;
}

}  // namespace meshfuse
