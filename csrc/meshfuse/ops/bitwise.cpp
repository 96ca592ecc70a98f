// SPDX-License-Identifier: BSD-3-Clause
// Elementwise functions of the bits of integers: one row of a table each.
#include <meshfuse/ops/pointwise.h>

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>

namespace meshfuse {
namespace {

using at::Tensor;

/// torch has no shift of unsigned numbers: the bits that the sign filled are cleared.
Tensor logicalRightShift(const Tensor& a, const Tensor& b) {
  const at::ScalarType type = at::result_type(a, b);
  const Tensor bits = a.to(type), by = b.to(type);
  const int64_t largest =
      type == at::kInt ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max();
  const Tensor kept = at::bitwise_right_shift(at::Scalar(largest), by - 1);
  return at::where(by == 0, bits, at::bitwise_and(at::bitwise_right_shift(bits, by), kept));
}

const UnaryRow kUnary[] = {
    {"bitwise_not", TypeRule::Keep, "Every bit inverted; of Bool, logical not.", at::bitwise_not,
     Accepts::IntegersAndBool},
};

const BinaryRow kBinary[] = {
    {"bitwise_and", TypeRule::Keep, "Bits that are set in both.",
     [](const Tensor& a, const Tensor& b) { return at::bitwise_and(a, b); },
     Accepts::IntegersAndBool},
    {"bitwise_or", TypeRule::Keep, "Bits that are set in either.",
     [](const Tensor& a, const Tensor& b) { return at::bitwise_or(a, b); },
     Accepts::IntegersAndBool},
    {"bitwise_xor", TypeRule::Keep, "Bits that are set in one of the two.",
     [](const Tensor& a, const Tensor& b) { return at::bitwise_xor(a, b); },
     Accepts::IntegersAndBool},
    {"bitwise_left_shift", TypeRule::Keep, "lhs shifted by rhs bits to the left.",
     [](const Tensor& a, const Tensor& b) { return at::bitwise_left_shift(a, b); },
     Accepts::Integers},
    {"bitwise_right_shift", TypeRule::Keep,
     "lhs shifted by rhs bits to the right; the sign fills up.",
     [](const Tensor& a, const Tensor& b) { return at::bitwise_right_shift(a, b); },
     Accepts::Integers},
    {"logical_right_shift", TypeRule::Keep, "lhs shifted by rhs bits to the right; zeros fill up.",
     logicalRightShift, Accepts::Integers},
};

const bool kRegistered = registerUnary(kUnary) && registerBinary(kBinary);

}  // namespace
}  // namespace meshfuse
