// SPDX-License-Identifier: BSD-3-Clause
// For ops that are made of others (ComposedOp, FusedOp): calls of these, and what they share.
#pragma once
#include <meshfuse/ops/op_def.h>

namespace meshfuse {

/// Calls of ops in one definition.
class Composer {
 public:
  explicit Composer(const OpCall& call) : call_(call), fusion_(call.fusion()) {}

  /// The only result of an op.
  TensorView* operator()(std::string_view op, std::vector<Arg> args) const;
  ScalarPool& scalars() const { return fusion_.scalars(); }
  Scalar number(double value) const { return scalars().constant(value, DataType::Double); }

  /// Tensor parameter `param` in the type to compute in: Float for 16-bit and 8-bit floats. Throws
  /// Error when it is no real floating type.
  TensorView* operand(size_t param) const;
  /// `x` in the type `type`.
  TensorView* as(DataType type, TensorView* x) const;

  /// The axes that integer list `param` names, wrapped and in order. Throws Error when there is
  /// none, or one is out of range or named twice.
  std::vector<int64_t> axes(const TensorView* x, size_t param) const;
  /// Number of elements along the axes, an integer.
  Scalar countOf(const TensorView* x, const std::vector<int64_t>& axes) const;
  /// Mean along the axes.
  TensorView* mean(TensorView* x, const std::vector<int64_t>& axes) const;
  /// A tensor from which axes were reduced, with size 1 in their place.
  TensorView* keepAxes(TensorView* reduced, const std::vector<int64_t>& axes) const;

 private:
  const OpCall& call_;
  Fusion& fusion_;
};

}  // namespace meshfuse
