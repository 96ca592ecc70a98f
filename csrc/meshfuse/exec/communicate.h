// SPDX-License-Identifier: BSD-3-Clause
// Communication steps of a plan: from local tensors to the buffers of a collective and back.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/plan/plan.h>

#include <span>
#include <vector>

namespace meshfuse {

/// Runs the step for the local devices of `comm` that are in its mesh: in[i] is the operand on
/// devices[i]; returns the results in the same order, not yet in their wanted layout.
std::vector<at::Tensor> communicate(const CommunicationStep& step, Communicator& comm,
                                    std::span<const int64_t> devices,
                                    std::span<const at::Tensor> in);

}  // namespace meshfuse
