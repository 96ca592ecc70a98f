// SPDX-License-Identifier: BSD-3-Clause
// Axes that are given as arguments of ops.
#pragma once
#include <meshfuse/ir/tensor_view.h>

#include <string_view>

namespace meshfuse {

/// `axis`, negative ones counted from the end, of a tensor with `ndim` axes. Throws Error.
int64_t wrappedAxis(std::string_view op, const TensorView* tv, int64_t axis, int64_t ndim);
inline int64_t wrappedAxis(std::string_view op, const TensorView* tv, int64_t axis) {
  return wrappedAxis(op, tv, axis, tv->ndim());
}

/// The axes that are no reductions.
std::vector<IterDomain*> axesWithoutReductions(const TensorView* tv);

}  // namespace meshfuse
