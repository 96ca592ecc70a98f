// SPDX-License-Identifier: BSD-3-Clause
// Copies of tensors inserted into a program, as places for a schedule of their own.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <vector>

namespace meshfuse {

/// Inserts c = set(tv), which the operations `cached_uses` read instead of `tv`; all that read it
/// when the list is empty. `tv` stays an output where it is one. The new tensor has no mesh and no
/// transforms, and the memory order of `tv` if `propagate_allocation_domain`. Returns it. Throws
/// Error when nothing reads `tv`, when an operation of the list does not, and for the first half of
/// an rfactor.
TensorView* cacheAfter(TensorView* tv, bool propagate_allocation_domain = true,
                       const std::vector<Expr*>& cached_uses = {});

/// Makes `tv` set(c) where c, which is returned, takes its definition, axes and schedule. `tv`
/// keeps its mesh and the schedule of the axes that are no reductions. Throws Error when `tv` is an
/// input of the program, and for the first half of an rfactor.
TensorView* cacheBefore(TensorView* tv);

/// Puts set(tv), which is returned, in the place of `tv` among the outputs of the program; what
/// reads `tv` still does. The new tensor is as that of cacheAfter. Throws Error when `tv` is no
/// output, and when nothing reads it.
TensorView* cacheFork(TensorView* tv);

}  // namespace meshfuse
