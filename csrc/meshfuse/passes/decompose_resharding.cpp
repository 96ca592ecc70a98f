// SPDX-License-Identifier: BSD-3-Clause
// Turns every operation whose operands are divided in different ways into local operations and
// communications over one mesh axis each (semantics 5.4).
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/passes/projection.h>
#include <meshfuse/schedule/replay.h>

#include <algorithm>
#include <map>

namespace meshfuse {
namespace {

/// How a tensor is divided over one mesh axis: the logical axis and the path of splits on it.
struct Placement {
  int64_t axis = -1;  // -1: whole
  std::vector<PathStep> path;
  bool operator==(const Placement&) const = default;
};

class Decomposer {
 public:
  explicit Decomposer(Fusion& fusion) : fusion_(fusion) {}

  bool run() {
    bool changed = false;
    for (bool again = true; again;
         changed = changed || again) {  // new operations are looked at too
      again = false;
      for (Expr* expr : fusion_.exprs()) {
        fusion_.current_loc = expr->loc();
        again = decompose(expr) || again;
      }
    }
    fusion_.current_loc = {};
    return changed;
  }

 private:
  bool decompose(Expr* expr) {
    bool changed = false;
    for (const ParallelType p : kDeviceTypes) {
      if (!whyNotLocal(expr, p)) continue;
      if (getCommunicationInfo(expr)) return changed;
      MESHFUSE_CHECK(
          expr->outputs().size() == 1, expr->op().name(), ": ", at(expr->output(0)),
          " needs communication over ", p, ": ", *whyNotLocal(expr, p),
          ". An operation with several results cannot be divided in two steps. Shard its "
          "operands alike.");
      if (!reduceAcross(expr, p)) align(expr, p);
      changed = true;
    }
    return changed;
  }

  // ---- partial results

  /// Factor over which all operands that hold it are divided alike and which the operation reduces.
  static std::optional<int32_t> partialFactor(const Expr* expr,
                                              const std::vector<OperandProjection>& rows) {
    const FactorSplit* split = nullptr;
    for (const OperandProjection& row : rows) {
      if (row.is_output || !row.split) continue;
      if (split != nullptr && split->key != row.split->key) return std::nullopt;
      split = &*row.split;
    }
    if (split == nullptr || split->factors.size() != 1) return std::nullopt;
    const int32_t f = split->factors[0];
    if (expr->factors().factor(f).kind != FactorKind::Reduction) return std::nullopt;
    for (size_t o = 0; o < expr->inputs().size(); ++o) {
      if (holdsFactor(expr, o, f) && !rows[o].split) return std::nullopt;
    }
    return f;
  }

  /// Reduction over a divided axis: partial results on each device, then a sum across the mesh
  /// axis.
  bool reduceAcross(Expr*& expr, ParallelType p) {
    const auto rows = project(expr, p);
    const auto factor = partialFactor(expr, rows);
    if (!factor) return false;
    expr = detachAddends(expr, *factor);
    TensorView* out = expr->output(0);
    if (!reducedAxis(out, p)) requestReduction(expr, out, *factor, p);
    std::vector<int64_t> serial;
    const auto loop = out->getLoopDomain();
    for (size_t i = 0; i < loop.size(); ++i) {
      if (loop[i]->isReduction() && !loop[i]->isDeviceDim())
        serial.push_back(static_cast<int64_t>(i));
    }
    if (!serial.empty()) {
      TensorView* partial = out->rfactor(serial);
      partial->setDeclared(true);
    }
    separateReductions(out, p);
    return true;
  }

  /// Operands that are added to the result would be added once per device: add them afterwards.
  Expr* detachAddends(Expr* expr, int32_t factor) {
    const bool has_addend = [&] {
      for (size_t o = 0; o < expr->inputs().size(); ++o) {
        if (!holdsFactor(expr, o, factor)) return true;
      }
      return false;
    }();
    if (!has_addend) return expr;
    TensorView* out = expr->output(0);
    const OpCall call(fusion_, expr->op(), expr->args());
    const std::vector<TensorView*> pieces = expr->op().withoutAddends(call);
    MESHFUSE_CHECK(pieces.size() == 2, expr->op().name(), ": ", at(out),
                   " adds up products that are divided over devices, with an operand that is not. "
                   "This operation cannot be divided in two steps. Shard its operands alike.");
    TensorView *product = pieces[0], *whole = pieces[1];
    copyPlacements(out, product);
    replaceEverywhere(out, whole);
    adopt(out, whole);
    return product->definition();
  }

  void requestReduction(Expr* expr, TensorView* out, int32_t factor, ParallelType p) {
    const FactorMap& map = expr->factors();
    const size_t operand = expr->inputs().size();
    for (size_t o = 0; o < expr->inputs().size(); ++o) {
      const auto axis = shardedAxis(expr->input(o), p);
      if (!axis || !holdsFactor(expr, o, factor)) continue;
      for (size_t a = 0; a < map.numAxes(operand); ++a) {
        const auto factors = map.axis(operand, a);
        if (factors.size() != 1 || factors[0] != factor) continue;
        if (replayPath(out, out->domain().root()[a], axis->path, p)) return;
      }
    }
    fail(expr->op().name(), ": ", at(out), " is reduced over an axis that is divided over ", p,
         " in a way that cannot be repeated on it. Use outer splits of whole axes.");
  }

