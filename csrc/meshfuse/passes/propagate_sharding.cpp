// SPDX-License-Identifier: BSD-3-Clause
// Fills in the mesh and the splits of tensors that the user did not annotate (semantics 5.6;
// docs/concepts/propagation.md has the rules).
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/factor_path.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/passes/placement.h>
#include <meshfuse/schedule/replay.h>

#include <algorithm>
#include <set>

namespace meshfuse {
namespace {

/// What an operation would have of one of its operands over one mesh axis.
struct Wish {
  const TensorView* from = nullptr;  // the result that is divided; nullptr: the operand whole
  FactorPath path;
};

class Propagation {
 public:
  explicit Propagation(Fusion& fusion)
      : fusion_(fusion), exprs_(fusion.exprs()), place_(fusion.allExprs().size(), kDead) {
    for (size_t i = 0; i < exprs_.size(); ++i) {
      const auto place = static_cast<int32_t>(i);
      place_[static_cast<size_t>(exprs_[i]->id())] = place;
      forward_.insert(forward_.end(), place);
    }
    for (TensorView* tv : fusion.usedTvs()) backward_.insert(keyOf(tv));
  }

  /// Both directions until nothing changes. Splits are only added, at most one per mesh axis and
  /// tensor, and a change puts only the neighbours on the lists, so the work grows with the graph.
  bool run() {
    followAliases();
    while (!forward_.empty() || !backward_.empty()) {
      while (!forward_.empty()) {
        Expr* expr = exprs_[static_cast<size_t>(*forward_.begin())];
        forward_.erase(forward_.begin());
        spreadForward(expr);
      }
      if (backward_.empty()) break;
      const auto last = std::prev(backward_.end());
      TensorView* tv = fusion_.tensor(last->second);
      backward_.erase(last);
      pull(tv);
    }
    return changed_;
  }

 private:
  static constexpr int32_t kDead = -2;  // no output needs the operation

  bool isLive(const Expr* expr) const { return place_[static_cast<size_t>(expr->id())] != kDead; }
  /// Place of the operation that makes a tensor; inputs come first.
  std::pair<int32_t, int32_t> keyOf(const TensorView* tv) const {
    const Expr* def = tv->definition();
    return {def == nullptr ? -1 : place_[static_cast<size_t>(def->id())], tv->id()};
  }

  void noteChange(TensorView* tv) {
    changed_ = true;
    for (const Expr* use : tv->uses()) {
      if (isLive(use)) forward_.insert(place_[static_cast<size_t>(use->id())]);
    }
    if (tv->definition() == nullptr) return;
    for (const TensorView* in : tv->definition()->inputs()) backward_.insert(keyOf(in));
  }

  /// A result that goes into the memory of an input lies as that does.
  void followAliases() {
    for (const FusionOutput& output : fusion_.outputs()) {
      if (output.alias == nullptr || !output.alias->meshIsDeclared()) continue;
      TensorView* tv = std::get<TensorView*>(output.value);
      if (tv->meshIsDeclared() || tv->hasDeviceMesh() || tv->isFusionInput()) continue;
      putState(tv, stateOf(output.alias));
      tv->setMeshOrigin({.tensor = output.alias->id()});
      for (const ParallelType p : kDeviceTypes) {
        if (!shardedAxis(tv, p)) continue;
        tv->setSplitOrigin(p, {.tensor = output.alias->id(), .factor = ShardingOrigin::kMemory});
      }
      noteChange(tv);
    }
  }

  void adoptMesh(TensorView* tv, const TensorView* from) {
    tv->setDeviceMesh(from->getDeviceMesh());
    tv->setDeclared(false);
    tv->setMeshOrigin({.tensor = from->id()});
    noteChange(tv);
  }

  /// Gives operand `operand` the division `path`, found on `from`, unless it has one over `p`.
  bool adoptSplit(const Expr* expr, size_t operand, TensorView* tv, const FactorPath& path,
                  const TensorView* from, ParallelType p) {
    const int32_t id = mappedAxes(expr, operand)[path.axis];
    const bool reduction = tv->domain().id(id)->isReduction();
    const bool used = reduction ? reducedAxis(tv, p).has_value() : shardedAxis(tv, p).has_value();
    if (used || !replayPath(tv, id, path.path, p)) return false;
    // Where a tensor is summed over one mesh axis and divided over it too, the split is what people
    // ask about.
    if (!reduction || !shardedAxis(tv, p)) {
      tv->setSplitOrigin(p, {from->id(), expr->id(), path.factor});
    }
    noteChange(tv);
    return true;
  }

  // ---- forward: a result follows its operands, the first in order that is divided over the axis

  void spreadForward(Expr* expr) {
    std::vector<int> order;
    for (size_t o = 0; o < expr->outputs().size(); ++o) {
      TensorView* out = expr->output(o);
      if (out->meshIsDeclared() || out->isCpuScalar()) continue;
      if (order.empty()) {
        order = expr->op().referenceOrder(OpCall(*expr));
      }
      for (const int i : order) {
        const TensorView* from = expr->input(static_cast<size_t>(i));
        if (!from->hasDeviceMesh() || from->isCpuScalar()) continue;
        if (!out->hasDeviceMesh()) adoptMesh(out, from);
        for (const ParallelType p : kDeviceTypes) {
          if (!sameDevices(from->getDeviceMesh(), out->getDeviceMesh(), p)) continue;
          const auto path = devicePath(expr, static_cast<size_t>(i), p, false);
          if (!path) continue;
          const size_t operand = expr->inputs().size() + o;
          const auto carried = carryPath(expr, static_cast<size_t>(i), *path, operand);
          if (carried) adoptSplit(expr, operand, out, *carried, from, p);
        }
      }
    }
  }

