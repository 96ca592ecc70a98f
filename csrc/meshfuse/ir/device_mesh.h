// SPDX-License-Identifier: BSD-3-Clause
// A dense array of distinct device ids, of one to three dimensions. The last dimension is mesh_x,
// the one before it mesh_y, the one before that mesh_z.
#pragma once
#include <meshfuse/base/types.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshfuse {

class DeviceMesh {
 public:
  /// No devices: "not a multi-device tensor"; rank() is -1.
  DeviceMesh() = default;
  DeviceMesh(std::initializer_list<int64_t> ids);
  /// Throws Error when a device is negative, not below kMaxDevices or named twice, when the mesh is
  /// empty, when `shape` does not hold ids.size() devices, or has more than three dimensions.
  /// `names`: one name per dimension, or empty.
  explicit DeviceMesh(const std::vector<int64_t>& ids, const std::vector<int64_t>& shape = {},
                      const std::vector<std::string>& names = {});
  static DeviceMesh createForNumDevices(int64_t n);
  static DeviceMesh createForShape(const std::vector<int64_t>& shape);

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  /// Devices along mesh axis `p`. Throws Error when the mesh has no such axis.
  int64_t size(ParallelType p) const;
  int64_t rank() const { return empty() ? -1 : static_cast<int64_t>(shape_.size()); }
  bool empty() const { return ids_.empty(); }
  std::span<const int64_t> shape() const { return shape_; }
  const std::vector<int64_t>& vector() const { return ids_; }
  const std::vector<std::string>& names() const { return names_; }
  bool has(int64_t device) const { return linearIndexOf(device) >= 0; }
  /// Position of a device in row-major order, -1 when absent.
  int64_t linearIndexOf(int64_t device) const;
  /// Coordinates, outermost mesh axis first; empty when the device is absent.
  std::vector<int64_t> multiDimensionalIndexOf(int64_t device) const;
  /// Coordinate of a device on mesh axis `p`, or nullopt when the device or the axis is absent.
  std::optional<int64_t> indexOn(int64_t device, ParallelType p) const;
  int64_t at(int64_t index) const { return ids_.at(static_cast<size_t>(index)); }
  bool hasParallelType(ParallelType p) const { return axisOf(p) >= 0; }
  /// Dimension of `shape()` that is mesh axis `p`; -1 when the mesh has no such axis.
  int64_t axisOf(ParallelType p) const;
  /// Mesh axis with a user's name, if any.
  std::optional<ParallelType> axisNamed(const std::string& name) const;
  /// Devices that differ from `device` only along mesh axis `p`, in mesh order.
  std::vector<int64_t> getSlice(int64_t device, ParallelType p) const;
  int64_t maxDeviceId() const;
  std::string toString() const;  // "DeviceMesh{0 1 2 3}", "DeviceMesh{{0 1}{2 3}}"

  bool operator==(const DeviceMesh& o) const {
    return this == &o || (ids_ == o.ids_ && shape_ == o.shape_);
  }

 private:
  std::vector<int64_t> ids_, shape_;
  std::vector<std::string> names_;
};

}  // namespace meshfuse
