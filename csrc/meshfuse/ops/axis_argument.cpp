// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>

#include <algorithm>

namespace meshfuse {

int64_t wrappedAxis(std::string_view op, const TensorView* tv, int64_t axis) {
  const int64_t n = tv->ndim();
  MESHFUSE_CHECK(axis >= -n && axis < n, op, ": Tried to access out of boundary index ",
                 AtAxis{axis}, ". total index: ", n, ". Tensor arguments have dimension ", n,
                 ", so dim argument must satisfy ", -n, " <= dim < ", n, " for ", at(tv), ".");
  return axis < 0 ? axis + n : axis;
}

std::vector<int64_t> wrappedReductionAxes(std::string_view op, const TensorView* tv,
                                          std::span<const int64_t> axes) {
  const int64_t n = tv->ndim();
  std::vector<int64_t> wrapped;
  for (const int64_t axis : axes) {
    MESHFUSE_CHECK(axis >= -n && axis < n, op, ": Reduction on invalid axis ", AtAxis{axis}, " of ",
                   at(tv), ", which has ", n, " axes. Use ", -n, " to ", n - 1, ".");
    const int64_t place = axis < 0 ? axis + n : axis;
    MESHFUSE_CHECK(std::ranges::find(wrapped, place) == wrapped.end(), op,
                   ": Reduction axes are not unique: axis ", AtAxis{axis}, " of ", at(tv),
                   " is listed twice. List each axis once.");
    wrapped.push_back(place);
  }
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
