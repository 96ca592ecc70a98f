// SPDX-License-Identifier: BSD-3-Clause
// Repeats loop transforms of one tensor on another, some axes of which stand for axes of the first.
#pragma once
#include <meshfuse/ir/tensor_view.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshfuse {

/// For each axis of a tensor, by its index, the index of the axis of another tensor that stands for
/// it; -1 where none does.
using AxisMap = std::vector<int32_t>;

/// The transforms of the schedule that lead to the loop axes `axes`, as a mask over
/// domain.transforms(); those between root and logical are not among them.
std::vector<bool> transformsLeadingTo(const TensorDomain& domain, std::span<const int32_t> axes);

/// Adds to `map` the results of those transforms of `reference` that `tv` has as well.
void extendMap(const TensorView* reference, const TensorView* tv, AxisMap& map);

/// What keeps `wanted` transforms of `reference` from being repeated on `tv`: a clause that names
/// the axis; nullopt when nothing does. Changes nothing.
std::optional<std::string> whyNotReplayed(const TensorView* reference, const TensorView* tv,
                                          AxisMap map, const std::vector<bool>& wanted);

/// Repeats the `wanted` transforms of `reference` on the loop axes of `tv`, as far as `map` has
/// their operands, and adds their results to `map`. Transforms that `tv` has already stay. Throws
/// Error where whyNotReplayed has a reason.
void replayTransforms(const TensorView* reference, TensorView* tv, AxisMap& map,
                      const std::vector<bool>& wanted);

/// Brings the loop axes of `tv` that stand for `axes` in the order of these; other axes keep their
/// places.
void orderLoopLike(std::span<const int32_t> axes, TensorView* tv, const AxisMap& map);

}  // namespace meshfuse
