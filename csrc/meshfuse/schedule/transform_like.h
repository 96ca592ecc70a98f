// SPDX-License-Identifier: BSD-3-Clause
// Schedules of one tensor carried over to others. Axes correspond where operations run over both of
// them by the same factors (loops); of several ways to a tensor the one that loses fewest axes is
// taken. Axes without a counterpart are left alone.
#pragma once
#include <meshfuse/ir/tensor_view.h>

#include <vector>

namespace meshfuse {

/// Repeats the splits, merges and order of the loop axes of `reference` on the tensors connected to
/// it, or on those of `selected` when that is not empty. Throws Error, before anything is changed,
/// when a tensor is split, merged or parallelized in another way.
void transformLike(TensorView* reference, const std::vector<TensorView*>& selected = {});

/// Gives the loop axes of other tensors the parallel types of the first `pos` loop axes of
/// `reference` (negative: counted from the end, -1 being all) that they correspond to; of all types
/// but Serial, or of `types` when that is not empty. Tensors: `selected`, or all that are no inputs
/// of the program. A tensor without a mesh that gets a mesh axis gets the mesh of `reference`.
/// Throws Error when a tensor has the mesh axis on another axis, or its mesh does not fit.
void parallelizeLike(TensorView* reference, int64_t pos = -1,
                     const std::vector<TensorView*>& selected = {},
                     const std::vector<ParallelType>& types = {});

/// Repeats the transforms that lead to the first `pos` loop axes of `from` on the tensors between
/// `to` and `from`, both excluded, and their parallel types if asked for. Throws Error when `from`
/// does not depend on a tensor of `to`, and where transformLike does.
void boundedTransformBackward(TensorView* from, int64_t pos, const std::vector<TensorView*>& to,
                              bool propagate_parallel_type = false);

}  // namespace meshfuse
