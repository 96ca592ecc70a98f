// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/eval/expression_evaluator.h>
#include <meshfuse/ops/torch_types.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// Says which tensor a message is about; text only where there is a message.
struct Described {
  const TensorView* tv;
  int64_t position;
};
std::ostream& operator<<(std::ostream& out, const Described& d) {
  if (d.position < 0) return out << "tensor " << toString(d.tv);
  return out << "input " << d.position << ", " << toString(d.tv);
}

/// "global size 10 over 4 devices" for messages about an axis.
std::string shardingText(const TensorView* tv, int64_t axis) {
  std::string text;
  for (const ParallelType p : kDeviceTypes) {
    if (getShardedLogicalAxis(tv, p) != axis) continue;
    text += concat(text.empty() ? " split over " : " and ", tv->getDeviceMesh().size(p),
                   " devices of ", p);
  }
  return text;
}

bool dtypeFits(DataType declared, DataType given) {
  if (declared == DataType::Index) return given == DataType::Int || given == DataType::Int32;
  return declared == given;
}

}  // namespace

std::optional<ScalarValue> ExpressionEvaluator::evaluateValue(Scalar s) const {
  const ScalarPool& pool = fusion_->scalars();
  const ScalarNode& node = pool.node(s);
  if (node.op == ScalarOp::Const) return node.value;
  const auto id = static_cast<size_t>(s.id);
  if (id < values_.size() && values_[id]) return values_[id];
  if (node.op == ScalarOp::Symbol) return std::nullopt;
  const auto a = evaluateValue(node.a);
  const auto b = node.b ? evaluateValue(node.b) : a;
  if (!a || !b) return std::nullopt;
  ScalarValue value = evaluateOp(node.op, node.dtype, *a, *b);
  if (values_.size() < pool.size()) values_.resize(pool.size());
  values_[id] = value;
  return value;
}

std::optional<int64_t> ExpressionEvaluator::evaluate(Scalar s) const {
  if (!s) return std::nullopt;
  const auto value = evaluateValue(s);
  if (!value) return std::nullopt;
  return toInt(*value);
}

void ExpressionEvaluator::bind(Scalar s, ScalarValue value, const std::string& source) {
  const size_t n = fusion_->scalars().size();
  if (values_.size() < n) values_.resize(n);
  if (sources_.size() < n) sources_.resize(n);
  const auto id = static_cast<size_t>(s.id);
  if (values_[id]) {
    MESHFUSE_CHECK(*values_[id] == value, source, " gives ", toString(*fusion_, s), " the value ",
                   toString(value), ", but ",
                   sources_[id].empty() ? "it was found" : sources_[id] + " gave it", " to be ",
                   toString(*values_[id]), ". Give inputs whose sizes agree.");
    return;
  }
  values_[id] = value;
  sources_[id] = source;
}

std::vector<int64_t> ExpressionEvaluator::globalShape(const TensorView* tv) const {
  std::vector<int64_t> shape;
  for (const int32_t i : tv->domain().withoutReductions(tv->domain().logical())) {
    const Scalar extent = tv->domain().id(i)->getMaybeExpandedExtent();
    const auto value = evaluate(extent);
    MESHFUSE_CHECK(value, "the size of axis ", AtAxis{static_cast<int64_t>(shape.size())}, " of ",
                   at(tv), " is not known: ", toString(*fusion_, extent),
                   ". Bind the inputs that it depends on.");
    MESHFUSE_CHECK(*value >= 0, "the size of axis ", AtAxis{static_cast<int64_t>(shape.size())},
                   " of ", at(tv), ", ", toString(*fusion_, extent), ", is ", *value,
                   ". Give the scalars that it depends on values that make it 0 or more.");
    shape.push_back(*value);
  }
  return shape;
}

