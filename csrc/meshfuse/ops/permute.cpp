// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

namespace meshfuse {
namespace {

/// `dims` wrapped and checked to be a permutation of the axes of `x`.
std::vector<int64_t> checkedPermutation(std::string_view op, std::string_view param,
                                        const TensorView* x, const std::vector<int64_t>& dims) {
  const int64_t n = x->ndim();
  MESHFUSE_CHECK(std::cmp_equal(dims.size(), n), "Operator ", op, " expects `", param,
                 "` argument to have the same length as input! ", at(x), " has ", n, " axes, but ",
                 dims.size(), " entries were given.");
  std::vector<int64_t> out;
  std::vector<bool> seen(static_cast<size_t>(n), false);
  for (const int64_t dim : dims) {
    MESHFUSE_CHECK(dim >= -n && dim < n, op, " dims argument is out of range, expects ", -n, " to ",
                   n - 1, " for ", at(x), ", but got ", dim, ".");
    out.push_back(dim < 0 ? dim + n : dim);
    MESHFUSE_CHECK(!seen[static_cast<size_t>(out.back())], op,
                   " got duplicated dimension entries for ", at(x), ": ", AtAxis{dim},
                   " stands twice. Give a permutation.");
    seen[static_cast<size_t>(out.back())] = true;
  }
  return out;
}

}  // namespace

struct PermuteOp final : OpDef {
  OpInfo info() const override {
    return {.name = "permute",
            .params = {tensor("arg"), attr("dims", ParamKind::IntList)},
            .doc = "Axis i of the result is axis dims[i] of the operand.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    const auto dims = checkedPermutation("permute", "dims", call.tensor(0), call.ints(1));
    FactorBuilder builder(call);
    for (const int64_t dim : dims) {
      builder.resultAxis(
          builder.factor(FactorKind::Parallel, std::array{dim}, "axis " + std::to_string(dim)));
    }
    return builder.build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = io[0].permute(call.ints(1));
  }
};
MESHFUSE_REGISTER_OP(PermuteOp);

struct StrideOrderOp final : OpDef {
  OpInfo info() const override {
    return {.name = "stride_order",
            .params = {tensor("arg"), attr("stride_order", ParamKind::IntList)},
            .doc = "A copy whose axis i has place stride_order[i] in memory, 0 being innermost.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    checkedPermutation("stride_order", "stride_order", call.tensor(0), call.ints(1));
    return einsum(call, "...->...");
  }
  void finish(const OpCall& call, std::span<TensorView* const> outputs) const override {
    outputs[0]->setStrideOrder(call.ints(1), "stride_order");
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const Layout& want = call.want(0);
    const bool there = io[0].strides() == c10::IntArrayRef(want.strides);
    io.out() =
        there ? io[0] : at::empty_strided(want.sizes, want.strides, io[0].options()).copy_(io[0]);
  }
};
MESHFUSE_REGISTER_OP(StrideOrderOp);

}  // namespace meshfuse
