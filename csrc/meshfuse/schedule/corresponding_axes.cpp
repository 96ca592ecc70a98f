// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/schedule/corresponding_axes.h>

#include <algorithm>
#include <map>
#include <queue>

namespace meshfuse {
namespace {

TensorView* operandOf(const Expr* expr, size_t operand) {
  const size_t inputs = expr->inputs().size();
  return operand < inputs ? expr->input(operand) : expr->output(operand - inputs);
}

/// Ids of the axes of an operand in the order of the factor map.
AxisList axesOf(const Expr* expr, size_t operand) {
  const TensorDomain& domain = operandOf(expr, operand)->domain();
  return operand < expr->inputs().size() ? domain.withoutReductions(domain.logical())
                                         : domain.root();
}

/// The axes of operand `to` that stand for what `map` says of operand `from`.
AxisMap carry(const Expr* expr, size_t from, size_t to, const AxisMap& map) {
  const FactorMap& factors = expr->factors();
  const AxisList here = axesOf(expr, from), there = axesOf(expr, to);
  AxisMap carried(map.size(), -1);
  for (size_t a = 0; a < here.size(); ++a) {
    const auto mine = factors.axis(from, a);
    const auto reference = std::ranges::find(map, here[a]);
    const bool blocked = std::ranges::any_of(
        mine, [&](int32_t f) { return factors.factor(f).kind == FactorKind::Blocking; });
    if (mine.empty() || blocked || reference == map.end()) continue;
    for (size_t b = 0; b < there.size(); ++b) {
      if (!std::ranges::equal(mine, factors.axis(to, b))) continue;
      carried[static_cast<size_t>(reference - map.begin())] = there[b];
    }
  }
  return carried;
}

/// Finds, for every tensor, the way that loses fewest axes, as Dijkstra finds shortest ones.
class Search {
 public:
  Search(TensorView* reference, const std::function<bool(const TensorView*)>& enter)
      : reference_(reference), enter_(enter) {}

  std::vector<Corresponding> run() {
    AxisMap own(reference_->domain().ids().size());
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<int32_t>(i);
    add(reference_, std::move(own), 0);
    std::vector<Corresponding> found;
    while (!queue_.empty()) {
      const Way way = queue_.top();
      queue_.pop();
      Best& best = best_.at(way.tensor);
      if (best.done) continue;
      best.done = true;
      TensorView* tv = reference_->fusion()->tensor(way.tensor);
      if (tv != reference_) {
        extendMap(reference_, tv, best.map);
        found.push_back({tv, best.map});
      }
      if (tv->definition() != nullptr) spread(tv, tv->definition(), way.steps);
      for (const Expr* use : tv->uses()) spread(tv, use, way.steps);
    }
    return found;
  }

 private:
  struct Best {
    AxisMap map;
    std::ptrdiff_t axes = 0;
    bool done = false;
  };
  struct Way {
    std::ptrdiff_t axes;
    int steps;
    int32_t tensor;
    /// Most axes first, then fewest steps, then order of creation.
    bool operator<(const Way& other) const {
      return std::tuple(axes, -steps, -tensor) <
             std::tuple(other.axes, -other.steps, -other.tensor);
    }
  };

  void add(TensorView* tv, AxisMap map, int steps) {
    const auto axes = std::ranges::count_if(map, [](int32_t i) { return i >= 0; });
    Best& best = best_[tv->id()];
    if (best.done || axes <= best.axes) return;
    best = {std::move(map), axes, false};
    queue_.push({axes, steps, tv->id()});
  }

  void spread(TensorView* tv, const Expr* expr, int steps) {
    const size_t inputs = expr->inputs().size(), all = inputs + expr->outputs().size();
    for (size_t from = 0; from < all; ++from) {
      if (operandOf(expr, from) != tv) continue;
      for (size_t to = 0; to < all; ++to) {
        TensorView* other = operandOf(expr, to);
        if (other == tv || (from < inputs && to < inputs) || !enter_(other)) continue;
        add(other, carry(expr, from, to, best_.at(tv->id()).map), steps + 1);
      }
    }
  }

  TensorView* reference_;
  const std::function<bool(const TensorView*)>& enter_;
  std::map<int32_t, Best> best_;
  std::priority_queue<Way> queue_;
};

}  // namespace

std::vector<Corresponding> correspondingAxes(TensorView* reference,
                                             const std::function<bool(const TensorView*)>& enter) {
  return Search(reference, enter).run();
}

}  // namespace meshfuse
