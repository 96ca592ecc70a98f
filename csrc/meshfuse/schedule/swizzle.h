// SPDX-License-Identifier: BSD-3-Clause
// The order in which devices walk through an axis.
#pragma once
#include <meshfuse/ir/tensor_view.h>

namespace meshfuse {

/// Lets every device walk through loop axis `axis` from its own place on mesh axis `p` on, round
/// the ring: iteration j of the device with team index t is index (j + t) mod size
/// (semantics 5.10). The values do not change. Returns `tv`. Throws Error when the axis is a
/// reduction or on a mesh axis, when `p` is no mesh axis, and when its size is known and not the
/// number of devices there.
TensorView* swizzle1d(TensorView* tv, int64_t axis, ParallelType p);

}  // namespace meshfuse
