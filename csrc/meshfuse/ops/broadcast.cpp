// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>

namespace meshfuse {

struct BroadcastOp final : OpDef {
  OpInfo info() const override {
    return {.name = "broadcast",
            .params = {tensor("arg"), attr("is_broadcast_dim", ParamKind::BoolList)},
            .doc = "Inserts an axis of size 1 wherever is_broadcast_dim is true.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    const auto kept = std::ranges::count(call.bools(1), false);
    MESHFUSE_CHECK(kept == x->ndim(),
                   "broadcast: Invalid broadcast, number of false entries in "
                   "is_broadcast_dim expected to be ",
                   x->ndim(), ", the number of axes of ", at(x), ", but it is ", kept, ".");
    FactorBuilder builder(call);
    int64_t axis = 0;
    for (const bool inserted : call.bools(1)) {
      if (inserted) {
        builder.resultAxis(std::nullopt);
        continue;
      }
      builder.resultAxis(
          builder.factor(FactorKind::Parallel, std::array{axis}, "axis " + std::to_string(axis)));
      ++axis;
    }
    return builder.build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    at::Tensor out = io[0];
    for (size_t i = 0; i < call.bools(1).size(); ++i) {
      if (call.bools(1)[i]) out = out.unsqueeze(static_cast<int64_t>(i));
    }
    io.out() = std::move(out);
  }
};
MESHFUSE_REGISTER_OP(BroadcastOp);

}  // namespace meshfuse
