// SPDX-License-Identifier: BSD-3-Clause
// reshape: axes are matched by the products of their sizes, from both ends; what lies between two
// matching places is a split or a merge, whose loops are shared by both sides (semantics 4.8).
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/extent_product.h>
#include <meshfuse/ops/op_def.h>

#include <algorithm>
#include <numeric>
#include <ranges>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

constexpr size_t kShape = 1;

/// An axis of one side: its position there and its size.
struct Side {
  size_t axis;
  Scalar extent;
};
using Sides = std::vector<Side>;

/// Neighbouring axes of both sides with the same number of elements.
struct Group {
  Sides in, out;
  bool exact = true;  // false: the sizes cannot be compared before they are known
};

/// The wanted sizes; where one is -1 and cannot be told before sizes are known, it stays absent.
std::vector<Scalar> wantedExtents(const OpCall& call) {
  ScalarPool& pool = call.fusion().scalars();
  std::vector<Scalar> shape = std::get<std::vector<Scalar>>(call.args()[kShape]);
  std::optional<size_t> open;
  ExtentProduct known;
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto size = pool.constInt(shape[i]);
    MESHFUSE_CHECK(!size || *size >= -1, "reshape: The value ", size.value_or(0), " at index ", i,
                   " was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1). Give ",
                   at(call.tensor(0)), " another size there.");
    if (size != -1) {
      known.multiply(pool, shape[i]);
      continue;
    }
    MESHFUSE_CHECK(!open, "reshape: A maximum of one value of -1 can be provided to reshape. ",
                   at(call.tensor(0)), " is given a shape with -1 at index ", open.value_or(0),
                   " and at index ", i, ". Say all sizes but one.");
    open = i;
  }
  ExtentProduct total;
  for (const IterDomain* id : axesWithoutReductions(call.tensor(0))) {
    total.multiply(pool, id->getMaybeExpandedExtent());
  }
  const bool numbers = total.isConst() && known.isConst();
  if (!open) {
    MESHFUSE_CHECK(!numbers || total == known,
                   "reshape: Total element counts across view operation must match; ",
                   at(call.tensor(0)), " has ", total.constant(), " elements, the new shape ",
                   known.constant(), ". Give a shape with as many elements.");
    return shape;
  }
  MESHFUSE_CHECK(!known.isConst() || known.constant() != 0, "reshape: the -1 at index ", *open,
                 " of the new shape of ", at(call.tensor(0)),
                 " can stand for any size, since another size is 0. Say all sizes.");
  const auto rest = total.over(known);
  MESHFUSE_CHECK(
      !numbers || rest, "reshape: Total element counts across view operation must match; ",
      at(call.tensor(0)), " has ", total.constant(), " elements, which the other sizes, ",
      known.constant(), " elements, do not divide. Give sizes that do.");
  shape[*open] = rest ? rest->toScalar(pool) : Scalar{};
  return shape;
}

/// Matches the axes of both sides, first ones first, as long as sizes can be compared. What was
/// matched is taken out of both lists.
std::vector<Group> matchFront(const ScalarPool& pool, Sides& in, Sides& out) {
  std::vector<Group> groups;
  size_t i = 0, k = 0;
  while (i < in.size() && k < out.size() && out[k].extent) {
    const size_t i0 = i, k0 = k;
    ExtentProduct a, b;
    a.multiply(pool, in[i++].extent);
    b.multiply(pool, out[k++].extent);
    bool comparable = true;
    while (comparable && !(a == b)) {
      if (i < in.size() && a.isBelow(b)) {
        a.multiply(pool, in[i++].extent);
      } else if (k < out.size() && out[k].extent && b.isBelow(a)) {
        b.multiply(pool, out[k++].extent);
      } else {
        comparable = false;
      }
    }
    if (!comparable) {
      i = i0;
      k = k0;
      break;
    }
    groups.push_back({{in.begin() + static_cast<std::ptrdiff_t>(i0),
                       in.begin() + static_cast<std::ptrdiff_t>(i)},
                      {out.begin() + static_cast<std::ptrdiff_t>(k0),
                       out.begin() + static_cast<std::ptrdiff_t>(k)}});
  }
  in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(i));
  out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(k));
  return groups;
}

/// What is left for the size that is absent among those of `out`; false when none is.
bool fillOpen(ScalarPool& pool, const Sides& in, Sides& out) {
  Side* open = nullptr;
  ExtentProduct total, known;
  for (const Side& side : in) total.multiply(pool, side.extent);
  for (Side& side : out) {
    if (side.extent) {
      known.multiply(pool, side.extent);
    } else {
      open = &side;
    }
  }
  if (open == nullptr) return false;
  const auto rest = total.over(known);
  open->extent = rest ? rest->toScalar(pool)
                      : pool.binary(ScalarOp::FloorDiv, total.toScalar(pool), known.toScalar(pool));
  return true;
}

