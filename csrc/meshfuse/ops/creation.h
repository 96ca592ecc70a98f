// SPDX-License-Identifier: BSD-3-Clause
// What ops share that make a tensor from scalars: factors of a list of sizes, and where the tensor
// is made.
#pragma once
#include <meshfuse/ops/op_def.h>

#include <ATen/core/Tensor.h>

namespace meshfuse {

/// Factors of one result with the global sizes that argument `param` lists, integers and Scalars;
/// the constant 1 makes a broadcast axis. Throws Error naming the entry that is no size.
FactorMap sizesAsFactors(const OpCall& call, size_t param);

/// Type and device of result `i` of an op that has no operand to take them from.
at::TensorOptions optionsOfResult(const OpCall& call, size_t i);

/// Checks the parameters rng_seed, at `seed`, and rng_offset, which follows it: both or neither,
/// integers. Throws Error.
void checkSeed(const OpCall& call, size_t seed);

}  // namespace meshfuse
