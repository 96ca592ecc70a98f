// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/integer_division.h>
#include <meshfuse/ops/pointwise.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>

namespace meshfuse {
namespace {

using at::Tensor;

/// Whether torch divides `a` by `b` as signed integers, by the processor's own division.
bool dividesIntegers(const Tensor& a, const Tensor& b) {
  const at::ScalarType type = at::result_type(a, b);
  return at::isIntegralType(type, false) && type != at::kUInt64 && b.is_cpu();
}

/// What is divided, for messages.
std::string dividendText(const OpCall& call) {
  return call.isTensor(0) ? concat(AtTensor{call.tensor(0)->name()})
                          : toString(call.fusion(), call.scalar(0));
}

}  // namespace

void checkDivisor(const OpCall& call) {
  if (call.isTensor(1) || !isIntegral(promotedType(call))) return;
  MESHFUSE_CHECK(call.fusion().scalars().constInt(call.scalar(1)) != 0, call.op().name(), ": ",
                 dividendText(call),
                 " is divided by 0, and integers have no quotient by it. Use another divisor, or "
                 "cast to a floating point type.");
}

void checkDivisor(const OpCall& call, const Tensor& dividend, const Tensor& divisor) {
  if (!dividesIntegers(dividend, divisor) || dividend.numel() == 0) return;
  // In the type of the quotient: a number that does not fit there may be 0 in it.
  const Tensor zero = at::eq(divisor.to(at::result_type(dividend, divisor)), 0);
  if (!zero.any().item<bool>()) return;
  if (!call.isTensor(1)) {
    fail(call.op().name(), ": ", dividendText(call), " is divided by ",
         toString(call.fusion(), call.scalar(1)),
         ", which is 0, and integers have no quotient by it. Give another number, or cast to a "
         "floating point type.");
  }
  const Tensor place = at::nonzero(zero);
  const c10::IntArrayRef first(static_cast<const int64_t*>(place.const_data_ptr()),
                               static_cast<size_t>(divisor.dim()));
  fail(call.op().name(), ": ", at(call.tensor(1)), " is 0 at ", first,
       " of this device's part, and ", dividendText(call),
       " are integers, which have no quotient by 0. Give divisors that are not 0, or cast to a "
       "floating point type.");
}

Tensor quotient(const Tensor& a, const Tensor& b, Division divide) {
  if (!dividesIntegers(a, b)) return divide(a, b);
  const at::ScalarType type = at::result_type(a, b);
  const Tensor divisor = b.to(type), minus_one = at::eq(divisor, -1);
  if (!minus_one.any().item<bool>()) return divide(a, b);
  return at::where(minus_one, at::neg(a.to(type)), divide(a, divisor.masked_fill(minus_one, 1)));
}

Tensor remainderOf(const Tensor& a, const Tensor& b, Division divide) {
  if (!dividesIntegers(a, b)) return divide(a, b);
  const Tensor divisor = b.to(at::result_type(a, b)), minus_one = at::eq(divisor, -1);
  if (!minus_one.any().item<bool>()) return divide(a, b);
  return divide(a, divisor.masked_fill(minus_one, 1));  // by 1 it is 0 too, and does not overflow
}

}  // namespace meshfuse
