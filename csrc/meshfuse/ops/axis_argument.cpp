// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>

namespace meshfuse {

int64_t wrappedAxis(std::string_view op, const TensorView* tv, int64_t axis, int64_t ndim) {
  const int64_t wrapped = axis < 0 ? axis + ndim : axis;
  MESHFUSE_CHECK(wrapped >= 0 && wrapped < ndim, op, ": Tried to access out of boundary index ",
                 AtAxis{axis}, " of ", at(tv), ". total index: ", ndim, ". Use ", -ndim, " to ",
                 ndim - 1, ".");
  return wrapped;
}

std::vector<IterDomain*> axesWithoutReductions(const TensorView* tv) {
  std::vector<IterDomain*> axes;
  for (IterDomain* id : tv->getLogicalDomain()) {
    if (!id->isReduction()) axes.push_back(id);
  }
  return axes;
}

}  // namespace meshfuse
