// SPDX-License-Identifier: BSD-3-Clause
// Ops that torch computes in one piece and that can be made of others.
#pragma once
#include <meshfuse/ops/op_def.h>

namespace meshfuse {

/// An op with Blocking factors which is made of its pieces where the first operand is divided along
/// such a factor: then partial sums are sent, where the op in one piece would have to gather the
/// operand. The pass expand-fused asks it.
struct FusedOp : OpDef {
  /// Adds operations that compute the same to the definition, and returns the results, one per
  /// result of the op, each the result of an operation.
  virtual std::vector<TensorView*> pieces(const OpCall& call) const = 0;
};

/// The op as a FusedOp; nullptr when it is none.
inline const FusedOp* asFused(const OpDef& op) { return dynamic_cast<const FusedOp*>(&op); }

}  // namespace meshfuse
