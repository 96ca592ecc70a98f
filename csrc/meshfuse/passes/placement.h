// SPDX-License-Identifier: BSD-3-Clause
// How a tensor lies on its mesh, as a value that passes can compare, combine and put on another
// tensor.
#pragma once
#include <meshfuse/ir/device_mesh.h>
#include <meshfuse/schedule/sharding.h>

#include <array>
#include <vector>

namespace meshfuse {

/// How a tensor is divided over one mesh axis: a non-reduction logical axis, and the path of splits
/// on it that ends at the device axis.
struct Placement {
  int64_t axis = -1;  // -1: whole
  SplitPath path;
  bool whole() const { return axis < 0; }
  bool operator==(const Placement&) const = default;
};

/// Placements over all mesh axes, and the mesh.
struct MeshState {
  const DeviceMesh* mesh = nullptr;
  std::array<Placement, kDeviceTypes.size()> placements;

  Placement& on(ParallelType p) { return placements[static_cast<size_t>(meshAxisOffset(p))]; }
  const Placement& on(ParallelType p) const {
    return placements[static_cast<size_t>(meshAxisOffset(p))];
  }
  bool operator==(const MeshState& other) const {
    const bool same =
        mesh == nullptr || other.mesh == nullptr ? mesh == other.mesh : *mesh == *other.mesh;
    return same && placements == other.placements;
  }
};

/// Whether both meshes have axis `p`, with as many devices.
bool sameDevices(const DeviceMesh& a, const DeviceMesh& b, ParallelType p);

/// Throws Error when an axis is divided through a merged one.
Placement placementOf(const TensorView* tv, ParallelType p);
MeshState stateOf(const TensorView* tv);

/// Whether one tensor can have all the placements: those on one axis are pieces of one tree of
/// splits.
bool fitTogether(const MeshState& state);

/// Puts mesh and placements on a tensor whose axes are not transformed yet. Throws Error when they
/// do not fit together.
void putState(TensorView* tv, const MeshState& state);

/// Non-reduction logical axis at `position`.
int32_t axisAt(const TensorView* tv, int64_t position);

}  // namespace meshfuse
