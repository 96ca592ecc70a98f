// SPDX-License-Identifier: BSD-3-Clause
// Elementwise ops without attributes: one row of a table each.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/pointwise.h>
#include <meshfuse/ops/torch_types.h>

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/add.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>

namespace meshfuse {
namespace {

using at::Tensor;
using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

struct UnaryRow {
  const char* name;
  TypeRule rule;
  const char* doc;
  Unary compute;
};
struct BinaryRow {
  const char* name;
  TypeRule rule;
  const char* doc;
  Binary compute;
};

Tensor divide(const Tensor& a, const Tensor& b) {
  const bool integers =
      at::isIntegralType(a.scalar_type(), true) && at::isIntegralType(b.scalar_type(), true);
  return integers ? at::div(a, b, "trunc") : at::div(a, b);
}
Tensor plus(const Tensor& a, const Tensor& b) { return at::add(a, b); }
Tensor minus(const Tensor& a, const Tensor& b) { return at::sub(a, b); }

const UnaryRow kUnary[] = {
    {"abs", TypeRule::KeepReal, "Absolute value.", at::abs},
    {"ceil", TypeRule::Keep, "Smallest integer not less than x.", at::ceil},
    {"floor", TypeRule::Keep, "Largest integer not greater than x.", at::floor},
    {"round", TypeRule::Keep, "Nearest integer, halves to even.",
     [](const Tensor& x) { return at::round(x); }},
    {"trunc", TypeRule::Keep, "Integer part.", at::trunc},
    {"sign", TypeRule::Keep, "-1, 0 or 1.", at::sign},
    {"relu", TypeRule::Keep, "max(x, 0).", at::relu},
    {"silu", TypeRule::Keep, "x * sigmoid(x).", at::silu},
    {"neg", TypeRule::Arithmetic, "-x.", at::neg},
    {"exp", TypeRule::Float, "e to the power x.", at::exp},
    {"exp2", TypeRule::Float, "2 to the power x.", at::exp2},
    {"expm1", TypeRule::Float, "exp(x) - 1.", at::expm1},
    {"log", TypeRule::Float, "Natural logarithm.", at::log},
    {"log10", TypeRule::Float, "Logarithm to base 10.", at::log10},
    {"log1p", TypeRule::Float, "log(1 + x).", at::log1p},
    {"log2", TypeRule::Float, "Logarithm to base 2.", at::log2},
    {"sin", TypeRule::Float, "Sine.", at::sin},
    {"cos", TypeRule::Float, "Cosine.", at::cos},
    {"tan", TypeRule::Float, "Tangent.", at::tan},
    {"sinh", TypeRule::Float, "Hyperbolic sine.", at::sinh},
    {"cosh", TypeRule::Float, "Hyperbolic cosine.", at::cosh},
    {"tanh", TypeRule::Float, "Hyperbolic tangent.", at::tanh},
    {"asin", TypeRule::Float, "Inverse sine.", at::asin},
    {"acos", TypeRule::Float, "Inverse cosine.", at::acos},
    {"atan", TypeRule::Float, "Inverse tangent.", at::atan},
    {"erf", TypeRule::Float, "Error function.", at::erf},
    {"erfc", TypeRule::Float, "1 - erf(x).", at::erfc},
    {"sqrt", TypeRule::Float, "Square root.", at::sqrt},
    {"rsqrt", TypeRule::Float, "1 / sqrt(x).", at::rsqrt},
    {"reciprocal", TypeRule::Float, "1 / x.", at::reciprocal},
    {"sigmoid", TypeRule::Float, "1 / (1 + exp(-x)).", at::sigmoid},
    {"logical_not", TypeRule::Compare, "True where x is zero.", at::logical_not},
    {"isfinite", TypeRule::Compare, "True where x is neither infinite nor nan.", at::isfinite},
    {"isinf", TypeRule::Compare, "True where x is infinite.", at::isinf},
    {"isnan", TypeRule::Compare, "True where x is nan.", at::isnan},
};

const BinaryRow kBinary[] = {
    {"add", TypeRule::Arithmetic, "lhs + rhs.", plus},
    {"sub", TypeRule::Arithmetic, "lhs - rhs.", minus},
    {"mul", TypeRule::Arithmetic, "lhs * rhs.", at::mul},
    {"div", TypeRule::Arithmetic, "lhs / rhs; integers truncate towards zero.", divide},
    {"truediv", TypeRule::Float, "lhs / rhs in floating point.",
     [](const Tensor& a, const Tensor& b) { return at::div(a, b); }},
    {"pow", TypeRule::Arithmetic, "lhs to the power rhs.",
     [](const Tensor& a, const Tensor& b) { return at::pow(a, b); }},
    {"maximum", TypeRule::Arithmetic, "The larger one; nan if either is nan.", at::maximum},
    {"minimum", TypeRule::Arithmetic, "The smaller one; nan if either is nan.", at::minimum},
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
    {"logical_and", TypeRule::Compare, "True where both are nonzero.", at::logical_and},
    {"logical_or", TypeRule::Compare, "True where either is nonzero.", at::logical_or},
};

/// Operand `x` in the type to compute in: 16-bit and 8-bit floats are widened first.
Tensor widened(const Tensor& x, TypeRule rule) {
  if (rule != TypeRule::Arithmetic && rule != TypeRule::Float) return x;
  const auto type = x.scalar_type();
  const bool narrow = at::isReducedFloatingType(type) || c10::isFloat8Type(type);
  return narrow ? x.to(at::kFloat) : x;
}

struct UnaryOp final : PointwiseOp {
  explicit UnaryOp(const UnaryRow& table_row) : row(table_row) {}
  OpInfo info() const override {
    return {.name = row.name, .params = {tensorOrScalar("arg")}, .doc = row.doc};
  }
  DataType dtype(const OpCall& call) const override {
    return applyRule(row.rule, promotedType(call));
  }
  Scalar onScalars(const OpCall& call) const override {
    const auto op = scalarOpFromName(row.name);
    return op ? call.fusion().scalars().unary(*op, call.scalar(0)) : Scalar{};
  }
  void evaluate(const OpCall&, const Operands& io) const override {
    io.out() = row.compute(widened(io[0], row.rule));
  }
  const UnaryRow& row;
};

struct BinaryOp final : PointwiseOp {
  explicit BinaryOp(const BinaryRow& table_row) : row(table_row) {}
  OpInfo info() const override {
    return {
        .name = row.name, .params = {tensorOrScalar("lhs"), tensorOrScalar("rhs")}, .doc = row.doc};
  }
  DataType dtype(const OpCall& call) const override {
    return applyRule(row.rule, promotedType(call));
  }
  Scalar onScalars(const OpCall& call) const override {
    const auto op = scalarOpFromName(row.name);
    return op ? call.fusion().scalars().binary(*op, call.scalar(0), call.scalar(1)) : Scalar{};
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    if (call.isTensor(0) && call.isTensor(1)) {
      io.out() = row.compute(widened(io[0], row.rule), widened(io[1], row.rule));
    } else if (call.isTensor(0)) {
      io.out() = row.compute(widened(io[0], row.rule), wrappedNumber(call.value(1)));
    } else {
      io.out() = row.compute(wrappedNumber(call.value(0)), widened(io[0], row.rule));
    }
  }
  const BinaryRow& row;
};

int category(DataType t) {  // Bool < integers < floats < complex
  if (isComplex(t)) return 3;
  if (isFloating(t)) return 2;
  return isIntegral(t) ? 1 : 0;
}

const bool kRegistered = [] {
  for (const UnaryRow& row : kUnary) registerOp(std::make_unique<UnaryOp>(row));
  for (const BinaryRow& row : kBinary) registerOp(std::make_unique<BinaryOp>(row));
  return true;
}();

}  // namespace

DataType promotedType(const OpCall& call) {
  DataType tensors = DataType::Null, scalars = DataType::Null;
  for (const TensorView* tv : call.tensors()) tensors = promoteTypes(tensors, tv->dtype());
  for (const Arg& arg : call.args()) {
    const auto* s = std::get_if<Scalar>(&arg);
    if (s != nullptr) scalars = promoteTypes(scalars, call.fusion().scalars().dtype(*s));
  }
  if (scalars == DataType::Null || category(scalars) <= category(tensors)) return tensors;
  if (category(scalars) == 3) {
    return tensors == DataType::Double ? DataType::ComplexDouble : DataType::ComplexFloat;
  }
  return category(scalars) == 2 ? DataType::Float : DataType::Int;
}

DataType applyRule(TypeRule rule, DataType promoted) {
  switch (rule) {
    case TypeRule::Compare:
      return DataType::Bool;
    case TypeRule::Keep:
      return promoted;
    case TypeRule::KeepReal:
      if (!isComplex(promoted)) return promoted;
      return promoted == DataType::ComplexFloat ? DataType::Float : DataType::Double;
    case TypeRule::Float:
      if (!isFloating(promoted) && !isComplex(promoted)) return DataType::Float;
      [[fallthrough]];
    default:
      return isReducedFloating(promoted) ? DataType::Float : promoted;
  }
}

FactorMap PointwiseOp::factors(const OpCall& call) const {
  std::string formula;
  for (size_t i = 0; i < call.tensors().size(); ++i) formula += i == 0 ? "..." : ",...";
  return einsum(call, formula + "->...");
}

}  // namespace meshfuse
