// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/pointwise.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>

namespace meshfuse {

struct GeluOp final : PointwiseOp {
  OpInfo info() const override {
    return {.name = "gelu",
            .params = {tensor("x"), attr("approximate", ParamKind::String, std::string("none"))},
            .doc = R"(Gaussian error linear unit; approximate is "none" or "tanh".)"};
  }
  FactorMap factors(const OpCall& call) const override {
    MESHFUSE_CHECK(call.text(1) == "none" || call.text(1) == "tanh", "gelu: approximate is '",
                   call.text(1), "'. Use \"none\" or \"tanh\".");
    return PointwiseOp::factors(call);
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = at::gelu(io[0], call.text(1));
  }
};
MESHFUSE_REGISTER_OP(GeluOp);

}  // namespace meshfuse
