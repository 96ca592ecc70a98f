// SPDX-License-Identifier: BSD-3-Clause
// Local sizes and strides from the allocation domain; global and local shapes; a device's part of a
// global tensor and back.
#pragma once
#include <meshfuse/eval/expression_evaluator.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace meshfuse {

/// Sizes and strides of the local tensor, in logical order, reductions left out: the dense tensor
/// in memory order with every extent replaced by its local part (semantics 2.4, 3.1). Throws Error
/// when an extent is not known or not divisible, or a logical axis would need two strides.
Layout localLayout(const TensorView* tv, const ExpressionEvaluator& ee);
std::pair<std::vector<int64_t>, std::vector<int64_t>> inferShapeOfOutput(
    const TensorView* tv, const ExpressionEvaluator& ee);
/// Sizes in allocation order, reductions left out, device axes 1: the buffer before the walk back
/// to logical axes.
std::vector<int64_t> inferAllocationShape(const TensorView* tv, const ExpressionEvaluator& ee);

/// Whether a tensor must be copied to have the wanted layout: sizes are compared exactly, strides
/// only on axes longer than 1, and not at all for empty tensors.
bool needsRelayout(const at::Tensor& actual, const Layout& want);

/// Global sizes of a tensor whose local part has sizes `local` (semantics 3.1).
std::vector<int64_t> unshardedSizes(const TensorView* tv, std::span<const int64_t> local);
/// Local sizes, on `device` where they differ (uneven programs; -1: on the first one), of a tensor
/// whose global sizes are `global`. Throws Error when not divisible.
std::vector<int64_t> shardedSizes(const TensorView* tv, std::span<const int64_t> global,
                                  int64_t device = -1);

/// Throws Error unless the strides of a local tensor are what the contiguity flags promise.
void checkContiguity(const TensorView* tv, const at::Tensor& local, int64_t position,
                     int64_t device = -1);

/// This device's part of a global tensor, contiguous (semantics 2.5, 3.4). A device outside the
/// mesh gets size 0 on every sharded axis. Throws Error when `tv` has no mesh or does not divide
/// evenly.
at::Tensor shardTensor(const at::Tensor& global, const TensorView* tv, int64_t device);
/// Places in the global tensor, whose sizes are `global`, of the elements along `axis` of the part
/// that `device` holds; empty when it holds none. Throws Error when an axis is divided through a
/// merged one: places along one axis then depend on the others.
std::vector<int64_t> globalPositions(const TensorView* tv, std::span<const int64_t> global,
                                     int64_t axis, int64_t device);
/// A device that holds other elements of the one tensor than of the other; nullopt where all hold
/// the same. Both have the global sizes `global`.
std::optional<int64_t> deviceWithOtherElements(const TensorView* a, const TensorView* b,
                                               std::span<const int64_t> global);
/// Outer block of `axis` over the flattened mesh.
at::Tensor shardTensor1D(const at::Tensor& global, int64_t axis, const DeviceMesh& mesh,
                         int64_t device);
/// Global tensor from the parts of all devices: parts[i] belongs to device devices[i]; parts of
/// devices outside the mesh are ignored.
at::Tensor unshardTensor(std::span<const at::Tensor> parts, std::span<const int64_t> devices,
                         const TensorView* tv);

}  // namespace meshfuse
