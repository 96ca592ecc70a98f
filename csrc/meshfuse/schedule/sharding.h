// SPDX-License-Identifier: BSD-3-Clause
// The analysis of DID loop splits: over which logical axis, and by which path of splits, a tensor
// is divided for a mesh axis. Everything that asks "is it sharded, and how?" asks here.
#pragma once
#include <meshfuse/ir/tensor_view.h>

#include <optional>
#include <vector>

namespace meshfuse {

enum class DomainKind : uint8_t { Loop, Allocation };

/// One step from a logical axis down to the device axis.
struct PathStep {
  bool outer_half;   // which half of the split was taken
  bool inner_split;  // whether the split fixed the extent of its inner half
  Scalar factor;
  bool operator==(const PathStep&) const = default;
};

using SplitPath = SmallVector<PathStep, 4>;

/// How a tensor is divided over one mesh axis.
struct ShardedAxis {
  int32_t id = -1;       // the device axis in the domain
  int64_t logical = -1;  // position among the non-reduction logical axes; -1 through a merge
  SplitPath path;        // from the logical axis down; empty: the logical axis itself
  bool through_merge = false;
};

/// The non-reduction axis with parallel type `p`, traced to its logical axis; nullopt when the
/// tensor is not divided over `p`. Throws Error when two such axes exist.
std::optional<ShardedAxis> shardedAxis(const TensorView* tv, ParallelType p,
                                       DomainKind domain = DomainKind::Loop);
/// Its id alone.
std::optional<int32_t> deviceAxis(const TensorView* tv, ParallelType p,
                                  DomainKind domain = DomainKind::Loop);
/// The same for reduction axes: a request for a reduction across the mesh axis.
std::optional<int32_t> reducedAxis(const TensorView* tv, ParallelType p);

/// Some non-reduction loop axis is on the mesh. Throws Error when two share a mesh axis.
bool isSharded(const TensorView* tv);
/// Position of the tensor axis (reductions not counted) whose loop descendant has `p`; -1 if none.
int64_t getShardedLogicalAxis(const TensorView* tv, ParallelType p);

/// Whether memory order equals logical order, DID axes aside (semantics 2.2). Static.
bool hasTrivialAllocationDomain(const TensorView* tv);

/// Memory order over logical axes with all splits undone; nullopt when there is none
/// (semantics 2.3).
struct CanonicalAxis {
  int32_t id;
  std::optional<bool> contiguity;
};
std::optional<std::vector<CanonicalAxis>> canonicalLayout(const TensorView* tv);

/// The memory order as TensorView::setStrideOrder takes it; empty when it is row-major or when
/// canonicalLayout has none.
std::vector<int64_t> strideOrderOf(const TensorView* tv);

/// Ids below which some loop axis is a device axis, as a mask over domain().ids().
SmallVector<bool, 8> leadsToDevice(const TensorDomain& domain);

/// Makes allocation the memory order with the DID splits of the loop repeated in place. Throws
/// Error on merges of axes that are not neighbours in memory (semantics 2.7.7). Returns whether
/// anything changed.
bool alignAllocationWithLoop(TensorView* tv);

}  // namespace meshfuse
