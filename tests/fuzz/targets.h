// SPDX-License-Identifier: BSD-3-Clause
// What is fuzzed. A target takes any bytes; it aborts, by an exception that is none of a user's
// mistakes or by a wrong result, where it has found a fault.
#pragma once
#include <cstddef>
#include <cstdint>

namespace meshfuse::fuzz {

/// Reads the bytes as IR text. What is read is printed, read again, and must be the same.
void parseIrText(const uint8_t* data, size_t size);

/// Makes a small program of the bytes, divides its tensors over a mesh, compiles it, and runs it on
/// the simulated mesh, where each result must equal that of the program without a mesh.
void scheduleProgram(const uint8_t* data, size_t size);

}  // namespace meshfuse::fuzz
