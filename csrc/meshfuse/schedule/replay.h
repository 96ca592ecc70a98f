// SPDX-License-Identifier: BSD-3-Clause
#pragma once
#include <meshfuse/schedule/sharding.h>

namespace meshfuse {

/// Repeats a path of splits on the axis `id` of `tv`'s loop domain and puts the piece that the path
/// ends at on `p`. `id` must not be transformed yet, or by the same splits. Returns false, without
/// a change, when it is transformed in another way.
bool replayPath(TensorView* tv, int32_t id, std::span<const PathStep> path, ParallelType p);

}  // namespace meshfuse
