// SPDX-License-Identifier: BSD-3-Clause
// Elementwise functions of two operands: one row of a table each.
#include <meshfuse/ops/integer_division.h>
#include <meshfuse/ops/pointwise.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/fmod.h>
#include <ATen/ops/gcd.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nextafter.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sub.h>

namespace meshfuse {
namespace {

using at::Tensor;

Tensor divide(const Tensor& a, const Tensor& b) {
  const bool integers =
      at::isIntegralType(a.scalar_type(), true) && at::isIntegralType(b.scalar_type(), true);
  if (!integers) return at::div(a, b);
  return quotient(a, b, [](const Tensor& x, const Tensor& y) { return at::div(x, y, "trunc"); });
}
Tensor floorDivide(const Tensor& a, const Tensor& b) { return quotient(a, b, at::floor_divide); }
Tensor truncatedRemainder(const Tensor& a, const Tensor& b) { return remainderOf(a, b, at::fmod); }
Tensor flooredRemainder(const Tensor& a, const Tensor& b) {
  return remainderOf(a, b, at::remainder);
}
Tensor plus(const Tensor& a, const Tensor& b) { return at::add(a, b); }
Tensor minus(const Tensor& a, const Tensor& b) { return at::sub(a, b); }

Scalar trueDivide(ScalarPool& pool, Scalar a, Scalar b) {
  const DataType type = pool.dtype(a);
  const bool integer = isIntegral(type) || type == DataType::Bool;
  return pool.binary(ScalarOp::Div, integer ? pool.cast(a, DataType::Double) : a, b);
}

const BinaryRow kBinary[] = {
    {.name = "add",
     .rule = TypeRule::Arithmetic,
     .doc = "lhs + rhs.",
     .compute = plus,
     .rounds_once = true},
    {.name = "sub",
     .rule = TypeRule::Arithmetic,
     .doc = "lhs - rhs.",
     .compute = minus,
     .rounds_once = true},
    {.name = "mul",
     .rule = TypeRule::Arithmetic,
     .doc = "lhs * rhs.",
     .compute = at::mul,
     .rounds_once = true},
    {"div", TypeRule::Arithmetic, "lhs / rhs; integers truncate towards zero.", divide,
     Accepts::Any, nullptr, true},
    {"truediv", TypeRule::Float, "lhs / rhs in floating point.",
     [](const Tensor& a, const Tensor& b) { return at::div(a, b); }, Accepts::Any, trueDivide},
    {"floor_divide", TypeRule::Arithmetic, "lhs / rhs, rounded down.", floorDivide, Accepts::Any,
     [](ScalarPool& pool, Scalar a, Scalar b) { return pool.binary(ScalarOp::FloorDiv, a, b); },
     true},
    {"fmod", TypeRule::Arithmetic, "Remainder of lhs / rhs with the sign of lhs.",
     truncatedRemainder, Accepts::Any, nullptr, true},
    {"mod", TypeRule::Arithmetic, "lhs % rhs, as in Python: the remainder has the sign of rhs.",
     flooredRemainder, Accepts::Any, nullptr, true},
    {"remainder", TypeRule::Arithmetic, "The same as mod.", flooredRemainder, Accepts::Any,
     [](ScalarPool& pool, Scalar a, Scalar b) { return pool.binary(ScalarOp::Mod, a, b); }, true},
    {.name = "gcd",
     .rule = TypeRule::Arithmetic,
     .doc = "Greatest common divisor of integers.",
     .compute = at::gcd,
     .accepts = Accepts::Integers,
     .one_device = true},
    {.name = "nextafter",
     .rule = TypeRule::Arithmetic,
     .doc = "The next number after lhs towards rhs, in Float or Double.",
     .compute = at::nextafter,
     .accepts = Accepts::FloatOrDouble,
     .one_device = true},
    {"pow", TypeRule::Arithmetic, "lhs to the power rhs.",
     [](const Tensor& a, const Tensor& b) { return at::pow(a, b); }},
    {"maximum", TypeRule::Arithmetic, "The larger one; nan if either is nan.", at::maximum,
     Accepts::Any,
     [](ScalarPool& pool, Scalar a, Scalar b) { return pool.binary(ScalarOp::Max, a, b); }},
    {"minimum", TypeRule::Arithmetic, "The smaller one; nan if either is nan.", at::minimum,
     Accepts::Any,
     [](ScalarPool& pool, Scalar a, Scalar b) { return pool.binary(ScalarOp::Min, a, b); }},
    {"atan2", TypeRule::Float, "Angle of the point (rhs, lhs).", at::atan2},
    {"eq", TypeRule::Compare, "lhs == rhs.",
     [](const Tensor& a, const Tensor& b) { return at::eq(a, b); }},
    {"ne", TypeRule::Compare, "lhs != rhs.",
     [](const Tensor& a, const Tensor& b) { return at::ne(a, b); }},
    {"lt", TypeRule::Compare, "lhs < rhs.",
     [](const Tensor& a, const Tensor& b) { return at::lt(a, b); }},
    {"le", TypeRule::Compare, "lhs <= rhs.",
     [](const Tensor& a, const Tensor& b) { return at::le(a, b); }},
    {"gt", TypeRule::Compare, "lhs > rhs.",
     [](const Tensor& a, const Tensor& b) { return at::gt(a, b); }},
    {"ge", TypeRule::Compare, "lhs >= rhs.",
     [](const Tensor& a, const Tensor& b) { return at::ge(a, b); }},
    {.name = "logical_and",
     .rule = TypeRule::Compare,
     .doc = "True where both are nonzero.",
     .compute = at::logical_and,
     .one_device = true},
    {.name = "logical_or",
     .rule = TypeRule::Compare,
     .doc = "True where either is nonzero.",
     .compute = at::logical_or,
     .one_device = true},
};

const bool kRegistered = registerBinary(kBinary);

}  // namespace
}  // namespace meshfuse
