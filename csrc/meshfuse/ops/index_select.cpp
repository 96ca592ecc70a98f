// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/indexing.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/select.h>

namespace meshfuse {

struct IndexSelectOp final : OpDef {
  OpInfo info() const override {
    return {.name = "index_select",
            .params = {tensor("arg"), tensor("index"), attr("dim", ParamKind::Int)},
            .doc = "The slices of arg along dim that a 1-D index lists."};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView *x = call.tensor(0), *index = call.tensor(1);
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    checkIndexType(call, 1);
    MESHFUSE_CHECK(index->ndim() <= 1, "index_select: Tensor arguments have dimension ", x->ndim(),
                   " (", x->name(), ") and ", index->ndim(), " (", at(index),
                   "), but the index must be 1-D. Reshape it, or use gather or take_along_axis.");
    AxisFactors axes(call);
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      if (axis != dim) {
        axes.builder().resultAxis(axes.over(FactorKind::Parallel, axis, 0b01));
        continue;
      }
      axes.over(FactorKind::Blocking, dim, 0b01);
      if (index->ndim() == 0) {
        axes.builder().resultAxis(std::nullopt);
      } else {
        axes.builder().resultAxis(axes.over(FactorKind::Parallel, 0, 0b10));
      }
    }
    return axes.builder().build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    io.out() = at::index_select(
        io[0], dim, checkedIndices(call, 1, io[1], call.tensor(0), dim, io[0].size(dim)));
  }
};
MESHFUSE_REGISTER_OP(IndexSelectOp);

struct SelectOp final : OpDef {
  OpInfo info() const override {
    return {
        .name = "select",
        .params = {tensor("arg"), attr("index", ParamKind::Number), attr("dim", ParamKind::Int)},
        .doc =
            "The slice of arg at a place of dim, without that axis; a negative index "
            "counts from the end.",
        .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    const DataType type = call.fusion().scalars().dtype(call.scalar(1));
    MESHFUSE_CHECK(isIntegral(type), "select: the index into ", at(x), " is ", type,
                   ". Give an integer.");
    AxisFactors axes(call);
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      const auto kind = axis == dim ? FactorKind::Blocking : FactorKind::Parallel;
      const auto factor = axes.over(kind, axis, 0b1);
      if (axis != dim) axes.builder().resultAxis(factor);
    }
    return axes.builder().build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    const int64_t index = toInt(call.value(1)), size = io[0].size(dim);
    MESHFUSE_CHECK(index >= -size && index < size, "select: index ", index,
                   " is out of the range of axis ", AtAxis{dim}, " of ", at(call.tensor(0)),
                   ", which has size ", size, ". Give ", -size, " to ", size - 1, ".");
    io.out() = at::select(io[0], dim, index);
  }
};
MESHFUSE_REGISTER_OP(SelectOp);

}  // namespace meshfuse
