// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ir/device_mesh.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace meshfuse {
namespace {

constexpr size_t kShownInLists = 32;
constexpr int64_t kPrintedWhole = 4096;  // devices of a mesh

/// Long lists are cut: every rank prints them in its message.
std::string listText(const std::vector<int64_t>& values) {
  const size_t shown = values.size() > kShownInLists ? kShownInLists / 2 : values.size();
  std::string text = "[";
  for (size_t i = 0; i < shown; ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  if (shown < values.size()) text += concat(" and ", values.size() - shown, " more");
  return text + "]";
}

void printNested(std::string& out, const DeviceMesh& mesh, size_t dim, int64_t& next) {
  out += '{';
  const int64_t n = mesh.shape()[dim];
  const bool last = dim + 1 == mesh.shape().size();
  for (int64_t i = 0; i < n; ++i) {
    if (last) {
      out += (i > 0 ? " " : "") + std::to_string(mesh.at(next++));
    } else {
      printNested(out, mesh, dim + 1, next);
    }
  }
  out += '}';
}

}  // namespace

DeviceMesh::DeviceMesh(std::initializer_list<int64_t> ids)
    : DeviceMesh(std::vector<int64_t>(ids)) {}

DeviceMesh::DeviceMesh(const std::vector<int64_t>& ids, const std::vector<int64_t>& shape,
                       const std::vector<std::string>& names)
    : ids_(ids), shape_(shape), names_(names) {
  if (shape_.empty()) shape_ = {static_cast<int64_t>(ids.size())};
  MESHFUSE_CHECK(!ids_.empty(),
                 "DeviceMesh: the list of devices is empty. Name at least one "
                 "device, for example DeviceMesh([0]).");
  MESHFUSE_CHECK(size() <= kMaxDevices, "DeviceMesh: ", size(), " devices were given, at most ",
                 kMaxDevices, " are possible. Give less devices.");
  MESHFUSE_CHECK(shape_.size() <= 3, "DeviceMesh: a mesh of ", shape_.size(),
                 " dimensions was given, at most 3 (mesh_z, mesh_y, mesh_x) are possible. Merge "
                 "some dimensions.");
  for (const int64_t n : shape_) {
    MESHFUSE_CHECK(n > 0, "DeviceMesh: shape ", listText(shape_), " has an axis of ", n,
                   " devices. Every mesh axis needs at least one device.");
  }
  const int64_t count =
      std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>());
  MESHFUSE_CHECK(count == size(), "DeviceMesh: shape ", listText(shape_), " holds ", count,
                 " devices, but ", size(), " were given: ", listText(ids_),
                 ". Give as many devices as the shape holds.");
  std::unordered_set<int64_t> seen;
  for (const int64_t id : ids_) {
    MESHFUSE_CHECK(id >= 0, "DeviceMesh: device ", id, " of ", listText(ids_),
                   " is negative. Devices are numbered from 0.");
    MESHFUSE_CHECK(id < kMaxDevices, "DeviceMesh: device ", id,
                   " is too large. Devices are numbered ", "from 0, at most ", kMaxDevices - 1,
                   ".");
    MESHFUSE_CHECK(seen.insert(id).second, "DeviceMesh: found duplicates: device ", id,
                   " stands more than once in ", listText(ids_), ". Name each device once.");
  }
  MESHFUSE_CHECK(names_.empty() || names_.size() == shape_.size(), "DeviceMesh: ", names_.size(),
                 " names were given for ", shape_.size(),
                 " mesh axes. Give one name per mesh axis, outermost first.");
  for (size_t i = 0; i < names_.size(); ++i) {
    MESHFUSE_CHECK(std::count(names_.begin(), names_.end(), names_[i]) == 1,
                   "DeviceMesh: the name '", names_[i],
                   "' stands for more than one mesh axis. Use distinct names.");
    for (const ParallelType p : kDeviceTypes) {
      MESHFUSE_CHECK(names_[i] != pythonName(p) || axisOf(p) == static_cast<int64_t>(i),
                     "DeviceMesh: axis ", i, " is named '", names_[i],
                     "', which means another axis of the mesh. Use a name of your own.");
    }
  }
}

