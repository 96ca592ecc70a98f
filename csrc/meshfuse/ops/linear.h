// SPDX-License-Identifier: BSD-3-Clause
#pragma once
#include <meshfuse/ops/op_def.h>

namespace meshfuse {

/// linear(x, weight, bias) as torch.nn.functional.linear (semantics 4.2). Leading axes of the
/// weight are device axes and come first in the output.
struct LinearOp final : OpDef {
  OpInfo info() const override;
  FactorMap factors(const OpCall& call) const override;
  void evaluate(const OpCall& call, const Operands& operands) const override;
  std::vector<int> referenceOrder(const OpCall& call) const override;
  std::vector<TensorView*> withoutAddends(const OpCall& call) const override;
};

}  // namespace meshfuse
