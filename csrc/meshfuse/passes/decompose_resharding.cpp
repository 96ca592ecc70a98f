// SPDX-License-Identifier: BSD-3-Clause
// Turns every operation whose operands are divided in different ways into local operations and
// communications over one mesh axis each (semantics 5.4).
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/alignment.h>
#include <meshfuse/passes/cause.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/passes/factor_path.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/schedule/replay.h>

#include <algorithm>
#include <deque>
#include <map>

namespace meshfuse {
namespace {

class Decomposer {
 public:
  explicit Decomposer(Fusion& fusion) : fusion_(fusion) {}

  bool run() {
    const std::vector<Expr*> exprs = fusion_.exprs();
    todo_.assign(exprs.begin(), exprs.end());
    bool changed = false;
    size_t steps = 0;
    while (!todo_.empty()) {
      MESHFUSE_ASSERT(++steps < 1000 + 100 * exprs.size(), "decompose-resharding does not end");
      Expr* expr = todo_.front();
      todo_.pop_front();
      fusion_.current_loc = expr->loc();
      changed = decompose(expr) || changed;
    }
    fusion_.current_loc = {};
    return changed;
  }

 private:
  bool decompose(Expr* expr) {
    if (!expr->output(0)->hasDeviceMesh() || !isResharding(expr)) return false;
    if (getCommunicationInfo(expr)) return false;
    if (expr->op().isIdentity() && expr->inputs().size() == 1) {
      chain(expr);
      return true;
    }
    const Alignment alignment = chooseAlignment(expr);
    if (alignment.hasPartial() && (widen(expr, alignment) || detachAddends(expr, alignment))) {
      return true;
    }
    noteCause(expr);
    TensorViews operands = expr->inputs();
    for (size_t o = 0; o < operands.size(); ++o) {
      if (!operands[o]->hasDeviceMesh()) continue;
      const MeshState want = stateUnder(expr, o, alignment);
      if (!(stateOf(operands[o]) == want)) operands[o] = resharded(operands[o], want);
    }
    expr = withOperands(expr, operands);
    for (size_t i = 0; i < expr->outputs().size(); ++i) alignResult(expr, i, alignment);
    if (alignment.hasPartial()) reduce(expr, alignment);
    return true;
  }

  /// The operation with other operands. One that reads a tensor twice, now in two states, is made
  /// anew.
  Expr* withOperands(Expr* expr, const TensorViews& operands) {
    const TensorViews before = expr->inputs();
    if (operands == before) return expr;
    bool alike = true;
    for (size_t o = 0; o < before.size(); ++o) {
      for (size_t k = 0; k < o; ++k) {
        alike = alike && (before[o] != before[k] || operands[o] == operands[k]);
      }
    }
    if (alike) {
      for (size_t o = 0; o < before.size(); ++o) {
        if (operands[o] != before[o]) fusion_.replaceInput(expr, before[o], operands[o]);
      }
      return expr;
    }
    std::vector<Arg> args = expr->args();
    size_t next = 0;
    for (Arg& arg : args) {
      if (auto* tv = std::get_if<TensorView*>(&arg)) *tv = operands[next++];
      if (auto* list = std::get_if<std::vector<TensorView*>>(&arg)) {
        for (TensorView*& tv : *list) tv = operands[next++];
      }
    }
    Expr* now = fusion_.newExpr(&expr->op(), std::move(args), operands, expr->outputs(),
                                expr->factors(), expr->constraints());
    now->setCause(expr->cause());
    return now;
  }

  // ---- results

  /// The axes of a piece of a reduction cannot be made anew: what it keeps would be lost.
  static void refusePiece(const Expr* expr, const TensorView* tv) {
    MESHFUSE_CHECK(!tv->domain().hasRoot(), expr->op().name(), ": ", at(tv),
                   " is a piece of a reduction (rfactor), and its operands are divided in another "
                   "way. Shard its operands as it is.");
  }

  /// Makes result `i` what the alignment gives; the declared tensor becomes a `set` of it.
  void alignResult(Expr* expr, size_t i, const Alignment& alignment) {
    TensorView* before = expr->output(i);
    const MeshState natural = stateUnder(expr, expr->inputs().size() + i, alignment);
    if (stateOf(before) == natural || sendsPartials(before, alignment)) {
      if (asksOtherwise(expr, alignment)) {
        refusePiece(expr, before);
        rebuild(before, true);
      }
      return;
    }
    refusePiece(expr, before);
    TensorView* now = fusion_.newTensor(before->dtype());
    now->setLoc(before->loc());
    copyAxes(before->getLogicalDomain(), now, true);
    putState(now, natural);
    now->setDeclared(false);
    TensorViews outputs = expr->outputs();
    outputs[i] = now;
    fusion_.replaceOutputs(expr, std::move(outputs));
    rebuild(before, false);
    makeSet(now, before);
  }

