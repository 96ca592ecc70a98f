// SPDX-License-Identifier: BSD-3-Clause
// Elementwise comparisons with limits that are scalars.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/pointwise.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/threshold.h>

namespace meshfuse {

struct ClampOp final : PointwiseOp {
  OpInfo info() const override {
    return {.name = "clamp",
            .params = {tensor("x"), attr("min", ParamKind::Number, Arg{}),
                       attr("max", ParamKind::Number, Arg{})},
            .doc =
                "x raised to min where it is less, and lowered to max where it is more. Keeps "
                "16-bit types. A limit that is absent does not bound."};
  }
  void validate(const OpCall& call) const override {
    MESHFUSE_CHECK(call.has(1) || call.has(2), "clamp: neither min nor max is given for ",
                   at(call.tensor(0)), ". Give at least one of them.");
  }
  DataType dtype(const OpCall& call) const override { return promotedType(call); }
  void evaluate(const OpCall& call, const Operands& io) const override {
    std::optional<at::Scalar> low, high;
    if (call.has(1)) low = toAtScalar(call.value(1));
    if (call.has(2)) high = toAtScalar(call.value(2));
    io.out() = at::clamp(io[0], low, high);
  }
};
MESHFUSE_REGISTER_OP(ClampOp);

struct ThresholdOp final : PointwiseOp {
  OpInfo info() const override {
    return {.name = "threshold",
            .params = {tensor("x"), attr("threshold", ParamKind::Number),
                       attr("value", ParamKind::Number)},
            .doc = "x where it is greater than the threshold, elsewhere value, in the type of x."};
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = at::threshold(io[0], toAtScalar(call.value(1)), toAtScalar(call.value(2)));
  }
};
MESHFUSE_REGISTER_OP(ThresholdOp);

}  // namespace meshfuse
