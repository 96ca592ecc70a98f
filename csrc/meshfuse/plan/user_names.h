// SPDX-License-Identifier: BSD-3-Clause
// Messages about tensors that passes made, in the names of the user's program.
#pragma once
#include <meshfuse/base/error.h>
#include <meshfuse/ir/fusion.h>

namespace meshfuse {

/// The user's tensor that `tv` stands for in a program after the passes: the source of a copy that
/// a pass inserted; of a piece of a cut operation, the result that is made of it. nullptr if there
/// is none. `user_tensors`: how many tensors the program had before the passes; theirs are the
/// first ids.
const TensorView* userTensor(const TensorView* tv, size_t user_tensors);

/// The error with names of tensors that passes made replaced. Notes of what was compiled stay.
Error withUserNames(const Error& error, const Fusion& compiled, size_t user_tensors);

}  // namespace meshfuse
