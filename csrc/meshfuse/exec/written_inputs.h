// SPDX-License-Identifier: BSD-3-Clause
// Inputs whose memory takes a result (add_output's alias_input): which of them share elements.
#pragma once
#include <meshfuse/exec/kernel_argument_holder.h>
#include <meshfuse/plan/plan.h>

#include <span>

namespace meshfuse {

/// Whether an element of `a` lies in the memory of an element of `b`. Exact for every layout; where
/// the tensors interleave it looks at each element.
bool shareElements(const at::Tensor& a, const at::Tensor& b);

/// Throws Error where two of the inputs that `plan` overwrites share elements, of which only one
/// result would remain, or where torch forbids to write into one (made in inference mode).
void checkWrittenInputs(const Plan& plan, std::span<const InputValue> inputs, int64_t device);

}  // namespace meshfuse
