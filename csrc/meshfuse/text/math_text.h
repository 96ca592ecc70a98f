// SPDX-License-Identifier: BSD-3-Clause
// The mathematics of a Fusion for people and scripts that compare it, as Python's print_math gives
// it (python docs, "Printing"). It leaves out what parseIr needs; see ir_text.h for that.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <string>

namespace meshfuse {

/// Inputs, outputs, and one assignment per operation: those that the outputs need, or all.
std::string mathText(const Fusion& fusion, bool from_outputs_only = true);

}  // namespace meshfuse