  /// A whole result on another mesh of partial results: they are reduced there, in one step.
  static bool sendsPartials(const TensorView* result, const Alignment& alignment) {
    if (result->getDeviceMesh() == *alignment.mesh || !alignment.hasPartial()) return false;
    int64_t divided = 0;
    for (const ParallelType p : kDeviceTypes) {
      const bool whole = placementOf(result, p).whole() || !hasSeveralDevices(result, p);
      const AxisChoice& choice = alignment.on(p);
      divided += choice.kind == AxisChoice::Partial ? 1 : 0;
      if (!whole || choice.kind == AxisChoice::Parallel) return false;
    }
    return divided == 1;
  }

  void makeSet(TensorView* from, TensorView* to) {
    const OpDef& set_op = *findOp("set");
    const OpCall call(fusion_, set_op, {from});
    Expr* expr =
        fusion_.newExpr(&set_op, call.args(), call.tensors(), {to}, set_op.factors(call), {});
    inserted(expr);
  }

  /// The memory order that a tensor was given, as setStrideOrder takes it; empty when it was not.
  static std::vector<int64_t> fixedOrder(const TensorView* tv) {
    if (!tv->hasAllocation()) return {};
    std::vector<int64_t> order = strideOrderOf(tv);
    if (!order.empty()) return order;
    for (int64_t i = tv->ndim(); i-- > 0;) order.push_back(i);
    return order;
  }

  /// Whether the result asks for other reductions across the mesh than it will get.
  static bool asksOtherwise(const Expr* expr, const Alignment& alignment) {
    return std::ranges::any_of(kDeviceTypes, [&](ParallelType p) {
      const auto rows = project(expr, p);
      const auto& reduced = rows[expr->inputs().size()].reduced;
      const AxisChoice& choice = alignment.on(p);
      return reduced && !(choice.kind == AxisChoice::Partial && choice.key == reduced->key);
    });
  }

  /// Gives a tensor without axes logical axes like `axes`; without the reductions it is the result
  /// of another operation, which keeps no axis of a reduction.
  void copyAxes(const IdList& axes, TensorView* tv, bool keep_reductions) {
    TensorDomain& domain = tv->domain();
    AxisList logical;
    for (const IterDomain* id : axes) {
      if (id->isReduction() && !keep_reductions) continue;
      logical.push_back(
          domain.newId(fusion_, tv, id->extent(), id->iterType(), id->expandedExtent()));
      if (keep_reductions && id->isRFactorProduct()) {
        domain.setRFactor(logical.back(), id->iterType(), true);
      }
    }
    tv->domain().setLogical(std::move(logical));
  }

  /// Makes the axes of a tensor anew, divided as they are, its reduction axes whole or left out.
  void rebuild(TensorView* tv, bool keep_reductions) {
    if (!tv->hasReduction()) return;
    const std::vector<int64_t> order = fixedOrder(tv);
    const MeshState state = stateOf(tv);
    const bool declared = tv->meshIsDeclared();
    const IdList axes = tv->getLogicalDomain();
    tv->domain() = TensorDomain();
    copyAxes(axes, tv, keep_reductions);
    if (!order.empty()) tv->setStrideOrder(order, "decompose-resharding");
    putState(tv, state);
    tv->setDeclared(declared);
  }

  // ---- partial results

  /// Partial results on each device, then a reduction across each mesh axis.
  void reduce(Expr* expr, const Alignment& alignment) {
    TensorView* out = expr->output(0);
    const DeviceMesh result_mesh = out->getDeviceMesh();
    const bool elsewhere = !(result_mesh == *alignment.mesh);
    const bool declared = out->meshIsDeclared();
    const std::vector<int64_t> order = fixedOrder(out);
    if (elsewhere) {  // for now: the partial results are where the operands are
      rebuild(out, true);
      clearDevices(out);
      out->setDeviceMesh(*alignment.mesh);
    }
    for (const ParallelType p : kDeviceTypes) {
      const AxisChoice& choice = alignment.on(p);
      if (choice.kind != AxisChoice::Partial) continue;
      leaveWork(expr, out, p);
      requestReduction(expr, out, choice, p);
    }
    while (!getCommunicationInfo(out->definition())) {
      const std::vector<int64_t> inner = reductionsBesideOneDevice(out);
      if (inner.empty()) break;
      TensorView* partial = out->rfactor(inner);
      partial->setDeclared(false);
      inserted(out->definition());
      if (!order.empty()) out->setStrideOrder(order, "decompose-resharding");
    }
    if (elsewhere) {
      clearDevices(out);
      out->setDeviceMesh(result_mesh);
    }
    out->setDeclared(declared);
  }

  static void clearDevices(TensorView* tv) {
    for (const int32_t i : tv->domain().loop()) {
      if (tv->domain().id(i)->isDeviceDim()) tv->domain().parallelize(i, ParallelType::Serial);
    }
  }

