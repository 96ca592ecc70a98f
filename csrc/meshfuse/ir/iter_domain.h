// SPDX-License-Identifier: BSD-3-Clause
// One axis of a tensor's domain.
#pragma once
#include <meshfuse/base/scalar.h>
#include <meshfuse/base/types.h>

namespace meshfuse {

class Fusion;
class TensorView;

/// An axis. Lives in its Fusion with a stable address; `index()` numbers it within its tensor.
class IterDomain {
 public:
  Scalar extent() const { return extent_; }
  /// Size that an expanded broadcast pretends to have; absent when not expanded.
  Scalar expandedExtent() const { return expanded_; }
  /// Extent counted in elements of the tensor: the expanded one if there is one.
  Scalar getMaybeExpandedExtent() const { return expanded_ ? expanded_ : extent_; }
  IterType iterType() const { return type_; }
  ParallelType getParallelType() const { return parallel_; }
  bool isReduction() const { return type_ == IterType::Reduction; }
  bool isBroadcast() const { return type_ == IterType::Broadcast; }
  bool isDeviceDim() const { return isDeviceType(parallel_); }
  bool isStream() const { return parallel_ == ParallelType::Stream; }
  bool isParallelized() const { return parallel_ != ParallelType::Serial; }
  /// Mesh axis in whose order a device walks through the axis: it begins at its own place in the
  /// team and goes round (semantics 5.10). Serial: from 0 on, as everywhere.
  ParallelType swizzle() const { return swizzle_; }
  bool isSwizzled() const { return swizzle_ != ParallelType::Serial; }
  /// Made by an rfactor or a reshape: part of the definition, not of the schedule.
  bool isRFactorProduct() const { return rfactor_; }
  int32_t index() const { return index_; }
  /// Counts the axes of the whole Fusion in order of creation; printed by toString().
  int32_t number() const { return number_; }
  TensorView* tensor() const { return tensor_; }

  /// Sets the parallel type of a loop axis, with the checks of TensorView::parallelize.
  void parallelize(ParallelType p);

 private:
  friend class Fusion;
  friend class TensorDomain;
  friend class TensorView;
  TensorView* tensor_ = nullptr;
  Scalar extent_, expanded_;
  int32_t index_ = -1, number_ = -1;
  int32_t definition_ = -1;  // transform that made it, in its TensorDomain
  IterType type_ = IterType::Iteration;
  ParallelType parallel_ = ParallelType::Serial;
  ParallelType swizzle_ = ParallelType::Serial;
  bool rfactor_ = false;
};

}  // namespace meshfuse
