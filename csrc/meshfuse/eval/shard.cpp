// SPDX-License-Identifier: BSD-3-Clause
// A device's part of a global tensor, and the global tensor from all parts.
#include <meshfuse/base/error.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/eval/domain_sizes.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>
#include <ranges>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

namespace meshfuse {
namespace {

void checkShardable(const at::Tensor& global, const TensorView* tv) {
  MESHFUSE_CHECK(tv->hasDeviceMesh(), "shard_tensor: ", at(tv),
                 " has no DeviceMesh. Call set_device_mesh on it first.");
  MESHFUSE_CHECK(global.layout() == at::kStrided && !global.is_nested(), "shard_tensor: ", at(tv),
                 " was given a sparse or nested tensor, which has no parts. Pass "
                 "tensor.to_dense(), or a padded tensor.");
  MESHFUSE_CHECK(global.dim() == tv->ndim(), "shard_tensor: a tensor of ", global.dim(),
                 " axes was given for ", at(tv), ", which has ", tv->ndim(),
                 " axes. Give the unsharded tensor.");
}

/// A tensor whose axes are axes of a TensorView's domain.
struct NamedTensor {
  at::Tensor tensor;
  std::vector<int32_t> axes;

  int64_t place(int32_t id) const { return std::ranges::find(axes, id) - axes.begin(); }
  bool has(int32_t id) const { return place(id) < static_cast<int64_t>(axes.size()); }
  /// Moves axis `second` to the place after axis `first`.
  void bringTogether(int32_t first, int32_t second) {
    const int64_t from = place(second), to = place(first) + (place(first) < from ? 1 : 0);
    tensor = tensor.movedim(from, to);
    axes.erase(axes.begin() + from);
    axes.insert(axes.begin() + to, second);
  }
  void join(int32_t first, int32_t second, int32_t joined) {
    bringTogether(first, second);
    const int64_t at = place(first);
    tensor = tensor.flatten(at, at + 1);
    axes.erase(axes.begin() + at + 1);
    axes[static_cast<size_t>(at)] = joined;
  }
  void part(int32_t whole, int32_t first, int32_t second, int64_t size1, int64_t size2) {
    const int64_t at = place(whole);
    tensor = tensor.unflatten(at, {size1, size2});
    axes[static_cast<size_t>(at)] = first;
    axes.insert(axes.begin() + at + 1, second);
  }
};

/// Transforms on the way to device axes.
std::vector<Transform> devicePath(const TensorDomain& domain) {
  const auto leads = leadsToDevice(domain);
  std::vector<Transform> path;
  for (size_t t = domain.definitionTransforms(); t < domain.transforms().size(); ++t) {
    const Transform& x = domain.transforms()[t];
    const bool on_path = leads[static_cast<size_t>(x.out[0])] ||
                         (x.kind == Transform::Split && leads[static_cast<size_t>(x.out[1])]);
    if (on_path) path.push_back(x);
  }
  return path;
}

/// The part of `global` that `device` holds, as a view where torch can express it, with the axes
/// that the splits on the way to the device axes make.
NamedTensor devicePart(const at::Tensor& global, const TensorView* tv, int64_t device) {
  const TensorDomain& domain = tv->domain();
  NamedTensor part{global, domain.withoutReductions(domain.logical())};
  std::vector<int32_t> cut;  // device axes of uneven cuts: done already
  for (const Transform& x : devicePath(domain)) {
    if (!part.has(x.in[0])) continue;
    if (x.kind == Transform::Merge) {
      part.join(x.in[0], x.in[1], x.out[0]);
      continue;
    }
    const int64_t extent = part.tensor.size(part.place(x.in[0]));
    if (domain.id(x.in[0])->isBroadcast() && extent == 1) {
      part.part(x.in[0], x.out[0], x.out[1], 1, 1);
      continue;
    }
    const auto factor = tv->fusion()->scalars().constInt(x.factor);
    MESHFUSE_CHECK(factor, "shard_tensor: an axis of ", at(tv),
                   " is split by a factor that is not a number.");
    if (isUnevenCut(tv, x, extent, *factor)) {
      const ParallelType p = domain.id(x.out[0])->getParallelType();
      const Chunk chunk =
          chunkOf(extent, *factor, tv->getDeviceMesh().indexOn(device, p).value_or(0));
      part.tensor = part.tensor.narrow(part.place(x.in[0]), chunk.begin, chunk.size);
      part.part(x.in[0], x.out[0], x.out[1], 1, chunk.size);
      cut.push_back(x.out[0]);
      continue;
    }
    MESHFUSE_CHECK(extent % *factor == 0,
                   "shard_tensor: Sharded axis must be evenly divisible by mesh; axis ",
                   AtAxis{domain.logicalPosition(x.in[0])}, " of ", at(tv), " of size ", extent,
                   " is not divisible by ", *factor, " (", tv->getDeviceMesh().toString(), " has ",
                   tv->getDeviceMesh().size(), " devices). Choose a size that ", *factor,
                   " divides, or pad the tensor first.");
    const int64_t rest = extent / *factor;
    part.part(x.in[0], x.out[0], x.out[1], x.inner ? rest : *factor, x.inner ? *factor : rest);
  }
  for (const int32_t i : domain.loop()) {
    const IterDomain* id = domain.id(i);
    if (!id->isDeviceDim() || id->isReduction()) continue;
    if (std::ranges::find(cut, i) != cut.end()) continue;
    const auto axis = part.place(i);
    if (id->isBroadcast() && part.tensor.size(axis) == 1) continue;
    const int64_t devices = tv->getDeviceMesh().size(id->getParallelType());
    MESHFUSE_CHECK(part.tensor.size(axis) == devices, "shard_tensor: axis ",
                   AtAxis{domain.logicalPosition(i)}, " of ", at(tv), " of size ",
                   part.tensor.size(axis), " is on ", id->getParallelType(), ", which has ",
                   devices,
                   " devices; Sharded axis must be evenly divisible by mesh. Give a tensor whose "
                   "size agrees.");
    const auto index = tv->getDeviceMesh().indexOn(device, id->getParallelType());
    part.tensor = part.tensor.narrow(axis, *index, 1);
  }
  return part;
}

std::vector<int64_t> sizesOutsideMesh(const at::Tensor& global, const TensorView* tv) {
  std::vector<int64_t> sizes = global.sizes().vec();
  bool divided = false;
  for (const ParallelType p : kDeviceTypes) {
    const int64_t axis = getShardedLogicalAxis(tv, p);
    if (axis < 0) continue;
    sizes[static_cast<size_t>(axis)] = 0;
    divided = true;
  }
  if (sizes.empty()) return {0};
  if (!divided) sizes[0] = 0;
  return sizes;
}

bool mergesOnPath(const TensorView* tv) {
  return std::ranges::any_of(devicePath(tv->domain()),
                             [](const Transform& t) { return t.kind == Transform::Merge; });
}

/// Undoes the transforms of devicePart: a tensor with one axis per logical axis, in logical order.
at::Tensor toLogical(NamedTensor part, const TensorView* tv, std::span<const int64_t> shape) {
  const TensorDomain& domain = tv->domain();
  const DomainSizes sizes =
      domainSizes(tv, shape, [tv](Scalar s) { return tv->fusion()->scalars().constInt(s); });
  const std::vector<Transform> path = devicePath(domain);
  for (const Transform& x : std::views::reverse(path)) {
    if (!part.has(x.out[0])) continue;
    if (x.kind == Transform::Split) {
      part.join(x.out[0], x.out[1], x.in[0]);
    } else {
      part.part(x.out[0], x.in[0], x.in[1], sizes.localOf(x.in[0]), sizes.localOf(x.in[1]));
    }
  }
  std::vector<int64_t> order;
  for (const int32_t i : domain.withoutReductions(domain.logical())) order.push_back(part.place(i));
  return part.tensor.permute(order);
}

/// `part` in contiguous memory; axes that are expanded, declared so and given so, stay expanded.
at::Tensor dense(const at::Tensor& part, const at::Tensor& global, const TensorView* tv) {
  const auto logical = tv->domain().withoutReductions(tv->domain().logical());
  at::Tensor once = part;
  for (size_t i = 0; i < logical.size(); ++i) {
    const auto axis = static_cast<int64_t>(i);
    const bool expanded = tv->domain().id(logical[i])->expandedExtent() && global.stride(axis) == 0;
    if (expanded && once.size(axis) > 1) once = once.narrow(axis, 0, 1);
  }
  return once.contiguous().expand(part.sizes());
}

}  // namespace

at::Tensor shardTensor(const at::Tensor& global, const TensorView* tv, int64_t device) {
  checkShardable(global, tv);
  if (!tv->getDeviceMesh().has(device)) {
    return at::empty(sizesOutsideMesh(global, tv), global.options());
  }
  if (!isSharded(tv)) return dense(global, global, tv);
  const std::vector<int64_t> shape = global.sizes().vec();
  return dense(toLogical(devicePart(global, tv, device), tv, shape), global, tv);
}

std::vector<int64_t> globalPositions(const TensorView* tv, std::span<const int64_t> global,
                                     int64_t axis, int64_t device) {
  std::vector<int64_t> sizes(global.size(), 1);
  sizes[static_cast<size_t>(axis)] = -1;
  const at::Tensor line = at::arange(global[static_cast<size_t>(axis)], at::kLong).view(sizes);
  at::Tensor part = line.expand(c10::IntArrayRef(global.data(), global.size()));
  if (tv->hasDeviceMesh() && isSharded(tv)) {
    MESHFUSE_CHECK(!mergesOnPath(tv), "execute: an axis of ", at(tv),
                   " is divided over devices through a merged axis, and its elements are numbered. "
                   "Split one of the axes instead of the merged one.");
    const std::vector<int64_t> shape(global.begin(), global.end());
    part = toLogical(devicePart(part, tv, device), tv, shape);
  }
  if (part.numel() == 0) return {};
  for (int64_t i = 0; i < part.dim(); ++i) {
    if (i != axis) part = part.narrow(i, 0, 1);
  }
  part = part.contiguous();
  const auto* first = static_cast<const int64_t*>(part.const_data_ptr());
  return {first, first + part.numel()};
}

namespace {

/// Whether splits of the same form, on meshes of the same devices, divide both tensors.
bool divideAlike(const TensorView* a, const TensorView* b) {
  if (a->hasDeviceMesh() != b->hasDeviceMesh()) return false;
  if (a->hasDeviceMesh() && !(a->getDeviceMesh() == b->getDeviceMesh())) return false;
  return std::ranges::all_of(kDeviceTypes, [&](ParallelType p) {
    const auto of_a = shardedAxis(a, p), of_b = shardedAxis(b, p);
    if (!of_a || !of_b) return !of_a && !of_b;
    return !of_a->through_merge && !of_b->through_merge && of_a->logical == of_b->logical &&
           of_a->path == of_b->path;
  });
}

/// Numbers of the elements that a device holds: along each axis, or of all where axes are merged.
std::vector<std::vector<int64_t>> elementsOf(const TensorView* tv, std::span<const int64_t> global,
                                             int64_t device, bool merged) {
  std::vector<std::vector<int64_t>> found;
  if (tv->hasDeviceMesh() && !tv->getDeviceMesh().has(device)) return found;
  if (!merged) {
    for (int64_t axis = 0; axis < std::ssize(global); ++axis)
      found.push_back(globalPositions(tv, global, axis, device));
    return found;
  }
  const c10::IntArrayRef shape(global.data(), global.size());
  at::Tensor part = at::arange(c10::multiply_integers(shape), at::kLong).view(shape);
  if (tv->hasDeviceMesh() && isSharded(tv)) {
    part = toLogical(devicePart(part, tv, device), tv, shape.vec());
  }
  part = part.contiguous();
  const auto* first = static_cast<const int64_t*>(part.const_data_ptr());
  found.emplace_back(first, first + part.numel());
  return found;
}

}  // namespace

std::optional<int64_t> deviceWithOtherElements(const TensorView* a, const TensorView* b,
                                               std::span<const int64_t> global) {
  if (divideAlike(a, b)) return std::nullopt;
  const bool merged = mergesOnPath(a) || mergesOnPath(b);
  std::vector<int64_t> devices;
  for (const TensorView* tv : {a, b}) {
    if (!tv->hasDeviceMesh()) continue;
    const auto& of_mesh = tv->getDeviceMesh().vector();
    devices.insert(devices.end(), of_mesh.begin(), of_mesh.end());
  }
  const auto differs = [&](int64_t device) {
    return elementsOf(a, global, device, merged) != elementsOf(b, global, device, merged);
  };
  const auto it = std::ranges::find_if(devices, differs);
  return it == devices.end() ? std::nullopt : std::optional(*it);
}

at::Tensor shardTensor1D(const at::Tensor& global, int64_t axis, const DeviceMesh& mesh,
                         int64_t device) {
  const int64_t n = global.dim();
  MESHFUSE_CHECK(axis >= -n && axis < n, "shard_tensor: axis ", AtAxis{axis},
                 " is out of range for a tensor of ", n, " axes. Use ", -n, " to ", n - 1, ".");
  const int64_t wrapped = axis < 0 ? axis + n : axis;
  const int64_t extent = global.size(wrapped);
  MESHFUSE_CHECK(extent % mesh.size() == 0,
                 "shard_tensor: Sharded axis must be evenly divisible by "
                 "mesh; axis ",
                 AtAxis{axis}, " has size ", extent, " and ", mesh.toString(), " has ", mesh.size(),
                 " devices. Choose a size that ", mesh.size(),
                 " divides, or pad the tensor first.");
  const int64_t part = extent / mesh.size();
  const int64_t index = mesh.linearIndexOf(device);
  if (index < 0) {
    std::vector<int64_t> sizes = global.sizes().vec();
    sizes[static_cast<size_t>(wrapped)] = 0;
    return at::empty(sizes, global.options());
  }
  return global.narrow(wrapped, index * part, part).contiguous();
}

at::Tensor unshardTensor(std::span<const at::Tensor> parts, std::span<const int64_t> devices,
                         const TensorView* tv) {
  const DeviceMesh& mesh = tv->getDeviceMesh();
  const auto inMesh = [&](size_t i) { return mesh.empty() || mesh.has(devices[i]); };
  size_t first = 0;
  while (first < parts.size() && !inMesh(first)) ++first;
  MESHFUSE_CHECK(first < parts.size(), "unshard_tensor: none of the devices holds a part of ",
                 at(tv), " (", mesh.toString(), ").");
  if (mesh.empty() || !isSharded(tv)) return parts[first];
  const auto local = parts[first].sizes();
  const std::vector<int64_t> shape = unshardedSizes(tv, std::span(local.data(), local.size()));
  at::Tensor global = at::empty(shape, parts[first].options());
  const bool by_index = mergesOnPath(tv);
  at::Tensor numbers;
  if (by_index) numbers = at::arange(global.numel(), global.options().dtype(at::kLong)).view(shape);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!inMesh(i)) continue;
    if (by_index) {
      global.view(-1).index_copy_(0, shardTensor(numbers, tv, devices[i]).flatten(),
                                  parts[i].flatten());
    } else {
      at::Tensor view = devicePart(global, tv, devices[i]).tensor;
      view.copy_(parts[i].reshape(view.sizes()));
    }
  }
  return global;
}

}  // namespace meshfuse