  /// Positions in the loop of all reduction axes but one that is on the mesh.
  static std::vector<int64_t> reductionsBesideOneDevice(const TensorView* tv) {
    std::vector<int64_t> serial, device;
    const auto loop = tv->getLoopDomain();
    for (size_t i = 0; i < loop.size(); ++i) {
      if (!loop[i]->isReduction()) continue;
      (loop[i]->isDeviceDim() ? device : serial).push_back(static_cast<int64_t>(i));
    }
    if (!serial.empty()) return serial;
    if (device.size() > 1) return {device.back()};
    return {};
  }

  /// Where the reduced axis itself is on the mesh and the operation is more than a sum of partial
  /// results: takes it off, to be split into the devices and an inner half that the operation
  /// reduces first.
  static void leaveWork(const Expr* expr, TensorView* out, ParallelType p) {
    const auto device = reducedAxis(out, p);
    if (!device || combinesPartials(expr) || out->domain().definition(*device) != nullptr) return;
    out->domain().parallelize(*device, ParallelType::Serial);
  }

  void requestReduction(Expr* expr, TensorView* out, const AxisChoice& choice, ParallelType p) {
    if (reducedAxis(out, p)) return;
    SplitPath path = choice.path;
    const int64_t axis = axisOfFactor(expr, expr->inputs().size(), choice.factor);
    const int32_t root = axis < 0 ? -1 : out->domain().root()[static_cast<size_t>(axis)];
    if (root >= 0 && path.empty()) {  // the axis itself: each device then reduces one element
      path.push_back({true, false, out->domain().id(root)->extent()});
    }
    MESHFUSE_CHECK(root >= 0 && replayPath(out, root, path, p), expr->op().name(), ": ", at(out),
                   " is reduced over an axis that is divided over ", p,
                   " in a way that cannot be repeated on it. Use outer splits of whole axes.");
  }

  /// Operands that the op adds to the result would be added once per device: adds them afterwards.
  bool detachAddends(Expr* expr, const Alignment& alignment) {
    const auto isAddend = [&](size_t o) {
      return std::ranges::any_of(alignment.choices, [&](const AxisChoice& choice) {
        return choice.kind == AxisChoice::Partial && !holdsFactor(expr, o, choice.factor);
      });
    };
    bool found = false;
    for (size_t o = 0; o < expr->inputs().size(); ++o) found = found || isAddend(o);
    if (!found) return false;
    TensorView* out = expr->output(0);
    const size_t known = fusion_.allExprs().size();
    const OpCall call(*expr);
    const std::vector<TensorView*> pieces = expr->op().withoutAddends(call);
    if (pieces.empty()) return false;  // the operand multiplies, or says where
    replaceBy(out, pieces[0], pieces[1], known, alignment);
    return true;
  }

  /// A program may ask for wider partial results and sums: computes in that type, and rounds once.
  bool widen(Expr* expr, const Alignment& alignment) {
    const DataType wide = fusion_.reduce_dtype;
    TensorView* out = expr->output(0);
    const ReduceKind kind = expr->op().reduceKind();
    const bool rounds = kind == ReduceKind::Sum || kind == ReduceKind::Prod;
    if (wide == DataType::Null || !rounds || !isFloating(out->dtype()) ||
        bitsOf(out->dtype()) >= bitsOf(wide)) {
      return false;
    }
    const size_t known = fusion_.allExprs().size();
    std::vector<Arg> args = expr->args();
    std::vector<std::pair<TensorView*, const TensorView*>> casts;
    for (Arg& arg : args) {
      if (auto* type = std::get_if<DataType>(&arg); type != nullptr && *type == out->dtype()) {
        *type = wide;
      }
      auto* tv = std::get_if<TensorView*>(&arg);
      if (tv == nullptr || !isFloating((*tv)->dtype())) continue;
      TensorView* narrow = *tv;
      *tv = std::get<TensorView*>(callOp(fusion_, *findOp("cast"), {narrow, wide})[0]);
      casts.emplace_back(*tv, narrow);
    }
    const size_t first = fusion_.allExprs().size();
    TensorView* sum = std::get<TensorView*>(callOp(fusion_, expr->op(), std::move(args))[0]);
    for (const auto& [cast, narrow] : casts) {  // now: reductions refuse divided operands
      putState(cast, stateOf(narrow));
      cast->setDeclared(false);
    }
    TensorView* rounded =
        std::get<TensorView*>(callOp(fusion_, *findOp("cast"), {sum, out->dtype()})[0]);
    for (size_t i = known; i < first; ++i) todo_.push_front(&fusion_.allExprs()[i]);
    replaceBy(out, sum, rounded, first, alignment);
    return true;
  }

