// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/linear.h>
#include <meshfuse/ops/matmul.h>

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

namespace meshfuse {
namespace {

constexpr size_t kInput = 0, kWeight = 1, kBias = 2;

const IterDomain* lastAxis(const TensorView* tv) {
  const auto logical = tv->domain().withoutReductions(tv->domain().logical());
  return tv->domain().id(logical.back());
}

/// `t` without its leading axes, which stand for devices and have local size 1.
at::Tensor dropDeviceAxes(const at::Tensor& t, int64_t ndim, const OpCall& call, size_t param) {
  at::Tensor out = t;
  while (out.dim() > ndim) {
    MESHFUSE_CHECK(out.size(0) == 1, "linear: ", at(call.tensor(param)), " has local shape ",
                   t.sizes(), "; axes before the last ", ndim,
                   " must be device axes, with one element per device. Parallelize them on the "
                   "mesh, or use matmul for a batch of weights.");
    out = out.select(0, 0);
  }
  return out;
}

}  // namespace

OpInfo LinearOp::info() const {
  return {.name = "linear",
          .params = {tensor("arg1"), tensor("arg2"), optTensor("bias")},
          .doc = "x @ weight.T + bias; weight is [N, K], with device axes in front if any."};
}

FactorMap LinearOp::factors(const OpCall& call) const {
  const TensorView *x = call.tensor(kInput), *w = call.tensor(kWeight);
  const TensorView* bias = call.has(kBias) ? call.tensor(kBias) : nullptr;
  MESHFUSE_CHECK(x->ndim() > 0, "linear: Input A must be at least 1D, but ", at(x),
                 " has no axes. Give an input whose last axis is K.");
  const bool vector = w->ndim() == 1 && (bias == nullptr || bias->ndim() == 0);
  MESHFUSE_CHECK(w->ndim() >= 2 || vector, "linear: Input B must be at least 2D, but ", at(w),
                 " has ", w->ndim(), " axes. Give a weight of shape [N, K].");
  MESHFUSE_CHECK(bias == nullptr || bias->ndim() >= 1 || vector,
                 "linear: Input bias must be at least 1D, but ", at(bias),
                 " has no axes. Give a bias of shape [N].");
  MESHFUSE_CHECK(x->dtype() == w->dtype(),
                 "linear: Expected input and weight dtypes to have the same dtype, but ", at(x),
                 " is ", x->dtype(), " and ", w->name(), " is ", w->dtype(), ". Cast one of them.");
  MESHFUSE_CHECK(bias == nullptr || bias->dtype() == x->dtype(),
                 "linear: Expected bias to have the same dtype as A and B, but ", at(bias), " is ",
                 bias == nullptr ? x->dtype() : bias->dtype(), " and ", x->name(), " is ",
                 x->dtype(), ". Cast the bias.");
  const auto isOne = [](const IterDomain* id) {
    return id->isBroadcast() && !id->expandedExtent();
  };
  MESHFUSE_CHECK(isOne(lastAxis(x)) == isOne(lastAxis(w)),
                 "linear: K should be broadcast in both A and B, or neither. The last axes of ",
                 at(x), " and ", w->name(), " differ in that. Declare both sizes alike.");
  // Letters for the device axes in front of the weight.
  std::string devices;
  for (int64_t i = 2; i < w->ndim(); ++i) devices += static_cast<char>('A' + (i - 2));
  const std::string n = vector ? "" : "n";
  std::string formula = "...k," + devices + n + "k";
  if (bias != nullptr) {
    const int64_t own = std::max<int64_t>(bias->ndim() - 1, 0);
    MESHFUSE_CHECK(own == 0 || std::cmp_equal(own, devices.size()), "linear: ", at(bias), " has ",
                   bias->ndim(), " axes for a weight of ", w->ndim(),
                   ". Give a bias of shape [N], or with the same device axes as the weight.");
    formula += "," + (own > 0 ? devices : "") + n;
  }
  return einsum(call, formula + "->" + devices + "..." + n);
}

std::vector<int> LinearOp::referenceOrder(const OpCall& call) const {
  if (call.has(kBias)) return {1, 2, 0};
  return {1, 0};
}

std::vector<TensorView*> LinearOp::withoutAddends(const OpCall& call) const {
  if (!call.has(kBias)) return {};
  MESHFUSE_CHECK(call.ndim(kBias) <= 1, "linear: the products of ", at(call.tensor(kInput)),
                 " are divided over devices, and bias ", call.tensor(kBias)->name(),
                 " has device axes, so that it cannot be added behind. Shard K elsewhere, or add "
                 "the bias to the result.");
  const auto one = [&](std::string_view op, std::vector<Arg> args) {
    return std::get<TensorView*>(callOp(call.fusion(), *findOp(op), std::move(args))[0]);
  };
  TensorView* product = one("linear", {call.tensor(kInput), call.tensor(kWeight), Arg{}});
  TensorView* whole = one("add", {product, call.tensor(kBias)});
  if (whole->dtype() != product->dtype()) whole = one("cast", {whole, product->dtype()});
  return {product, whole};
}

void LinearOp::evaluate(const OpCall& call, const Operands& io) const {
  const at::Tensor& x = io[0];
  const bool has_bias = io.size() > 2;
  const at::Tensor none;
  if (call.ndim(kWeight) == 1) {
    io.out() = has_bias ? at::add(at::matmul(x, io[1]), io[2]) : at::matmul(x, io[1]);
    return;
  }
  if (call.ndim(kWeight) == 2) {
    const Layout& want = call.want(0);
    // torch's linear writes row-major. Where another order is wanted, the product is computed in
    // that order and the bias is added in place, except for 16-bit types, which that would round
    // twice.
    const bool in_place =
        !want.strides.empty() && want.strides.back() != 1 && x.dim() > 1 &&
        (!has_bias || x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
    if (!in_place) {
      io.out() = at::linear(x, io[1], has_bias ? io[2] : none);
      return;
    }
    io.out() = matmulInLayout(x, io[1].t(), want);
    if (has_bias) io.out().add_(io[2]);
    return;
  }
  const at::Tensor w = dropDeviceAxes(io[1], 2, call, kWeight);
  io.out() = at::linear(x, w, has_bias ? dropDeviceAxes(io[2], 1, call, kBias) : none);
}

MESHFUSE_REGISTER_OP(LinearOp);

}  // namespace meshfuse