void ExpressionEvaluator::bind(const TensorView* tv, const at::Tensor& local, int64_t position) {
  const Described who{tv, position};
  MESHFUSE_CHECK(local.dim() == tv->ndim(), "Expected ", who, " (", at(tv), "), to have ",
                 tv->ndim(), " axes, but got a tensor of ", local.dim(), " axes with sizes ",
                 local.sizes(), ". Pass this device's part with one size per axis.");
  MESHFUSE_CHECK(dtypeFits(tv->dtype(), toDataType(local.scalar_type())), "Expected ", who,
                 ", to be bound to a tensor of dtype ", tv->dtype(), ", but got a tensor of dtype ",
                 toDataType(local.scalar_type()), ". Convert ", at(tv),
                 " with .to(), or declare another dtype.");
  const auto sizes = std::span(local.sizes().data(), local.sizes().size());
  const std::vector<int64_t> global = unshardedSizes(tv, sizes);
  const AxisList logical = tv->domain().withoutReductions(tv->domain().logical());
  for (size_t i = 0; i < logical.size(); ++i) {
    const IterDomain* id = tv->domain().id(logical[i]);
    const auto axis = static_cast<int64_t>(i);
    if (id->isDeviceDim()) {
      MESHFUSE_CHECK(sizes[i] == 1, who, ": axis ", AtAxis{axis}, " of ", at(tv), " is on ",
                     id->getParallelType(), ", so each device has 1 of its ", global[i],
                     " elements, but the tensor has local size ", sizes[i],
                     ". Pass this device's part.");
    }
    if (id->isBroadcast() && !id->expandedExtent()) {
      MESHFUSE_CHECK(sizes[i] == 1, who, ": axis ", AtAxis{axis}, " of ", at(tv),
                     " is declared with size 1, expected 1, got ", sizes[i],
                     ". Declare the axis as -1 if its size varies.");
      continue;
    }
    const Scalar extent = id->getMaybeExpandedExtent();
    const auto constant = fusion_->scalars().constInt(extent);
    if (constant) {
      const int64_t devices = sizes[i] == 0 ? 1 : std::max<int64_t>(global[i] / sizes[i], 1);
      MESHFUSE_CHECK(*constant == global[i], who, ": axis ", AtAxis{axis}, " of ", at(tv),
                     " is declared with global size ", *constant, shardingText(tv, axis),
                     ", so its local size must be ",
                     devices > 0 && *constant % devices == 0 ? std::to_string(*constant / devices)
                                                             : concat(*constant, "/", devices),
                     "; expected ", *constant, ", got ", global[i], " (local size ", sizes[i],
                     "). Pass this device's part of a tensor of the declared size.");
    } else {
      bind(extent, global[i],
           concat("axis ", i, " of ", who, " (local size ", sizes[i], shardingText(tv, axis), ")"));
    }
    MESHFUSE_CHECK(!id->expandedExtent() || sizes[i] == 1 || local.stride(axis) == 0, who,
                   ": axis ", AtAxis{axis}, " of ", at(tv),
                   " is an expanded broadcast, so its stride must be 0,"
                   " but it is ",
                   local.stride(axis), ". Pass tensor.expand(...).");
  }
  const std::vector<int64_t> expected = shardedSizes(tv, global, device_);
  MESHFUSE_CHECK(std::ranges::equal(expected, sizes), who, ": the local sizes ", local.sizes(),
                 " are not what one device holds of ", at(tv), ", which is ",
                 c10::IntArrayRef(expected),
                 ". Pass this device's part, as shard_tensor gives it.");
  checkContiguity(tv, local, position, device_);
}

void ExpressionEvaluator::checkConstraints(const Expr* expr) const {
  for (const Constraint& c : expr->constraints()) {
    const auto a = evaluate(c.a), b = evaluate(c.b);
    if (!a || !b || *a == *b) continue;
    const TensorView* ta = fusion_->tensor(c.tensor_a);
    MESHFUSE_CHECK(c.tensor_b >= 0, expr->op().name(), ": axis ", AtAxis{c.axis_a}, " of ", at(ta),
                   " has size ", *a, " but the shape has ", *b, " for it, ",
                   toString(*fusion_, c.b), ". Only axes declared with size 1 can be repeated.");
    const TensorView* tb = fusion_->tensor(c.tensor_b);
    fail(expr->op().name(), ": axis ", AtAxis{c.axis_a}, " of ", at(ta), " has size ", *a,
         " but axis ", c.axis_b, " of ", tb->name(), " has size ", *b,
         ". Give operands whose sizes agree. A size that turns out to be 1 does not broadcast: "
         "declare the axis with size 1 for that.");
  }
}

}  // namespace meshfuse