std::vector<Group> matchSides(ScalarPool& pool, Sides in, Sides out) {
  std::vector<Group> groups = matchFront(pool, in, out);
  std::ranges::reverse(in);
  std::ranges::reverse(out);
  std::vector<Group> back = matchFront(pool, in, out);
  if (!in.empty() || !out.empty()) {
    std::ranges::reverse(in);
    std::ranges::reverse(out);
    const bool exact = fillOpen(pool, in, out);
    groups.push_back({in, out, exact});
  }
  for (Group& group : std::views::reverse(back)) {
    std::ranges::reverse(group.in);
    std::ranges::reverse(group.out);
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Gives the axes of a group their factors.
class GroupFactors {
 public:
  GroupFactors(const OpCall& call, FactorBuilder& builder,
               std::vector<std::vector<int32_t>>& result)
      : call_(call), builder_(builder), result_(result) {}

  void add(const Group& group) {
    if (group.exact && group.in.size() == 1) {
      shareWith(group.in[0], group.out, true);
    } else if (group.exact && group.out.size() == 1) {
      shareWith(group.out[0], group.in, false);
    } else {
      regroup(group);
    }
  }

 private:
  int32_t fresh(FactorKind kind, Scalar extent, const char* side, size_t axis) {
    return builder_.freshFactor(kind, extent, side + std::to_string(axis));
  }
  void give(bool is_in, size_t axis, std::vector<int32_t> factors) {
    if (is_in) {
      builder_.operandAxis(0, static_cast<int64_t>(axis), factors);
    } else {
      result_[axis] = std::move(factors);
    }
  }

  /// One axis that is split into several, or merged from them: a factor for each of these.
  void shareWith(const Side& one, const Sides& many, bool one_is_in) {
    std::vector<int32_t> all;
    for (const Side& side : many) {
      all.push_back(fresh(FactorKind::Parallel, side.extent, "axis ", side.axis));
      give(!one_is_in, side.axis, {all.back()});
    }
    give(one_is_in, one.axis, std::move(all));
  }

  /// Several axes become several others. A common divisor of the outermost ones is a loop of both
  /// sides; the rest must be whole.
  void regroup(const Group& group) {
    ScalarPool& pool = call_.fusion().scalars();
    std::optional<int32_t> shared;
    int64_t divisor = 1;
    if (group.exact && !group.in.empty() && !group.out.empty()) {
      const auto a = pool.constInt(group.in[0].extent), b = pool.constInt(group.out[0].extent);
      if (a && b && *a > 0 && *b > 0) divisor = std::gcd(*a, *b);
      if (divisor > 1) {
        shared = fresh(FactorKind::Parallel, pool.constant(divisor), "axis ", group.out[0].axis);
      }
    }
    const auto whole = [&](const Sides& sides, bool is_in) {
      for (size_t i = 0; i < sides.size(); ++i) {
        std::vector<int32_t> factors;
        Scalar extent = sides[i].extent;
        if (i == 0 && shared) {
          factors.push_back(*shared);
          extent = pool.constant(*pool.constInt(extent) / divisor);
        }
        if (pool.constInt(extent) != 1 || factors.empty()) {
          factors.push_back(
              fresh(FactorKind::Blocking, extent, is_in ? "axis " : "result axis ", sides[i].axis));
        }
        give(is_in, sides[i].axis, std::move(factors));
      }
    };
    whole(group.in, true);
    whole(group.out, false);
  }

  const OpCall& call_;
  FactorBuilder& builder_;
  std::vector<std::vector<int32_t>>& result_;
};

}  // namespace

struct ReshapeOp final : OpDef {
  OpInfo info() const override {
    return {.name = "reshape",
            .params = {tensor("arg"), attr("new_shape", ParamKind::ShapeList)},
            .doc =
                "The same elements in row-major order with other sizes, which are global; one "
                "may be -1. A split or merge keeps the sharding of its outermost axis.",
            .is_view = true};
  }
  FactorMap factors(const OpCall& call) const override {
    ScalarPool& pool = call.fusion().scalars();
    const auto axes = axesWithoutReductions(call.tensor(0));
    const std::vector<Scalar> shape = wantedExtents(call);
    FactorBuilder builder(call);
    std::vector<std::vector<int32_t>> result(shape.size());
    Sides in, out;
    for (size_t i = 0; i < axes.size(); ++i) {
      const Scalar extent = axes[i]->getMaybeExpandedExtent();
      if (pool.constInt(extent) != 1) in.push_back({i, extent});
    }
    for (size_t i = 0; i < shape.size(); ++i) {
      if (!shape[i] || pool.constInt(shape[i]) != 1) out.push_back({i, shape[i]});
    }
    GroupFactors factors(call, builder, result);
    for (const Group& group : matchSides(pool, in, out)) factors.add(group);
    for (const auto& axis : result) builder.resultAxis(axis);
    return builder.build();
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const c10::IntArrayRef want = call.want(0).sizes;
    int64_t elements = 1;
    for (const int64_t size : want) elements *= size;
    MESHFUSE_CHECK(elements == io[0].numel(),
                   "reshape: Total element counts across view operation must match; ",
                   at(call.tensor(0)), " has local sizes ", io[0].sizes(), ", the result ", want,
                   ". Give a shape with as many elements.");
    io.out() = io[0].reshape(want);
  }
};
MESHFUSE_REGISTER_OP(ReshapeOp);

}  // namespace meshfuse
