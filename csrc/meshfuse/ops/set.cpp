// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ops/pointwise.h>

#include <ATen/core/Tensor.h>

namespace meshfuse {

struct IdentityOp : PointwiseOp {
  bool isIdentity() const override { return true; }
  Scalar onScalars(const OpCall& call) const override { return call.scalar(0); }
  void evaluate(const OpCall&, const Operands& io) const override { io.out() = io[0]; }
};

struct SetOp final : IdentityOp {
  OpInfo info() const override {
    return {.name = "set",
            .params = {tensorOrScalar("arg")},
            .doc = "The identity. With another sharding on the result it is a communication.",
            .is_view = true};
  }
};
MESHFUSE_REGISTER_OP(SetOp);

struct SegmentSetOp final : IdentityOp {
  OpInfo info() const override {
    return {.name = "segment_set",
            .params = {tensorOrScalar("arg")},
            .doc =
                "The same as set; for programs that mark where kernels begin, of which there "
                "are none here.",
            .is_view = true};
  }
};
MESHFUSE_REGISTER_OP(SegmentSetOp);

}  // namespace meshfuse
