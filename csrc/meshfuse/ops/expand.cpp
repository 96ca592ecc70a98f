// SPDX-License-Identifier: BSD-3-Clause
// Axes of size 1: taken away, and repeated.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/compose.h>

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>

namespace meshfuse {

struct SqueezeOp final : OpDef {
  OpInfo info() const override {
    return {.name = "squeeze",
            .params = {tensor("arg"), attr("dims", ParamKind::IntList, Arg{}, {"dim"}),
                       attr("squeeze_expanded", ParamKind::Bool, false)},
            .doc =
                "Without the listed axes, which have size 1; without all of size 1 when none "
                "are listed. With squeeze_expanded, expanded axes may be listed too.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    const std::vector<bool> gone = squeezed(call);
    FactorBuilder builder(call);
    for (size_t i = 0; i < gone.size(); ++i) {
      const auto axis = static_cast<int64_t>(i);
      // An expanded axis is the same everywhere, so that any one element will do: it must be there.
      const auto kind = gone[i] ? FactorKind::Blocking : FactorKind::Parallel;
      const auto factor = builder.factor(kind, std::array{axis}, "axis " + std::to_string(axis));
      if (!gone[i]) builder.resultAxis(factor);
    }
    return builder.build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const std::vector<bool> gone = squeezed(call);
    at::Tensor out = io[0];
    for (size_t i = gone.size(); i-- > 0;) {
      if (gone[i]) out = out.select(static_cast<int64_t>(i), 0);
    }
    io.out() = std::move(out);
  }

 private:
  /// Per axis of the operand whether it goes.
  static std::vector<bool> squeezed(const OpCall& call) {
    const TensorView* x = call.tensor(0);
    const ScalarPool& pool = call.fusion().scalars();
    const auto axes = axesWithoutReductions(x);
    const auto n = static_cast<int64_t>(axes.size());
    std::vector<bool> gone(axes.size(), false);
    const auto isOne = [&](const IterDomain* id) {
      return pool.constInt(id->getMaybeExpandedExtent()) == 1;
    };
    if (!call.has(1)) {
      for (size_t i = 0; i < axes.size(); ++i) gone[i] = isOne(axes[i]);
      return gone;
    }
    MESHFUSE_CHECK(
        std::cmp_less_equal(call.ints(1).size(), n),
        "squeeze: The dims to squeeze must be <= the number of dims of the input tensor; ", at(x),
        " has ", n, " axes, but ", call.ints(1).size(), " are listed.");
    for (const int64_t dim : call.ints(1)) {
      const int64_t axis = dim < 0 ? dim + n : dim;
      MESHFUSE_CHECK(axis >= 0 && axis < n, "squeeze: Squeeze dim is outside of Tensor size! Axis ",
                     AtAxis{dim}, " was given for ", at(x), ", which has ", n, " axes. Use ", -n,
                     " to ", n - 1, ".");
      const IterDomain* id = axes[static_cast<size_t>(axis)];
      const bool expanded = call.flag(2) && id->isBroadcast();
      MESHFUSE_CHECK(isOne(id) || expanded,
                     "squeeze: Can not squeeze dimension(s) with size != 1. Axis ", AtAxis{dim},
                     " of ", at(x), " is not declared with size 1. Declare it so, or use select.");
      gone[static_cast<size_t>(axis)] = true;
    }
    return gone;
  }
};
MESHFUSE_REGISTER_OP(SqueezeOp);

struct ExpandOp final : OpDef {
  OpInfo info() const override {
    return {.name = "expand",
            .params = {tensor("arg"), attr("shape", ParamKind::ShapeList)},
            .doc =
                "Repeats axes of size 1 to the sizes of shape, which are global; -1 keeps a "
                "size. Further axes are added in front.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    ScalarPool& pool = call.fusion().scalars();
    const auto& shape = std::get<std::vector<Scalar>>(call.args()[1]);
    const auto axes = axesWithoutReductions(x);
    MESHFUSE_CHECK(shape.size() >= axes.size(), "expand: ", at(x), " has ", axes.size(),
                   " axes, but the shape has ", shape.size(), " sizes. Give a size per axis.");
    const size_t added = shape.size() - axes.size();
    FactorBuilder builder(call);
    for (size_t i = 0; i < shape.size(); ++i) {
      const auto want = pool.constInt(shape[i]);
      MESHFUSE_CHECK(!want || *want >= (i < added ? 0 : -1), "expand: the size ", want.value_or(0),
                     " at index ", i, " of the shape for ", at(x),
                     " is negative. Use -1 only to keep the size of an axis that exists.");
      const std::string label = "axis " + std::to_string(i);
      const auto axis = static_cast<int64_t>(i) - static_cast<int64_t>(added);
      const IterDomain* id = i < added ? nullptr : axes[i - added];
      const bool one = id == nullptr || pool.constInt(id->getMaybeExpandedExtent()) == 1;
      if (one && want != -1) {
        if (want == 1) {
          builder.resultAxis(std::nullopt);
        } else {
          builder.resultAxis(builder.freshFactor(FactorKind::Parallel, shape[i], label));
        }
        continue;
      }
      if (want != -1) checkKept(call, axis, id->getMaybeExpandedExtent(), shape[i]);
      builder.resultAxis(builder.factor(FactorKind::Parallel, std::array{axis}, label));
    }
    return builder.build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = io[0].expand(call.want(0).sizes);
  }

 private:
  static void checkKept(const OpCall& call, int64_t axis, Scalar have, Scalar want) {
    const ScalarPool& pool = call.fusion().scalars();
    const auto a = pool.constInt(have), b = pool.constInt(want);
    MESHFUSE_CHECK(!a || !b || *a == *b, "expand: axis ", AtAxis{axis}, " of ", at(call.tensor(0)),
                   " has size ", a.value_or(0), " and cannot become ", b.value_or(0),
                   ". Only axes declared with size 1 can be repeated.");
    if (have == want) return;
    ConstraintScope::add({.a = have,
                          .b = want,
                          .tensor_a = static_cast<int32_t>(call.tensor(0)->id()),
                          .axis_a = static_cast<int32_t>(axis)});
  }
};
MESHFUSE_REGISTER_OP(ExpandOp);

/// broadcast and expand (and permute, where the axes are not in order).
struct BroadcastInDimOp final : ComposedOp {
  OpInfo info() const override {
    return {.name = "broadcast_in_dim",
            .params = {tensor("arg"), attr("shape", ParamKind::ShapeList),
                       attr("broadcast_dims", ParamKind::IntList)},
            .doc =
                "Axis i of the operand becomes axis broadcast_dims[i] of the result; the other "
                "axes repeat it to the sizes of shape, which are global.",
            .is_view = true};
  }
  std::vector<Val> compose(const OpCall& call) const override {
    const Composer ops(call);
    TensorView* x = call.tensor(0);
    const auto& shape = std::get<std::vector<Scalar>>(call.args()[1]);
    const auto rank = static_cast<int64_t>(shape.size());
    const std::vector<int64_t> dims = checkedDims(call, rank);
    std::vector<int64_t> order(dims.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::ranges::sort(order, {}, [&](int64_t i) { return dims[static_cast<size_t>(i)]; });
    if (!std::ranges::is_sorted(order)) x = ops("permute", {x, order});
    if (std::cmp_greater(rank, dims.size())) {
      std::vector<bool> inserted(shape.size(), true);
      for (const int64_t dim : dims) inserted[static_cast<size_t>(dim)] = false;
      x = ops("broadcast", {x, inserted});
    }
    return {ops("expand", {x, shape})};
  }

 private:
  static std::vector<int64_t> checkedDims(const OpCall& call, int64_t rank) {
    const TensorView* x = call.tensor(0);
    MESHFUSE_CHECK(static_cast<int64_t>(call.ints(2).size()) == x->ndim(),
                   "broadcast_in_dim: The broadcast dimensions should match the input dimensions. ",
                   at(x), " has ", x->ndim(), " axes, but ", call.ints(2).size(),
                   " entries were given. Give one per axis.");
    MESHFUSE_CHECK(rank >= x->ndim(),
                   "broadcast_in_dim: The new shape is expected to be greater-then-or-equal to the "
                   "input: ",
                   at(x), " has ", x->ndim(), " axes, the shape ", rank, " sizes.");
    std::vector<int64_t> dims;
    for (const int64_t dim : call.ints(2)) {
      const int64_t wrapped = dim < 0 ? dim + rank : dim;
      MESHFUSE_CHECK(wrapped >= 0 && wrapped < rank,
                     "broadcast_in_dim: Invalid broadcast_dims value. ", dim, " was given for ",
                     at(x), " and a shape of ", rank, " sizes. Use ", -rank, " to ", rank - 1, ".");
      MESHFUSE_CHECK(std::ranges::find(dims, wrapped) == dims.end(),
                     "broadcast_in_dim: the result's axis ", AtAxis{dim},
                     " is specified more than once. ", "Give each axis of ", at(x), " its own.");
      dims.push_back(wrapped);
    }
    return dims;
  }
};
MESHFUSE_REGISTER_OP(BroadcastInDimOp);

}  // namespace meshfuse
