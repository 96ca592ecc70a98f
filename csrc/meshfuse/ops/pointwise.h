// SPDX-License-Identifier: BSD-3-Clause
// What pointwise ops share: broadcasting factors, the type rules of semantics 4.8, and tables of
// ops without attributes.
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

/// Operands that a pointwise op takes.
enum class Accepts : uint8_t {
  Any,
  Complex,
  Integers,         // Bool beside an integer
  IntegersAndBool,  // also Bool alone
  FloatOrDouble,    // numbers of any kind beside tensors of these
};

/// Promoted type of all tensor and scalar arguments; a scalar does not widen tensors of its
/// category. Scalars alone have the types that torch gives to numbers: Bool, Int, Float,
/// ComplexFloat.
DataType promotedType(const OpCall& call);
/// The same for the parameters `first` and up.
DataType promotedType(const OpCall& call, size_t first);
DataType applyRule(TypeRule rule, DataType promoted);
/// Throws Error naming an operand that the op does not take.
void checkAccepts(const OpCall& call, Accepts accepts);

/// Base of ops that act on each element alone.
struct PointwiseOp : OpDef {
  FactorMap factors(const OpCall& call) const override;
  bool isPointwise() const override { return true; }
};

/// f(arg) of a tensor or a scalar.
struct UnaryRow {
  const char* name;
  TypeRule rule;
  const char* doc;
  at::Tensor (*compute)(const at::Tensor&);
  Accepts accepts = Accepts::Any;
  bool is_view = false;
};

/// f(lhs, rhs), any mix of tensor and scalar.
struct BinaryRow {
  const char* name;
  TypeRule rule;
  const char* doc;
  at::Tensor (*compute)(const at::Tensor&, const at::Tensor&);
  Accepts accepts = Accepts::Any;
  /// Value on scalars alone; by default the scalar op of the same name, if there is one.
  Scalar (*scalars)(ScalarPool&, Scalar, Scalar) = nullptr;
  bool divides = false;      // integers by the operand on the right, which must not be 0
  bool rounds_once = false;  // OpDef::roundsOnce
  bool one_device = false;   // torch's op takes no number of the CPU beside other devices' tensors
};

/// Register one op per row; the rows must live as long as the process. Return true.
bool registerUnary(std::span<const UnaryRow> rows);
bool registerBinary(std::span<const BinaryRow> rows);

/// The argument at `param`, a tensor or a number, as a tensor of type `type`.
at::Tensor operandAs(const OpCall& call, const Operands& operands, size_t param, DataType type);

}  // namespace meshfuse
