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
  std::vector<int64_t> global;  // as if there were one device
  std::vector<int64_t> local;   // part of one device: 1 for device axes

  int64_t localOf(int32_t id) const { return local[static_cast<size_t>(id)]; }
  int64_t globalOf(int32_t id) const { return global[static_cast<size_t>(id)]; }
};

/// Follows the splits and merges of `tv` from its global logical sizes (reductions left out).
/// Throws Error when an axis that is divided over devices does not divide evenly, or a device's
/// part of merged axes is not a rectangle (semantics 2.5, 2.6).
DomainSizes domainSizes(const TensorView* tv, std::span<const int64_t> global_shape,
                        const ScalarLookup& lookup);

}  // namespace meshfuse