DeviceMesh DeviceMesh::createForNumDevices(int64_t n) { return createForShape({n}); }

DeviceMesh DeviceMesh::createForShape(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t n : shape) {
    MESHFUSE_CHECK(n > 0, "DeviceMesh: shape ", listText(shape), " has an axis of ", n,
                   " devices. Every mesh axis needs at least one device.");
    count = n > kMaxDevices / count ? kMaxDevices + 1 : count * n;
    MESHFUSE_CHECK(count <= kMaxDevices, "DeviceMesh: shape ", listText(shape), " has more than ",
                   kMaxDevices, " devices, the most that are possible. Give less devices.");
  }
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return DeviceMesh(ids, shape);
}

int64_t DeviceMesh::axisOf(ParallelType p) const {
  if (!isDeviceType(p) || empty()) return -1;
  const int64_t axis = rank() - 1 - meshAxisOffset(p);
  return axis < 0 ? -1 : axis;
}

int64_t DeviceMesh::size(ParallelType p) const {
  const int64_t axis = axisOf(p);
  MESHFUSE_CHECK(axis >= 0, toString(), " (rank ", rank(), ") does not have parallel type ",
                 pythonName(p), ". Use a mesh with more dimensions, or another mesh axis.");
  return shape_[static_cast<size_t>(axis)];
}

int64_t DeviceMesh::linearIndexOf(int64_t device) const {
  const auto it = std::ranges::find(ids_, device);
  return it == ids_.end() ? -1 : it - ids_.begin();
}

std::vector<int64_t> DeviceMesh::multiDimensionalIndexOf(int64_t device) const {
  int64_t linear = linearIndexOf(device);
  if (linear < 0) return {};
  std::vector<int64_t> index(shape_.size());
  for (size_t i = shape_.size(); i-- > 0;) {
    index[i] = linear % shape_[i];
    linear /= shape_[i];
  }
  return index;
}

std::optional<int64_t> DeviceMesh::indexOn(int64_t device, ParallelType p) const {
  const int64_t axis = axisOf(p);
  const auto index = multiDimensionalIndexOf(device);
  if (axis < 0 || index.empty()) return std::nullopt;
  return index[static_cast<size_t>(axis)];
}

std::optional<ParallelType> DeviceMesh::axisNamed(const std::string& name) const {
  for (const ParallelType p : kDeviceTypes) {
    const int64_t axis = axisOf(p);
    if (axis >= 0 && !names_.empty() && names_[static_cast<size_t>(axis)] == name) return p;
  }
  return std::nullopt;
}

std::vector<int64_t> DeviceMesh::getSlice(int64_t device, ParallelType p) const {
  const int64_t n = size(p);
  const auto axis = static_cast<size_t>(axisOf(p));
  const auto index = multiDimensionalIndexOf(device);
  MESHFUSE_CHECK(!index.empty(), "getSlice: device ", device, " is not in ", toString(),
                 ". Ask for a device of the mesh.");
  int64_t stride = 1;
  for (size_t i = axis + 1; i < shape_.size(); ++i) stride *= shape_[i];
  const int64_t first = linearIndexOf(device) - index[axis] * stride;
  std::vector<int64_t> slice;
  slice.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) slice.push_back(at(first + i * stride));
  return slice;
}

int64_t DeviceMesh::maxDeviceId() const { return empty() ? -1 : *std::ranges::max_element(ids_); }

std::string DeviceMesh::toString() const {
  std::string out = "DeviceMesh";
  if (empty()) return out + "{}";
  if (size() > kPrintedWhole) {
    return concat(out, "{", size(), " devices of shape ", listText(shape_), ", from ", ids_.front(),
                  " to ", ids_.back(), "}");
  }
  int64_t next = 0;
  printNested(out, *this, 0, next);
  return out;
}

}  // namespace meshfuse
