// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/indexing.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/ops/scatter.h>

namespace meshfuse {
namespace {

constexpr unsigned kArg = 0b001, kIndex = 0b010, kSrc = 0b100;

}  // namespace

struct ScatterOp final : OpDef {
  OpInfo info() const override {
    return {.name = "scatter",
            .params = {tensor("arg"), tensor("index"), tensorOrScalar("src"),
                       attr("dim", ParamKind::Int)},
            .doc =
                "A copy of arg with src, a tensor or a number, written to the places of index "
                "along dim, as torch.scatter."};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView *x = call.tensor(0), *index = call.tensor(1);
    const TensorView* src = call.isTensor(2) ? call.tensor(2) : nullptr;
    const int64_t dim = wrappedAxis(call, 0, call.integer(3));
    checkSameRank(call, 0, 1);
    checkIndexType(call, 1);
    if (src != nullptr) {
      checkSameRank(call, 0, 2);
      MESHFUSE_CHECK(src->dtype() == x->dtype(), "scatter: ", at(src), " is ", src->dtype(),
                     " but ", x->name(), " is ", x->dtype(), ". Cast one of them.");
      checkIndexFits(call, 2, -1);
    }
    checkIndexFits(call, 0, dim);
    const unsigned read = src == nullptr ? kIndex : kIndex | kSrc;
    AxisFactors axes(call);
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      const bool equal = axis != dim && haveEqualSizes(x, axis, index, axis) &&
                         (src == nullptr || haveEqualSizes(x, axis, src, axis));
      const unsigned together = equal ? kArg | read : kArg;
      axes.builder().resultAxis(
          axes.over(equal ? FactorKind::Parallel : FactorKind::Blocking, axis, together));
      if (equal) continue;
      axes.over(FactorKind::Blocking, axis, kIndex);
      if (src != nullptr) axes.over(FactorKind::Blocking, axis, kSrc);
    }
    return axes.builder().build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(3));
    checkIndexFits(call, 0, dim, io[1], io[0]);
    if (call.isTensor(2)) checkIndexFits(call, 2, -1, io[1], io[2]);
    const at::Tensor index = checkedIndices(call, 1, io[1], call.tensor(0), dim, io[0].size(dim));
    io.out() = call.isTensor(2) ? at::scatter(io[0], dim, index, io[2])
                                : at::scatter(io[0], dim, index, toAtScalar(call.value(2)));
  }
};
MESHFUSE_REGISTER_OP(ScatterOp);

}  // namespace meshfuse