  // ---- backward: a tensor follows the operations that read it

  /// The result with most device axes, the first of several.
  static const TensorView* mostParallel(const Expr* expr) {
    const TensorView* best = nullptr;
    std::ptrdiff_t most = -1;
    for (const TensorView* out : expr->outputs()) {
      if (!out->hasDeviceMesh()) continue;
      const auto loop = out->getLoopDomain();
      const auto count = std::ranges::count_if(loop, &IterDomain::isDeviceDim);
      if (count > most) best = out;
      most = std::max(most, count);
    }
    return best;
  }

  void pull(TensorView* tv) {
    if (tv->meshIsDeclared() || tv->isCpuScalar()) return;
    for (const Expr* use : tv->uses()) {
      if (tv->hasDeviceMesh()) break;
      const TensorView* from = isLive(use) ? mostParallel(use) : nullptr;
      if (from != nullptr) adoptMesh(tv, from);
    }
    // What the user hands in is divided only where the user says so.
    if (!tv->hasDeviceMesh() || tv->definition() == nullptr) return;
    for (const ParallelType p : kDeviceTypes) {
      if (tv->getDeviceMesh().hasParallelType(p) && !shardedAxis(tv, p)) pullSplit(tv, p);
    }
  }

  /// Whether a tensor is summed over a mesh axis, or made element by element from one that is and
  /// that nothing else reads. Looks `steps` operations back: the work must grow with the graph.
  bool comesFromSum(const TensorView* tv, ParallelType p, int steps = 8) const {
    if (reducedAxis(tv, p)) return true;
    const Expr* def = tv->definition();
    if (def == nullptr || steps == 0 || !def->op().isPointwise()) return false;
    return std::ranges::any_of(def->inputs(), [&](const TensorView* in) {
      const auto readers =
          std::ranges::count_if(in->uses(), [&](const Expr* use) { return isLive(use); });
      return readers == 1 && !in->meshIsDeclared() && comesFromSum(in, p, steps - 1);
    });
  }

  /// All uses must wish the same. Where they don't, a tensor that each device can compute whole
  /// stays whole, which costs nothing. One that must be summed over the mesh axis follows the first
  /// wish if all uses wish it divided, or sum over the divided axis themselves: the sum is then
  /// scattered, which is less than half the way.
  void pullSplit(TensorView* tv, ParallelType p) {
    const bool summed = comesFromSum(tv, p);
    const Expr* first = nullptr;
    size_t operand = 0;
    Wish chosen;
    std::vector<std::pair<const Expr*, size_t>> without;  // uses without a wish
    for (const Expr* use : tv->uses()) {
      if (!isLive(use)) continue;
      for (size_t i = 0; i < use->inputs().size(); ++i) {
        if (use->input(i) != tv) continue;
        Wish wish = wishOf(use, i, p);
        if (wish.from == nullptr) {
          if (!summed) return;
          without.emplace_back(use, i);
        } else if (first == nullptr) {
          first = use;
          operand = i;
          chosen = std::move(wish);
        } else if (!summed && !sameDivision(first, operand, chosen, use, i, wish)) {
          return;
        }
      }
    }
    if (first == nullptr) return;
    const size_t axis = chosen.path.axis;
    const bool all_sum = std::ranges::all_of(without, [&](const auto& use) {
      const FactorMap& map = use.first->factors();
      const auto factors = map.axis(use.second, axis);
      return !factors.empty() && map.factor(factors[0]).kind == FactorKind::Reduction;
    });
    if (all_sum) adoptSplit(first, operand, tv, chosen.path, chosen.from, p);
  }

  /// The division of operand `i` that goes with the way in which the result is divided.
  static Wish wishOf(const Expr* use, size_t i, ParallelType p) {
    const TensorView* out = mostParallel(use);
    if (out == nullptr || !sameDevices(use->input(i)->getDeviceMesh(), out->getDeviceMesh(), p))
      return {};
    const auto o =
        static_cast<size_t>(std::ranges::find(use->outputs(), out) - use->outputs().begin());
    const size_t operand = use->inputs().size() + o;
    for (const bool reduction : {true, false}) {
      const auto path = devicePath(use, operand, p, reduction);
      if (!path) continue;
      if (auto carried = carryPath(use, operand, *path, i)) return {out, std::move(*carried)};
    }
    return {};
  }

  static bool sameDivision(const Expr* a, size_t i, const Wish& x, const Expr* b, size_t j,
                           const Wish& y) {
    return mappedAxes(a, i)[x.path.axis] == mappedAxes(b, j)[y.path.axis] &&
           x.path.path == y.path.path;
  }

  Fusion& fusion_;
  std::vector<Expr*> exprs_;    // producers first
  std::vector<int32_t> place_;  // by expression: place in exprs_
  std::set<int32_t> forward_;   // places of operations to look at, first ones first
  std::set<std::pair<int32_t, int32_t>> backward_;  // tensors to look at, last ones first
  bool changed_ = false;
};

}  // namespace

static bool propagateSharding(Fusion& fusion) { return Propagation(fusion).run(); }

MESHFUSE_REGISTER_PASS(
    propagateSharding, "propagate-sharding",
    "Gives tensors without a mesh the mesh and the splits of their neighbours, along each op's "
    "factors: results follow their operands, then tensors follow the operations that read them. "
    "Inputs without a mesh are replicated. User annotations are never changed.");

}  // namespace meshfuse
