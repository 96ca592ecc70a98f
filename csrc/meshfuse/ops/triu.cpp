// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/triu.h>

namespace meshfuse {

struct TriuOp final : OpDef {
  OpInfo info() const override {
    return {.name = "triu",
            .params = {tensor("input"), attr("diagonal", ParamKind::Number, int64_t{0})},
            .doc =
                "Upper triangle of the last two axes: elements on and above the diagonal, which "
                "lies that many columns right of the main one; zeros elsewhere."};
  }
  FactorMap factors(const OpCall& call) const override {
    MESHFUSE_CHECK(call.ndim(0) >= 2,
                   "triu: input tensor for triu must have 2 or more dims, but "
                   "got ",
                   call.ndim(0), " dims: ", at(call.tensor(0)),
                   ". Give a matrix or a batch of matrices.");
    const DataType type = call.fusion().scalars().dtype(call.scalar(1));
    MESHFUSE_CHECK(isIntegral(type), "triu: the diagonal of ", at(call.tensor(0)), " is ", type,
                   ". Give an integer.");
    return einsum(call, "...m!n!->...mn");
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = at::triu(io[0], toInt(call.value(1)));
  }
};
MESHFUSE_REGISTER_OP(TriuOp);

}  // namespace meshfuse
