// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/compose.h>

#include <algorithm>

namespace meshfuse {

TensorView* Composer::operator()(std::string_view op, std::vector<Arg> args) const {
  const OpDef* def = findOp(op);
  MESHFUSE_ASSERT(def != nullptr, call_.op().name(), " is made of ", op, ", which is no op");
  const auto& params = def->cachedInfo().params;
  while (args.size() < params.size()) args.push_back(params[args.size()].default_value);
  return std::get<TensorView*>(callOp(fusion_, *def, std::move(args)).at(0));
}

TensorView* Composer::operand(size_t param) const {
  TensorView* x = call_.tensor(param);
  MESHFUSE_CHECK(isFloating(x->dtype()), call_.op().name(), ": ", at(x), " is ", x->dtype(),
                 ". Cast it to a floating point type first.");
  return isReducedFloating(x->dtype()) ? as(DataType::Float, x) : x;
}

TensorView* Composer::as(DataType type, TensorView* x) const {
  return x->dtype() == type ? x : (*this)("cast", {x, type});
}

std::vector<int64_t> Composer::axes(const TensorView* x, size_t param) const {
  const std::string& op = call_.op().name();
  MESHFUSE_CHECK(x->ndim() > 0, op, ": Tried to reduce a 0-dim tensor, ", at(x),
                 ". Give a tensor with axes.");
  MESHFUSE_CHECK(!call_.ints(param).empty(), op, ": No reduction axis specified for ", at(x),
                 ". List at least one axis.");
  std::vector<int64_t> axes = wrappedReductionAxes(op, x, call_.ints(param));
  std::ranges::sort(axes);
  return axes;
}

Scalar Composer::countOf(const TensorView* x, const std::vector<int64_t>& axes) const {
  const auto ids = axesWithoutReductions(x);
  Scalar count = scalars().constant(1);
  for (const int64_t axis : axes) {
    count = scalars().mul(count, ids[static_cast<size_t>(axis)]->getMaybeExpandedExtent());
  }
  return count;
}

TensorView* Composer::mean(TensorView* x, const std::vector<int64_t>& axes) const {
  TensorView* sum = (*this)("sum", {x, axes});
  return (*this)("div", {sum, scalars().cast(countOf(x, axes), DataType::Double)});
}

TensorView* Composer::keepAxes(TensorView* reduced, const std::vector<int64_t>& axes) const {
  std::vector<bool> inserted(static_cast<size_t>(reduced->ndim()) + axes.size(), false);
  for (const int64_t axis : axes) inserted[static_cast<size_t>(axis)] = true;
  return (*this)("broadcast", {reduced, inserted});
}

}  // namespace meshfuse
