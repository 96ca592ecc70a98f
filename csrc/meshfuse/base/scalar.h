// SPDX-License-Identifier: BSD-3-Clause
// Hash-consed scalars: extents of axes, scalar inputs, constants and arithmetic on them. Within one
// pool equal handles mean equal values, so comparing two extents is comparing two integers.
#pragma once
#include <meshfuse/base/types.h>

#include <complex>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace meshfuse {

/// Handle of a node in a ScalarPool; default-constructed = absent.
struct Scalar {
  int32_t id = -1;
  explicit operator bool() const { return id >= 0; }
  bool operator==(const Scalar&) const = default;
};

using ScalarValue = std::variant<int64_t, double, bool, std::complex<double>>;

enum class ScalarOp : uint8_t {
  Const,
  Symbol,
  Add,
  Sub,
  Mul,
  CeilDiv,
  FloorDiv,
  Mod,
  Min,
  Max,  // any dtype for Add, Sub, Mul; else integers
  Div,
  Neg,
  Cast,
  Exp,
  Tanh,
  Sqrt,
  Rsqrt
};
/// Number of operands of a scalar op (0 for Const and Symbol).
int arity(ScalarOp);
std::string_view name(ScalarOp);  // "add", "ceilDiv", ...
std::optional<ScalarOp> scalarOpFromName(std::string_view);

struct ScalarNode {
  ScalarOp op = ScalarOp::Const;
  DataType dtype = DataType::Index;
  Scalar a{}, b{};                 // operands
  ScalarValue value = int64_t{0};  // Const
  int32_t tensor = -1, axis = -1;  // Symbol that is an extent: axis of tensor `tensor`
  int32_t number = -1;             // other Symbol: running number among these
};

/// Owns the scalars of one Fusion. Only integer scalars (Index, Int, Int32) may be extents.
class ScalarPool {
 public:
  Scalar constant(int64_t value) { return constant(ScalarValue(value), DataType::Index); }
  Scalar constant(ScalarValue value, DataType dtype);
  /// Extent symbol of `axis` of the tensor with id `tensor`; the same pair gives the same symbol.
  Scalar extentSymbol(int32_t tensor, int32_t axis);
  /// A fresh scalar whose value is bound at execution.
  Scalar symbol(DataType dtype);

  Scalar add(Scalar a, Scalar b) { return binary(ScalarOp::Add, a, b); }
  Scalar sub(Scalar a, Scalar b) { return binary(ScalarOp::Sub, a, b); }
  Scalar mul(Scalar a, Scalar b) { return binary(ScalarOp::Mul, a, b); }
  Scalar ceilDiv(Scalar a, Scalar b) { return binary(ScalarOp::CeilDiv, a, b); }
  /// Folds constants and the identities x*1, x+0, x-0, x*0 (integers), ceilDiv(x,1), ceilDiv(x,x),
  /// min(x,x), max(x,x). Throws Error on a division by the constant zero.
  Scalar binary(ScalarOp op, Scalar a, Scalar b);
  Scalar unary(ScalarOp op, Scalar a);
  Scalar cast(Scalar a, DataType dtype);

  const ScalarNode& node(Scalar s) const { return nodes_[static_cast<size_t>(s.id)]; }
  DataType dtype(Scalar s) const { return node(s).dtype; }
  bool isConst(Scalar s) const { return s && node(s).op == ScalarOp::Const; }
  /// Value of an integer constant.
  std::optional<int64_t> constInt(Scalar s) const;
  size_t size() const { return nodes_.size(); }

 private:
  struct Key {
    uint64_t a, b;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      uint64_t h = k.a * 0x9E3779B97F4A7C15ull;
      h = (h ^ (h >> 29)) + k.b;
      h *= 0xBF58476D1CE4E5B9ull;
      return static_cast<size_t>(h ^ (h >> 32));
    }
  };
  Scalar intern(Key key, const ScalarNode& node);

  std::vector<ScalarNode> nodes_;
  std::unordered_map<Key, int32_t, KeyHash> index_;
  int32_t symbols_ = 0;
};

/// Value of `op` on constants; integers are combined in 64 bits, an overflow is an Error.
ScalarValue evaluateOp(ScalarOp op, DataType dtype, const ScalarValue& a, const ScalarValue& b);
/// `value` converted to the C++ type that represents `dtype`.
ScalarValue castValue(const ScalarValue& value, DataType dtype);
/// The same for a value that `dtype` can hold; Error when it would be changed: a fraction, inf or
/// nan for an integer, a number out of range, a complex number for a real type.
ScalarValue exactValue(const ScalarValue& value, DataType dtype);
double toDouble(const ScalarValue&);
int64_t toInt(const ScalarValue&);
DataType dtypeOf(const ScalarValue&);  // Int, Double, Bool or ComplexDouble
std::string toString(const ScalarValue&);

}  // namespace meshfuse
