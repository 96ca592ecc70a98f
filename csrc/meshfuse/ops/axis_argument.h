// SPDX-License-Identifier: BSD-3-Clause
// Axes that are given as arguments of ops.
#pragma once
#include <meshfuse/ir/tensor_view.h>

#include <span>
#include <string_view>
#include <vector>

namespace meshfuse {

/// `axis` of a tensor, negative ones counted from the end. Throws Error when there is none.
int64_t wrappedAxis(std::string_view op, const TensorView* tv, int64_t axis);

/// The axes that an op reduces, wrapped, in the order given. Throws Error when one does not exist
/// or is given twice.
std::vector<int64_t> wrappedReductionAxes(std::string_view op, const TensorView* tv,
                                          std::span<const int64_t> axes);

/// The axes that are no reductions.
std::vector<IterDomain*> axesWithoutReductions(const TensorView* tv);

}  // namespace meshfuse
