// SPDX-License-Identifier: BSD-3-Clause
// Elementwise functions of one operand: one row of a table each.
#include <meshfuse/ops/pointwise.h>

#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/acosh.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/asinh.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/atanh.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/frac.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/isposinf.h>
#include <ATen/ops/isreal.h>
#include <ATen/ops/lgamma.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/signbit.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/special_ndtri.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>

namespace meshfuse {
namespace {

using at::Tensor;

/// Through the inverse of the normal distribution, which has all digits where 1 - x has lost those
/// of x. In double throughout.
Tensor inverseErfc(const Tensor& x) {
  if (x.is_complex()) return at::erfinv(x);  // torch refuses, in its words
  return at::special_ndtri(x.to(at::kDouble) * 0.5) * -std::numbers::sqrt2 * 0.5;
}

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
    {"frac", TypeRule::Keep, "x minus its integer part.", at::frac},
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
    {"asinh", TypeRule::Float, "Inverse hyperbolic sine.", at::asinh},
    {"acosh", TypeRule::Float, "Inverse hyperbolic cosine.", at::acosh},
    {"atanh", TypeRule::Float, "Inverse hyperbolic tangent.", at::atanh},
    {"erf", TypeRule::Float, "Error function.", at::erf},
    {"erfc", TypeRule::Float, "1 - erf(x).", at::erfc},
    {"erfinv", TypeRule::Float, "The y with erf(y) = x.", at::erfinv},
    {"erfcinv", TypeRule::Float, "The y with erfc(y) = x.", inverseErfc},
    {"lgamma", TypeRule::Float, "Logarithm of the absolute value of the gamma function.",
     at::lgamma},
    {"sqrt", TypeRule::Float, "Square root.", at::sqrt},
    {"rsqrt", TypeRule::Float, "1 / sqrt(x).", at::rsqrt},
    {"reciprocal", TypeRule::Float, "1 / x.", at::reciprocal},
    {"sigmoid", TypeRule::Float, "1 / (1 + exp(-x)).", at::sigmoid},
    {"logical_not", TypeRule::Compare, "True where x is zero.", at::logical_not},
    {"isfinite", TypeRule::Compare, "True where x is neither infinite nor nan.", at::isfinite},
    {"isinf", TypeRule::Compare, "True where x is infinite.", at::isinf},
    {"isnan", TypeRule::Compare, "True where x is nan.", at::isnan},
    {"isneginf", TypeRule::Compare, "True where x is -inf.",
     [](const Tensor& x) { return at::isneginf(x); }},
    {"isposinf", TypeRule::Compare, "True where x is +inf.",
     [](const Tensor& x) { return at::isposinf(x); }},
    {"isreal", TypeRule::Compare, "True where the imaginary part of x is zero.", at::isreal},
    {"signbit", TypeRule::Compare, "True where x is negative, -0.0 included.",
     [](const Tensor& x) { return at::signbit(x); }},
};

const bool kRegistered = registerUnary(kUnary);

}  // namespace
}  // namespace meshfuse
