// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/ops/torch_types.h>

#include <algorithm>
#include <numeric>

#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>

namespace meshfuse {
namespace {

/// The axes to reduce, wrapped and checked; all of them when none are given.
std::vector<int64_t> reducedAxes(const OpCall& call) {
  const TensorView* x = call.tensor(0);
  const int64_t n = x->ndim();
  if (!call.has(1)) {
    std::vector<int64_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  MESHFUSE_CHECK(!call.ints(1).empty(), "sum: No reduction axis specified for ", at(x),
                 ". List at least one axis, or leave the list out to reduce all.");
  std::vector<int64_t> axes;
  for (const int64_t axis : call.ints(1)) {
    MESHFUSE_CHECK(axis >= -n && axis < n, "sum: Reduction on invalid axis ", AtAxis{axis}, " of ",
                   at(x), ", which has ", n, " axes. Use ", -n, " to ", n - 1, ".");
    const int64_t wrapped = axis < 0 ? axis + n : axis;
    MESHFUSE_CHECK(std::ranges::find(axes, wrapped) == axes.end(),
                   "sum: Reduction axes are not unique: axis ", AtAxis{axis}, " of ", at(x),
                   " is listed twice. List each axis once.");
    axes.push_back(wrapped);
  }
  return axes;
}

}  // namespace

struct SumOp final : OpDef {
  OpInfo info() const override {
    return {.name = "sum",
            .params = {tensor("arg"), attr("dims", ParamKind::IntList, Arg{}, {"dim", "axes"}),
                       attr("keepdim", ParamKind::Bool, false, {"keep_dim"}),
                       attr("dtype", ParamKind::DType, DataType::Null)},
            .doc =
                "Sum over the listed axes, or over all. Integers and Bool are summed as Int; dtype "
                "converts the operand first."};
  }
  void validate(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    const bool scheduled = x->domain().transforms().size() > x->domain().definitionTransforms();
    MESHFUSE_CHECK(!scheduled,
                   "sum: Reducing a tensor once it's gone under transformations is not permitted; ",
                   at(x),
                   " was split or merged. Schedule tensors after all operations are defined.");
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    MESHFUSE_CHECK(x->ndim() > 0, "sum: Tried to reduce a 0-dim tensor, ", at(x),
                   ". Reduce a tensor with axes.");
    const std::vector<int64_t> axes = reducedAxes(call);
    FactorBuilder builder(call);
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      const bool reduced = std::ranges::find(axes, axis) != axes.end();
      const auto factor = builder.factor(reduced ? FactorKind::Reduction : FactorKind::Parallel,
                                         std::array{axis}, "axis " + std::to_string(axis));
      if (factor || !reduced) builder.resultAxis(factor);
      if (reduced && call.flag(2)) builder.resultAxis(std::nullopt);
    }
    return builder.build();
  }
  DataType dtype(const OpCall& call) const override {
    if (call.type(3) != DataType::Null) return call.type(3);
    const DataType type = call.tensor(0)->dtype();
    return isIntegral(type) || type == DataType::Bool ? DataType::Int : type;
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = at::sum(io[0], reducedAxes(call), call.flag(2), toScalarType(dtype(call)));
  }
};
MESHFUSE_REGISTER_OP(SumOp);

}  // namespace meshfuse
