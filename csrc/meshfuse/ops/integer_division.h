// SPDX-License-Identifier: BSD-3-Clause
// What the division of integers needs that of other numbers does not: a divisor that is not 0, and
// a quotient where the least integer is divided by -1.
#pragma once
#include <meshfuse/ops/op_def.h>

namespace meshfuse {

/// Throws Error when the divisor, the second argument of a pointwise op, is the constant 0 and the
/// operands are integers.
void checkDivisor(const OpCall& call);
/// The same at evaluation, for every element: `divisor` is the second operand.
void checkDivisor(const OpCall& call, const at::Tensor& dividend, const at::Tensor& divisor);

using Division = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

/// `divide(a, b)`, a quotient. By -1 the least integer gives itself, as -a does; the processor
/// faults on it.
at::Tensor quotient(const at::Tensor& a, const at::Tensor& b, Division divide);
/// `divide(a, b)`, a remainder. By -1 it is 0.
at::Tensor remainderOf(const at::Tensor& a, const at::Tensor& b, Division divide);

}  // namespace meshfuse
