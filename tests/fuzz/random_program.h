// SPDX-License-Identifier: BSD-3-Clause
// Small programs made of a fuzzer's choices.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <memory>

#include "choices.h"

namespace meshfuse::fuzz {

/// One to three inputs of doubles with up to three axes, and up to six operations whose results on
/// small whole numbers are exact. Calls that the library refuses are left out.
std::shared_ptr<Fusion> randomProgram(Choices& choices);

/// Meshes, splits, merges, orders, memory layouts, rfactors and copies of the program's tensors;
/// calls that the library refuses are left out. Returns the number of devices.
int64_t randomSchedule(Fusion& fusion, Choices& choices);

}  // namespace meshfuse::fuzz
