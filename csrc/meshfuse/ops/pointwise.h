// SPDX-License-Identifier: BSD-3-Clause
// What pointwise ops share: broadcasting factors and the type rules of semantics 4.8.
#pragma once
#include <meshfuse/ops/op_def.h>

namespace meshfuse {

/// Result type of a pointwise op.
enum class TypeRule : uint8_t {
  Keep,        // the operand's type
  KeepReal,    // the operand's type, complex numbers give their real type
  Arithmetic,  // promoted as torch does; 16-bit and 8-bit floats give Float
  Float,       // like Arithmetic, integers and Bool give Float
  Compare,     // Bool
};

/// Promoted type of all tensor and scalar arguments; a scalar does not widen tensors of its
/// category.
DataType promotedType(const OpCall& call);
DataType applyRule(TypeRule rule, DataType promoted);

/// Base of ops that act on each element alone.
struct PointwiseOp : OpDef {
  FactorMap factors(const OpCall& call) const override;
  bool isPointwise() const override { return true; }
};

}  // namespace meshfuse
