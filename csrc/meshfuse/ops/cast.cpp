// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/pointwise.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/core/Tensor.h>

namespace meshfuse {

struct CastOp final : PointwiseOp {
  OpInfo info() const override {
    return {.name = "cast",
            .params = {tensorOrScalar("arg"), attr("dtype", ParamKind::DType)},
            .doc = "The same values in another data type.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    MESHFUSE_CHECK(call.type(1) != DataType::Null, "cast: dtype is Null. Name a data type.");
    return PointwiseOp::factors(call);
  }
  DataType dtype(const OpCall& call) const override { return call.type(1); }
  bool isCast() const override { return true; }
  Scalar onScalars(const OpCall& call) const override {
    return call.fusion().scalars().cast(call.scalar(0), call.type(1));
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = io[0].to(toScalarType(call.type(1)));
  }
};
MESHFUSE_REGISTER_OP(CastOp);

}  // namespace meshfuse
