// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/indexing.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/topk.h>

namespace meshfuse {

struct TopkOp final : OpDef {
  OpInfo info() const override {
    return {
        .name = "topk",
        .params = {tensor("arg"), attr("k", ParamKind::Number),
                   attr("dim", ParamKind::Int, int64_t{-1}), attr("largest", ParamKind::Bool, true),
                   attr("sorted", ParamKind::Bool, false)},
        .doc = "The k largest or smallest elements along dim, and their places.",
        .results = {"values", "indices"}};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    const ScalarPool& pool = call.fusion().scalars();
    MESHFUSE_CHECK(isIntegral(pool.dtype(call.scalar(1))), "topk: k is ",
                   pool.dtype(call.scalar(1)), " for ", at(x), ". Give an integer.");
    const auto known = pool.constInt(call.scalar(1));
    if (known) checkCount(call, *known);
    const Scalar k = known ? call.fusion().scalars().constant(*known) : call.scalar(1);
    AxisFactors axes(call);
    std::vector<std::optional<int32_t>> result;
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      const auto kind = axis == dim ? FactorKind::Blocking : FactorKind::Parallel;
      result.push_back(axes.over(kind, axis, 0b1));
      if (axis != dim) continue;
      result.back() = std::nullopt;
      if (known != 1) result.back() = axes.builder().freshFactor(FactorKind::Blocking, k, "k");
    }
    for (const auto& f : result) axes.builder().resultAxis(f);
    axes.builder().nextResult();
    for (const auto& f : result) axes.builder().resultAxis(f);
    return axes.builder().build();
  }
  DataType resultType(const OpCall& call, size_t i) const override {
    return i == 0 ? call.tensor(0)->dtype() : DataType::Int;
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(2));
    const int64_t k = toInt(call.value(1)), size = io[0].size(dim);
    checkCount(call, k);
    MESHFUSE_CHECK(k <= size, "topk: Invalid resized domain extent: k (", k,
                   ") is not in the range of axis ", AtAxis{dim}, " of ", at(call.tensor(0)),
                   ", which has size ", size, ". Give a k from 0 to ", size, ".");
    std::tie(io.out(0), io.out(1)) = at::topk(io[0], k, dim, call.flag(3), call.flag(4));
  }

 private:
  static void checkCount(const OpCall& call, int64_t k) {
    MESHFUSE_CHECK(k >= 0, "topk: Invalid resized domain extent: k (", k,
                   ") is not in the range of an axis of ", at(call.tensor(0)), ". Give 0 or more.");
  }
};
MESHFUSE_REGISTER_OP(TopkOp);

struct ArgsortOp final : OpDef {
  OpInfo info() const override {
    return {.name = "argsort",
            .params = {tensor("arg"), attr("dim", ParamKind::Int),
                       attr("descending", ParamKind::Bool, false),
                       attr("stable", ParamKind::Bool, false)},
            .doc = "The places of the elements along dim in sorted order."};
  }
  FactorMap factors(const OpCall& call) const override {
    const int64_t dim = wrappedAxis(call, 0, call.integer(1));
    AxisFactors axes(call);
    for (int64_t axis = 0; axis < call.ndim(0); ++axis) {
      const auto kind = axis == dim ? FactorKind::Blocking : FactorKind::Parallel;
      axes.builder().resultAxis(axes.over(kind, axis, 0b1));
    }
    return axes.builder().build();
  }
  DataType dtype(const OpCall&) const override { return DataType::Int; }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() =
        at::argsort(io[0], call.flag(3), wrappedAxis(call, 0, call.integer(1)), call.flag(2));
  }
};
MESHFUSE_REGISTER_OP(ArgsortOp);

}  // namespace meshfuse
