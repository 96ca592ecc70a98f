// SPDX-License-Identifier: BSD-3-Clause
// Which elements of a tensor each device must get from which other one, for any two divisions of it
// over any two meshes.
#pragma once
#include <meshfuse/eval/domain_sizes.h>

#include <cstdint>
#include <span>
#include <vector>

namespace meshfuse {

/// Positions on one axis of a local tensor: a range, or a list.
struct AxisPart {
  int64_t start = 0, length = 0;
  std::vector<int64_t> list;  // empty: the range
};

/// A box of elements that goes from one device to another, or stays on one.
struct Piece {
  int64_t from, to;
  std::vector<AxisPart> source, target;  // per axis, positions in the local tensors
  bool fills_target = false;             // it is all that the receiver gets, in order
};

/// Pieces that make up what every device of `out`'s mesh holds of the tensor, from what those of
/// `in`'s mesh hold. A device that holds an element itself takes it from itself; copies on several
/// devices are asked in turn. Both tensors have global sizes `shape`. Throws Error when an axis is
/// divided through a merged one.
std::vector<Piece> planExchange(const TensorView* in, const TensorView* out,
                                std::span<const int64_t> shape, const ScalarLookup& lookup);

}  // namespace meshfuse