  /// Puts `whole`, made from `sum` by the operations from number `first` on, in place of `out`.
  void replaceBy(TensorView* out, TensorView* sum, TensorView* whole, size_t first,
                 const Alignment& alignment) {
    const MeshState state = stateOf(out);
    // Everything between the sum and the result is divided as the result is.
    for (size_t i = first; i < fusion_.allExprs().size(); ++i) {
      Expr* made = &fusion_.allExprs()[i];
      for (TensorView* tv : made->outputs()) {
        putState(tv, state);
        tv->setDeclared(tv == whole && out->meshIsDeclared());
      }
      todo_.push_front(made);
    }
    for (const ParallelType p : kDeviceTypes) {
      const AxisChoice& choice = alignment.on(p);
      if (choice.kind == AxisChoice::Partial) requestReduction(sum->definition(), sum, choice, p);
    }
    if (const auto order = fixedOrder(out); !order.empty()) {
      whole->setStrideOrder(order, "decompose-resharding");
    }
    const ExprList uses = out->uses();
    for (Expr* use : uses) fusion_.replaceInput(use, out, whole);
    if (out->isFusionOutput()) fusion_.replaceOutput(out, whole);
    whole->setLoc(out->loc());
    whole->setName(out->name());
  }

  // ---- operands

  /// set(tv) in another state; one per tensor and state.
  TensorView* resharded(TensorView* tv, const MeshState& want) {
    for (const auto& [state, copy] : made_[tv]) {
      if (state == want) return copy;
    }
    TensorView* copy = std::get<TensorView*>(callOp(fusion_, *findOp("set"), {tv})[0]);
    putState(copy, want);
    copy->setDeclared(false);
    made_[tv].emplace_back(want, copy);
    inserted(copy->definition());
    return copy;
  }

  /// A `set` over several mesh axes of one mesh: one step per axis.
  void chain(Expr* expr) {
    TensorView* from = expr->input(0);
    const MeshState target = stateOf(expr->output(0));
    MeshState now = stateOf(from);
    cause_ = expr->cause();
    std::vector<ParallelType> left;
    for (const ParallelType p : kDeviceTypes) {
      if (!isLocal(expr, p)) {
        left.push_back(p);
      } else {
        now.on(p) = target.on(p);  // the same parts, perhaps by other splits
      }
    }
    if (!fitTogether(now)) now = stateOf(from);
    while (left.size() > 1) {
      const auto [place, next] = nextStep(now, target, left);
      now = next;
      from = resharded(from, now);
      if (now.on(left[place]) == target.on(left[place])) {
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(place));
      }
    }
    fusion_.replaceInput(expr, expr->input(0), from);
  }

  /// What is cheapest first: a slice makes what follows smaller, a gather makes it larger. Where no
  /// target fits beside the others, a mesh axis makes way: it is gathered.
  static std::pair<size_t, MeshState> nextStep(const MeshState& now, const MeshState& target,
                                               const std::vector<ParallelType>& left) {
    const auto rank = [&](ParallelType p) {
      if (now.on(p).whole()) return 0;
      return target.on(p).whole() ? 2 : 1;
    };
    for (int wanted = 0; wanted < 3; ++wanted) {
      for (size_t i = 0; i < left.size(); ++i) {
        if (rank(left[i]) != wanted) continue;
        MeshState next = now;
        next.on(left[i]) = target.on(left[i]);
        if (fitTogether(next)) return {i, next};
      }
    }
    size_t deepest = 0;
    for (size_t i = 1; i < left.size(); ++i) {
      if (now.on(left[i]).path.size() > now.on(left[deepest]).path.size()) deepest = i;
    }
    MeshState next = now;
    next.on(left[deepest]) = {};
    return {deepest, next};
  }

  // ---- why

  void noteCause(const Expr* expr) {
    cause_ = expr->cause();
    if (cause_) return;
    const auto axis =
        std::ranges::find_if(kDeviceTypes, [&](ParallelType p) { return !isLocal(expr, p); });
    cause_ = std::make_shared<const Cause>(
        causeOf(expr, axis == kDeviceTypes.end() ? ParallelType::DIDx : *axis, fusion_));
  }

  void inserted(Expr* expr) {
    if (cause_) expr->setCause(cause_);
    todo_.push_back(expr);
  }

  Fusion& fusion_;
  std::deque<Expr*> todo_;
  std::map<TensorView*, std::vector<std::pair<MeshState, TensorView*>>> made_;
  std::shared_ptr<const Cause> cause_;
};

}  // namespace

static bool decomposeResharding(Fusion& fusion) { return Decomposer(fusion).run(); }

MESHFUSE_REGISTER_PASS(decomposeResharding, "decompose-resharding",
                       "Turns operations whose operands are divided in different ways into local "
                       "operations and communications over one mesh axis each.");

}  // namespace meshfuse
