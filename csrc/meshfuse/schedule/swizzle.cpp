// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ir/fusion.h>
#include <meshfuse/ir/verifier.h>
#include <meshfuse/schedule/swizzle.h>

namespace meshfuse {

TensorView* swizzle1d(TensorView* tv, int64_t axis, ParallelType p) {
  const IterDomain* id = tv->axis(axis);
  MESHFUSE_CHECK(isDeviceType(p), "swizzle1d: ", p, " is no mesh axis, and axis ", AtAxis{axis},
                 " of ", at(tv), " was to be swizzled over it. Use mesh_x, mesh_y or mesh_z.");
  MESHFUSE_CHECK(!id->isReduction() && !id->isBroadcast(), "swizzle1d: axis ", AtAxis{axis}, " of ",
                 at(tv), " is a ", id->isReduction() ? "reduction" : "broadcast",
                 ", which has no order. Name another axis.");
  const ParallelType before = id->swizzle();
  tv->domain().setSwizzle(id->index(), p);
  try {
    verify(tv);
  } catch (...) {
    tv->domain().setSwizzle(id->index(), before);
    throw;
  }
  tv->fusion()->bumpVersion();
  return tv;
}

}  // namespace meshfuse
