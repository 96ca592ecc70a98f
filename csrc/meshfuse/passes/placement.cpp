// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/passes/placement.h>
#include <meshfuse/schedule/replay.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// Two paths on one axis are pieces of one tree, and neither ends inside the other.
bool apart(const SplitPath& a, const SplitPath& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].inner_split != b[i].inner_split || !(a[i].factor == b[i].factor)) return false;
    if (a[i].outer_half != b[i].outer_half) return true;
  }
  return false;
}

}  // namespace

bool sameDevices(const DeviceMesh& a, const DeviceMesh& b, ParallelType p) {
  return a.hasParallelType(p) && b.hasParallelType(p) && a.size(p) == b.size(p);
}

Placement placementOf(const TensorView* tv, ParallelType p) {
  const auto axis = shardedAxis(tv, p);
  if (!axis) return {};
  const IterDomain* id = tv->domain().id(axis->id);
  if (id->isBroadcast() && !id->expandedExtent()) return {};  // divides nothing
  MESHFUSE_CHECK(
      !axis->through_merge, "decompose-resharding: an axis of ", at(tv), " is divided over ", p,
      " through a merged axis, and it would have to be divided in another way. Split one "
      "of the axes instead of the merged one.");
  return {axis->logical, axis->path};
}

MeshState stateOf(const TensorView* tv) {
  MeshState state;
  if (tv->hasDeviceMesh()) state.mesh = &tv->getDeviceMesh();
  for (const ParallelType p : kDeviceTypes) state.on(p) = placementOf(tv, p);
  return state;
}

bool fitTogether(const MeshState& state) {
  for (size_t i = 0; i < state.placements.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const Placement &a = state.placements[i], &b = state.placements[k];
      if (!a.whole() && a.axis == b.axis && !apart(a.path, b.path)) return false;
    }
  }
  return true;
}

void putState(TensorView* tv, const MeshState& state) {
  if (state.mesh != nullptr) tv->setDeviceMesh(*state.mesh);
  for (const ParallelType p : kDeviceTypes) {
    const Placement& want = state.on(p);
    if (want.whole()) continue;
    MESHFUSE_CHECK(replayPath(tv, axisAt(tv, want.axis), want.path, p),
                   "decompose-resharding: axis ", AtAxis{want.axis}, " of ", at(tv),
                   " cannot be divided over ", p,
                   " beside its other splits. Use outer splits of whole axes.");
  }
}

int32_t axisAt(const TensorView* tv, int64_t position) {
  return tv->domain().withoutReductions(tv->domain().logical())[static_cast<size_t>(position)];
}

}  // namespace meshfuse
