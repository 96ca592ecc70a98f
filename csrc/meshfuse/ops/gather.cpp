// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ops/indexing.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/take_along_dim.h>

namespace meshfuse {
namespace {

constexpr unsigned kArg = 0b01, kIndex = 0b10;

}  // namespace

struct GatherOp final : OpDef {
  OpInfo info() const override {
    return {.name = "gather",
            .params = {tensor("arg"), tensor("index"), attr("dim", ParamKind::Int)},
            .doc =
                "arg at the places of index along dim, as torch.gather: on the other axes index "
                "may be smaller than arg, and the result has its shape."};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView *x = call.tensor(0), *index = call.tensor(1);
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    checkSameRank(call, 0, 1);
    checkIndexType(call, 1);
    checkIndexFits(call, 0, dim);
    AxisFactors axes(call);
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      if (axis == dim) {
        axes.over(FactorKind::Blocking, axis, kArg);
        axes.builder().resultAxis(axes.over(FactorKind::Parallel, axis, kIndex));
      } else if (haveEqualSizes(x, axis, index, axis)) {
        axes.builder().resultAxis(axes.over(FactorKind::Parallel, axis, kArg | kIndex));
      } else {
        // A smaller index reads the first part of arg, which other blocks of arg do not have.
        axes.over(FactorKind::Blocking, axis, kArg);
        axes.builder().resultAxis(axes.over(FactorKind::Blocking, axis, kIndex));
      }
    }
    return axes.builder().build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    checkIndexFits(call, 0, dim, io[1], io[0]);
    io.out() = at::gather(io[0], dim,
                          checkedIndices(call, 1, io[1], call.tensor(0), dim, io[0].size(dim)));
  }
};
MESHFUSE_REGISTER_OP(GatherOp);

struct TakeAlongAxisOp final : OpDef {
  OpInfo info() const override {
    Param arg = tensor("arg");
    arg.aliases = {"arg1"};
    return {.name = "take_along_axis",
            .params = {std::move(arg), tensor("index"), attr("dim", ParamKind::Int)},
            .doc =
                "arg at the places of index along dim; the other axes broadcast, as "
                "torch.take_along_dim."};
  }
  FactorMap factors(const OpCall& call) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    checkSameRank(call, 0, 1);
    checkIndexType(call, 1);
    AxisFactors axes(call);
    for (int64_t axis = 0; axis < call.ndim(0); ++axis) {
      if (axis == dim) axes.over(FactorKind::Blocking, axis, kArg);
      const unsigned operands = axis == dim ? kIndex : kArg | kIndex;
      axes.builder().resultAxis(axes.over(FactorKind::Parallel, axis, operands));
    }
    return axes.builder().build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    io.out() = at::take_along_dim(
        io[0], checkedIndices(call, 1, io[1], call.tensor(0), dim, io[0].size(dim)), dim);
  }
};
MESHFUSE_REGISTER_OP(TakeAlongAxisOp);

}  // namespace meshfuse