  /// One sum per mesh axis.
  void separateReductions(TensorView* out, ParallelType) {
    while (true) {
      std::vector<int64_t> device;
      const auto loop = out->getLoopDomain();
      for (size_t i = 0; i < loop.size(); ++i) {
        if (loop[i]->isReduction() && loop[i]->isDeviceDim())
          device.push_back(static_cast<int64_t>(i));
      }
      if (device.size() < 2) return;
      TensorView* partial = out->rfactor({device.back()});
      partial->setDeclared(true);
    }
  }

  // ---- operands divided in different ways

  /// Chooses how the operation is divided over `p` and brings every operand to that.
  void align(Expr* expr, ParallelType p) {
    const auto rows = project(expr, p);
    const size_t result = expr->inputs().size();
    const OperandProjection& out = rows[result];
    MESHFUSE_CHECK(!out.divides_unmapped, expr->op().name(), ": ", at(expr->output(0)),
                   " divides an axis over ", p, " that comes from no operand. Leave it whole.");
    std::optional<FactorSplit> chosen;
    if (out.split && isParallel(expr, *out.split)) chosen = out.split;
    if (!chosen && !out.split) chosen = shardedBefore(expr, rows, p);
    for (size_t o = 0; o < result; ++o) {
      const Placement want = placementFor(expr, o, chosen, p);
      TensorView* in = expr->input(o);
      if (placementOf(in, p) == want) continue;
      fusion_.replaceInput(expr, in, resharded(in, p, want));
    }
    TensorView* before = expr->output(0);
    const Placement want = placementFor(expr, result, chosen, p);
    if (placementOf(before, p) == want) return;
    // The operation's own result is divided as its operands are; the declared one follows it.
    TensorView* now = fusion_.newTensor(before->dtype());
    cloneInto(before, now, p, want);
    fusion_.replaceOutputs(expr, {now});
    const OpDef& set_op = *findOp("set");
    OpCall call(fusion_, set_op, {now});
    fusion_.newExpr(&set_op, call.args(), call.tensors(), {before}, set_op.factors(call), {});
    dropReductions(before);
  }

  static bool isParallel(const Expr* expr, const FactorSplit& split) {
    return std::ranges::all_of(split.factors, [&](int32_t f) {
      return expr->factors().factor(f).kind == FactorKind::Parallel;
    });
  }

  /// For a whole result of operands divided alike: whether to compute divided and gather the
  /// result.
  std::optional<FactorSplit> shardedBefore(const Expr* expr,
                                           const std::vector<OperandProjection>& rows,
                                           ParallelType p) const {
    const FactorSplit* split = nullptr;
    int64_t gathered = 0;
    bool known = true;
    for (size_t o = 0; o < expr->inputs().size(); ++o) {
      if (rows[o].divides_unmapped) return std::nullopt;
      if (!rows[o].split) continue;
      if (split != nullptr && split->key != rows[o].split->key) return std::nullopt;
      split = &*rows[o].split;
      const auto n = elements(expr->input(o));
      known = known && n.has_value();
      gathered += n.value_or(0);
    }
    if (split == nullptr || !isParallel(expr, *split)) return std::nullopt;
    for (size_t o = 0; o < rows.size(); ++o) {
      const bool holds =
          std::ranges::all_of(split->factors, [&](int32_t f) { return holdsFactor(expr, o, f); });
      if (rows[o].is_output && !holds) return std::nullopt;
    }
    const auto result = elements(expr->output(0));
    const bool cheaper = !known || !result || *result <= gathered;
    (void)p;
    return cheaper ? std::optional<FactorSplit>(*split) : std::nullopt;
  }

  /// Number of elements of a tensor whose sizes are constants.
  static std::optional<int64_t> elements(const TensorView* tv) {
    int64_t n = 1;
    for (const IterDomain* id : tv->getLogicalDomain()) {
      if (id->isReduction()) continue;
      const auto size = tv->fusion()->scalars().constInt(id->extent());
      if (!size) return std::nullopt;
      n *= *size;
    }
    return n;
  }

  /// Placement of operand `o` when the operation is divided as `chosen` says.
  Placement placementFor(const Expr* expr, size_t o, const std::optional<FactorSplit>& chosen,
                         ParallelType p) const {
    if (!chosen) return {};
    MESHFUSE_CHECK(chosen->factors.size() == 1, expr->op().name(), ": ", at(expr->output(0)),
                   " is divided over ", p,
                   " through a merged axis, and its operands are not. "
                   "Split one of the axes instead of the merged one.");
    const FactorMap& map = expr->factors();
    for (size_t a = 0; a < map.numAxes(o); ++a) {
      const auto factors = map.axis(o, a);
      if (factors.size() == 1 && factors[0] == chosen->factors[0]) {
        return {nonReductionPosition(expr, o, a), pathFrom(expr, *chosen, p)};
      }
    }
    return {};
  }

