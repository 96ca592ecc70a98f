// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/op_def.h>

#include <algorithm>
#include <limits>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

constexpr size_t kStart = 1, kEnd = 2, kStrides = 3, kManual = 4;
// Ends from here on mean "to the end".
constexpr int64_t kToTheEnd = std::numeric_limits<int32_t>::max();

/// What is kept of one axis.
struct Range {
  Scalar start, end;
  bool whole = false;
};

const std::vector<Scalar>& scalars(const OpCall& call, size_t param) {
  return std::get<std::vector<Scalar>>(call.args()[param]);
}

[[noreturn]] void throwOutside(const OpCall& call, int64_t axis, int64_t size, int64_t start,
                               int64_t end) {
  throw Error(concat("slice: axis ", AtAxis{axis}, " of ", at(call.tensor(0)), " (size ", size,
                     ") is to be sliced from ", start, " to ", end, ". Give 0 <= start <= end",
                     call.flag(kManual) ? " <= size, or leave manual_normalization out." : "."));
}

/// The range of `axis`, clipped to its extent unless the caller has done so.
Range rangeOf(const OpCall& call, size_t axis, Scalar extent) {
  ScalarPool& pool = call.fusion().scalars();
  Range range{scalars(call, kStart)[axis], scalars(call, kEnd)[axis]};
  const auto first = pool.constInt(range.start), last = pool.constInt(range.end);
  const auto size = pool.constInt(extent);
  const auto index = static_cast<int64_t>(axis);
  MESHFUSE_CHECK(!first || *first >= 0,
                 "slice: Slice operation start_indices must be greater than or equal to 0. Axis ",
                 AtAxis{index}, " of ", at(call.tensor(0)), " is to start at ", first.value_or(0),
                 ".");
  MESHFUSE_CHECK(!first || !last || *last >= *first,
                 "slice: Slice operation end_indices must be greater than or equal to "
                 "start_indices. Axis ",
                 AtAxis{index}, " of ", at(call.tensor(0)), " is to start at ", first.value_or(0),
                 " and to end at ", last.value_or(0), ".");
  if (call.flag(kManual) && first && size && last) {
    const bool inside = *first <= *size && (*last <= *size || *last >= kToTheEnd);
    if (!inside) throwOutside(call, index, *size, *first, *last);
  }
  if (last && *last >= size.value_or(kToTheEnd)) range.end = extent;
  range.whole = first == 0 && range.end == extent;
  if (range.whole || call.flag(kManual)) return range;
  range.start = pool.binary(ScalarOp::Min, range.start, extent);
  range.end = pool.binary(ScalarOp::Min, range.end, extent);
  if (!pool.isConst(range.start) || !pool.isConst(range.end)) {
    range.end = pool.binary(ScalarOp::Max, range.end, range.start);
  }
  return range;
}

}  // namespace

struct SliceOp final : OpDef {
  OpInfo info() const override {
    return {.name = "slice",
            .params = {tensor("arg"), attr("start_indices", ParamKind::ShapeList),
                       attr("end_indices", ParamKind::ShapeList),
                       attr("strides", ParamKind::ShapeList, Arg{}),
                       attr("manual_normalization", ParamKind::Bool, false)},
            .doc =
                "Elements start to end - 1 of every axis; indices are global. Ends beyond the "
                "extent are clipped, unless manual_normalization says that none is.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    checkLengths(call);
    ScalarPool& pool = call.fusion().scalars();
    FactorBuilder builder(call);
    const auto axes = axesWithoutReductions(call.tensor(0));
    for (size_t i = 0; i < axes.size(); ++i) {
      const Range range = rangeOf(call, i, axes[i]->getMaybeExpandedExtent());
      const std::string label = "axis " + std::to_string(i);
      const std::array axis{static_cast<int64_t>(i)};
      if (range.whole) {
        builder.resultAxis(builder.factor(FactorKind::Parallel, axis, label));
        continue;
      }
      builder.factor(FactorKind::Blocking, axis, label);
      const Scalar extent = pool.sub(range.end, range.start);
      if (pool.constInt(extent) == 1) {
        builder.resultAxis(std::nullopt);
      } else {
        builder.resultAxis(builder.freshFactor(FactorKind::Blocking, extent, "result " + label));
      }
    }
    return builder.build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    at::Tensor out = io[0];
    const auto axes = axesWithoutReductions(call.tensor(0));
    for (size_t i = 0; i < axes.size(); ++i) {
      if (rangeOf(call, i, axes[i]->getMaybeExpandedExtent()).whole) continue;
      const auto axis = static_cast<int64_t>(i);
      const int64_t size = out.size(axis), start = call.integers(kStart)[i];
      const int64_t given = call.integers(kEnd)[i];
      const int64_t end = given >= kToTheEnd ? std::min(given, size) : given;
      const bool manual = call.flag(kManual);
      const bool inside =
          start >= 0 && start <= given && (!manual || (start <= end && end <= size));
      if (!inside) throwOutside(call, axis, size, start, given);
      const int64_t first = std::min(start, size);
      out = out.narrow(axis, first, std::min(end, size) - first);
    }
    io.out() = std::move(out);
  }

 private:
  static void checkLengths(const OpCall& call) {
    const size_t starts = scalars(call, kStart).size(), ends = scalars(call, kEnd).size();
    const auto n = static_cast<size_t>(call.ndim(0));
    MESHFUSE_CHECK(starts == ends, "slice: Slice indexing attribute dimensions don't match! ",
                   starts, " start indices and ", ends, " end indices were given for ",
                   at(call.tensor(0)), ".");
    MESHFUSE_CHECK(
        starts == n, "slice: Number of tensor dimensions does not match slice dimensions! ",
        at(call.tensor(0)), " has ", n, " axes, but ", starts, " start indices were given.");
    if (!call.has(kStrides)) return;
    const auto& strides = scalars(call, kStrides);
    MESHFUSE_CHECK(strides.size() == starts, "slice: Slice start_indices and strides don't match! ",
                   starts, " start indices and ", strides.size(), " strides were given for ",
                   at(call.tensor(0)), ".");
    for (const Scalar stride : strides) {
      MESHFUSE_CHECK(call.fusion().scalars().constInt(stride) == 1,
                     "slice: All slice operation strides must be of const size 1. ",
                     "Leave them out for ", at(call.tensor(0)), ".");
    }
  }
};
MESHFUSE_REGISTER_OP(SliceOp);

}  // namespace meshfuse
