// SPDX-License-Identifier: BSD-3-Clause
// The axes of one tensor: root -> logical -> loop, and the allocation order. Axes are named by
// their index in ids(); the transforms between the lists are an ordered list, not a graph of nodes.
#pragma once
#include <meshfuse/base/small_vector.h>
#include <meshfuse/ir/iter_domain.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace meshfuse {

class Fusion;

/// Split: in[0] -> out[0] (outer), out[1] (inner); `factor` is the extent of the inner half when
/// `inner`, else of the outer half. Merge: in[0] (outer), in[1] (inner) -> out[0].
struct Transform {
  enum Kind : uint8_t { Split, Merge } kind = Split;
  bool inner = true;
  int32_t in[2] = {-1, -1};
  int32_t out[2] = {-1, -1};
  Scalar factor{};

  bool operator==(const Transform&) const = default;
};

using AxisList = SmallVector<int32_t, 4>;  // indices of axes
using IdList = SmallVector<IterDomain*, 4>;
using Contiguity = SmallVector<std::optional<bool>, 8>;  // nullopt: broadcast and reduction axes

class TensorDomain {
 public:
  TensorDomain() = default;

  /// Adds an axis; it is in no list yet.
  int32_t newId(Fusion& fusion, TensorView* tensor, Scalar extent, IterType type,
                Scalar expanded = {}, bool rfactor = false);
  /// Makes `ids` the logical axes, and loop equal to them.
  void setLogical(AxisList ids);
  /// Makes `root` the root axes; all transforms recorded so far lead from root to logical.
  void setRoot(AxisList root);
  void setLoop(AxisList loop) { loop_ = std::move(loop); }
  /// Sets the memory order, outermost first. `contiguity` has one entry per id.
  void setAllocation(AxisList ids, Contiguity contiguity);
  void clearAllocation();
  void setContiguity(Contiguity contiguity) { contiguity_ = std::move(contiguity); }

  /// Records a split of `in` and returns (outer, inner); lists are not changed. `factor` as in
  /// Transform. Both halves inherit the kind of axis; an expanded broadcast gives its expansion to
  /// the half that is not the factor (semantics 1.4).
  std::pair<int32_t, int32_t> split(Fusion& fusion, int32_t in, Scalar factor, bool inner);
  int32_t merge(Fusion& fusion, int32_t outer, int32_t inner);

  IterDomain* id(int32_t i) const { return ids_[static_cast<size_t>(i)]; }
  std::span<IterDomain* const> ids() const { return ids_; }
  std::span<const Transform> transforms() const { return transforms_; }
  /// Transforms [0, definitionTransforms()) lead from root to logical; the rest is schedule.
  size_t definitionTransforms() const { return definition_transforms_; }
  /// Transform that made an id, or nullptr.
  const Transform* definition(int32_t i) const;

  bool hasRoot() const { return !root_.empty(); }
  const AxisList& root() const { return root_.empty() ? logical_ : root_; }
  const AxisList& logical() const { return logical_; }
  const AxisList& loop() const { return loop_; }
  bool hasAllocation() const { return allocation_is_set_; }
  /// The allocation if set, else the logical axes.
  const AxisList& allocation() const { return allocation_is_set_ ? allocation_ : logical_; }
  /// One entry per allocation() axis.
  const Contiguity& contiguity() const { return contiguity_; }
  IdList idsOf(const AxisList& list) const;
  AxisList withoutReductions(const AxisList& list) const;

  /// Position, among the logical axes that are reductions or those that are not, of the axis that
  /// axis `i` comes from (through merges: of the first operand's).
  int64_t logicalPosition(int32_t i) const;
  /// Whether `list` stands for the same elements as the logical axes: every logical axis is reached
  /// exactly once through splits and merges (broadcast axes may be missing).
  bool coversLogical(const AxisList& list) const;

  void parallelize(int32_t i, ParallelType p) { id(i)->parallel_ = p; }
  void setSwizzle(int32_t i, ParallelType p) { id(i)->swizzle_ = p; }
  /// Sets the kind of an axis and whether it is an rfactor product; for readers of text.
  void setRFactor(int32_t i, IterType type, bool rfactor) {
    id(i)->type_ = type;
    id(i)->rfactor_ = rfactor;
  }
  /// Gives the axis of index i the index `to[i]`, everywhere; `to` is a permutation.
  void renumber(std::span<const int32_t> to);
  /// Copies everything of `other` into this empty domain, with new axes in `fusion`. Extents are
  /// copied as handles: both fusions must share the numbering of scalars.
  void copyFrom(Fusion& fusion, TensorView* tensor, const TensorDomain& other);
  /// Turns the reduction loop axes `kept` into iteration axes: logical becomes root, the transforms
  /// below the reduction axes they come from become part of the definition, and their pieces take
  /// the places of these axes in logical and allocation (semantics 1.5).
  void rfactor(const AxisList& kept);
  /// Contiguity list where every axis has `flag`, broadcast and reduction axes none.
  Contiguity uniformContiguity(const AxisList& list, bool flag) const;

 private:
  IdList ids_;
  std::vector<Transform> transforms_;
  AxisList root_, logical_, loop_, allocation_;
  Contiguity contiguity_;
  uint32_t definition_transforms_ = 0;
  bool allocation_is_set_ = false;
};

}  // namespace meshfuse