  /// Position among the non-reduction logical axes of axis `a` of operand `o`.
  static int64_t nonReductionPosition(const Expr* expr, size_t o, size_t a) {
    if (o < expr->inputs().size()) return static_cast<int64_t>(a);
    const TensorDomain& domain = expr->output(o - expr->inputs().size())->domain();
    return domain.logicalPosition(domain.root()[a]);
  }

  /// The path of the operand that is divided as `chosen`.
  static std::vector<PathStep> pathFrom(const Expr* expr, const FactorSplit& chosen,
                                        ParallelType p) {
    const auto rows = project(expr, p);
    for (const OperandProjection& row : rows) {
      if (row.split && row.split->key == chosen.key) return shardedAxis(row.tensor, p)->path;
    }
    return {};
  }

  static Placement placementOf(const TensorView* tv, ParallelType p) {
    const auto axis = shardedAxis(tv, p);
    if (!axis) return {};
    return {axis->logical, axis->path};
  }

  /// set(tv), divided over `p` as `want` says and over the other mesh axes as `tv`. One per target.
  TensorView* resharded(TensorView* tv, ParallelType p, const Placement& want) {
    auto& made = made_[tv];
    for (const auto& [axis, placement, copy] : made) {
      if (axis == p && placement == want) return copy;
    }
    TensorView* copy = std::get<TensorView*>(callOp(fusion_, *findOp("set"), {tv})[0]);
    copy->setDeviceMesh(tv->getDeviceMesh());
    for (const ParallelType q : kDeviceTypes) {
      place(copy, q, q == p ? want : placementOf(tv, q));
    }
    made.emplace_back(p, want, copy);
    return copy;
  }

  void place(TensorView* tv, ParallelType p, const Placement& want) {
    if (want.axis < 0) return;
    const auto logical = tv->domain().withoutReductions(tv->domain().logical());
    MESHFUSE_CHECK(replayPath(tv, logical[static_cast<size_t>(want.axis)], want.path, p),
                   "decompose-resharding: axis ", AtAxis{want.axis}, " of ", at(tv),
                   " cannot be divided over ", p, " beside its other splits.");
  }

  /// Gives `to` (no schedule yet) the axes of `from`, divided as `from` is except over `p`.
  void cloneInto(TensorView* from, TensorView* to, ParallelType p, const Placement& want) {
    TensorDomain& domain = to->domain();
    std::vector<int32_t> logical;
    for (const IterDomain* id : from->getMaybeRootDomain()) {
      logical.push_back(
          domain.newId(fusion_, to, id->extent(), id->iterType(), id->expandedExtent()));
    }
    domain.setLogical(std::move(logical));
    to->setDeviceMesh(from->getDeviceMesh());
    for (const ParallelType q : kDeviceTypes) place(to, q, q == p ? want : placementOf(from, q));
  }

  /// Makes `before`, now the result of a set, a tensor without reduction axes.
  void dropReductions(TensorView* before) {
    if (!before->hasReduction()) return;
    const std::vector<int64_t> order = strideOrderOf(before);
    std::vector<std::pair<ParallelType, Placement>> placements;
    for (const ParallelType q : kDeviceTypes) placements.emplace_back(q, placementOf(before, q));
    const std::vector<IterDomain*> axes = before->getLogicalDomain();
    before->domain() = TensorDomain();
    std::vector<int32_t> logical;
    for (const IterDomain* id : axes) {
      if (id->isReduction()) continue;
      logical.push_back(before->domain().newId(fusion_, before, id->extent(), id->iterType(),
                                               id->expandedExtent()));
    }
    before->domain().setLogical(std::move(logical));
    if (!order.empty()) before->setStrideOrder(order, "decompose-resharding");
    for (const auto& [q, placement] : placements) place(before, q, placement);
  }

  // ---- bookkeeping for detached addends

  void copyPlacements(TensorView* from, TensorView* to) {
    to->setDeviceMesh(from->getDeviceMesh());
    for (const ParallelType q : kDeviceTypes) place(to, q, placementOf(from, q));
  }

  void replaceEverywhere(TensorView* before, TensorView* now) {
    const std::vector<Expr*> uses = before->uses();
    for (Expr* use : uses) fusion_.replaceInput(use, before, now);
    if (before->isFusionOutput()) fusion_.replaceOutput(before, now);
  }

  void adopt(TensorView* before, TensorView* now) {
    copyPlacements(before, now);
    if (const auto order = strideOrderOf(before); !order.empty()) {
      now->setStrideOrder(order, "decompose-resharding");
    }
    now->setLoc(before->loc());
    now->setName(before->name());
  }

  Fusion& fusion_;
  std::map<TensorView*, std::vector<std::tuple<ParallelType, Placement, TensorView*>>> made_;
};

}  // namespace

static bool decomposeResharding(Fusion& fusion) { return Decomposer(fusion).run(); }

MESHFUSE_REGISTER_PASS(decomposeResharding, "decompose-resharding",
                       "Turns operations whose operands are divided in different ways into local "
                       "operations and communications over one mesh axis each.");

}  // namespace meshfuse
