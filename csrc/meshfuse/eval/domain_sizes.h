// SPDX-License-Identifier: BSD-3-Clause
// Concrete extents of every axis of a tensor: as declared over all devices, and on one device.
#pragma once
#include <meshfuse/ir/tensor_view.h>

#include <functional>
#include <span>
#include <vector>

namespace meshfuse {

/// Value of an integer scalar, or nullopt.
using ScalarLookup = std::function<std::optional<int64_t>(Scalar)>;

/// Extents by axis index. Axes that come from reductions have no sizes (-1).
struct DomainSizes {
  SmallVector<int64_t, 6> global;  // as if there were one device
  SmallVector<int64_t, 6> local;   // part of one device: at most 1 for device axes

  int64_t localOf(int32_t id) const { return local[static_cast<size_t>(id)]; }
  int64_t globalOf(int32_t id) const { return global[static_cast<size_t>(id)]; }
};

/// Follows the splits and merges of `tv` from its global logical sizes (reductions left out).
/// Throws Error when an axis that is divided over devices does not divide evenly, or a device's
/// part of merged axes is not a rectangle (semantics 2.5, 2.6). In an uneven program an axis that
/// one split divides over devices may have any size (semantics 5.7): `device` is then whose part it
/// is; -1 stands for the first, which has a whole chunk.
DomainSizes domainSizes(const TensorView* tv, std::span<const int64_t> global_shape,
                        const ScalarLookup& lookup, int64_t device = -1);

/// Part of an axis that the device at place `index` of `devices` has of an axis of `extent`
/// elements in chunks of ceilDiv(extent, devices): the last ones may have less, or nothing.
struct Chunk {
  int64_t begin, size;
};
Chunk chunkOf(int64_t extent, int64_t devices, int64_t index);

/// Whether `split`, of an axis of `extent` elements by `factor`, cuts it unevenly over devices and
/// may do so.
bool isUnevenCut(const TensorView* tv, const Transform& split, int64_t extent, int64_t factor);

}  // namespace meshfuse
