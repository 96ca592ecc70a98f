// SPDX-License-Identifier: BSD-3-Clause
// softmax along one axis. Where that is divided over devices, maxima and sums go over them, and
// everything else stays where it is.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/compose.h>
#include <meshfuse/ops/fused.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/softmax.h>

namespace meshfuse {

struct SoftmaxOp final : FusedOp {
  OpInfo info() const override {
    return {.name = "softmax",
            .params = {tensor("x"), attr("dim", ParamKind::Int)},
            .doc = "exp(x) / sum(exp(x)), the sum along dim."};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    MESHFUSE_CHECK(isFloating(x->dtype()), "softmax: ", at(x), " is ", x->dtype(),
                   ". Cast it to a floating point type first.");
    const int64_t dim = dimOf(call);
    FactorBuilder builder(call);
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      const FactorKind kind = axis == dim ? FactorKind::Blocking : FactorKind::Parallel;
      builder.resultAxis(builder.factor(kind, std::array{axis}, "axis " + std::to_string(axis)));
    }
    return builder.build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = at::softmax(io[0], dimOf(call));
  }
  std::vector<TensorView*> pieces(const OpCall& call) const override {
    const Composer ops(call);
    // A view, since what is scheduled already cannot be reduced.
    TensorView* x = ops("set", {ops.operand(0)});
    const std::vector<int64_t> axes = {dimOf(call)};
    const auto along = [&](std::string_view op, TensorView* of) {
      return ops.keepAxes(ops(op, {of, axes, false, DataType::Null}), axes);
    };
    TensorView* powers = ops("exp", {ops("sub", {x, along("max", x)})});
    TensorView* out = ops("div", {powers, along("sum", powers)});
    return {ops.as(call.tensor(0)->dtype(), out)};
  }

 private:
  static int64_t dimOf(const OpCall& call) {
    return wrappedAxis("softmax", call.tensor(0), call.integer(1));
  }
};
MESHFUSE_REGISTER_OP(SoftmaxOp);

}  // namespace meshfuse
