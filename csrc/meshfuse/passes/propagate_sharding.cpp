// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/passes/projection.h>
#include <meshfuse/schedule/replay.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// Root axis of output `operand` that runs over factor `f` alone; -1 when there is none.
int32_t axisOfFactor(const Expr* expr, size_t operand, const TensorView* tv, int32_t f) {
  const FactorMap& map = expr->factors();
  const auto& root = tv->domain().root();
  for (size_t axis = 0; axis < map.numAxes(operand); ++axis) {
    const auto factors = map.axis(operand, axis);
    if (factors.size() == 1 && factors[0] == f) return root[axis];
  }
  return -1;
}

/// Copies the split of `from` over `p` to `out` along the factor that it divides.
bool copySplit(const Expr* expr, const TensorView* from, size_t operand, TensorView* out,
               size_t out_operand, ParallelType p) {
  const auto axis = shardedAxis(from, p);
  if (!axis || axis->through_merge || axis->logical < 0) return false;
  if (!out->getDeviceMesh().hasParallelType(p)) return false;
  if (out->getDeviceMesh().size(p) != from->getDeviceMesh().size(p)) return false;
  const auto factors = expr->factors().axis(operand, static_cast<size_t>(axis->logical));
  if (factors.size() != 1) return false;
  if (expr->factors().factor(factors[0]).kind == FactorKind::Blocking) return false;
  const int32_t target = axisOfFactor(expr, out_operand, out, factors[0]);
  if (target < 0) return false;
  const bool reduction = out->domain().id(target)->isReduction();
  const bool used = reduction ? reducedAxis(out, p).has_value() : shardedAxis(out, p).has_value();
  return !used && replayPath(out, target, axis->path, p);
}

/// Gives an undeclared output the mesh and the splits of its operands.
bool spreadForward(Expr* expr) {
  bool changed = false;
  OpCall call(*expr->outputs()[0]->fusion(), expr->op(), expr->args());
  for (size_t o = 0; o < expr->outputs().size(); ++o) {
    TensorView* out = expr->outputs()[o];
    if (out->meshIsDeclared() || out->hasDeviceMesh()) continue;
    const size_t out_operand = expr->inputs().size() + o;
    for (const int i : expr->op().referenceOrder(call)) {
      const TensorView* from = expr->input(static_cast<size_t>(i));
      if (!from->hasDeviceMesh() || from->isCpuScalar()) continue;
      if (!out->hasDeviceMesh()) {
        out->setDeviceMesh(from->getDeviceMesh());
        out->setDeclared(false);
        changed = true;
      }
      for (const ParallelType p : kDeviceTypes) {
        changed = copySplit(expr, from, static_cast<size_t>(i), out, out_operand, p) || changed;
      }
    }
  }
  return changed;
}

/// A tensor that meets meshed tensors in an operation and has no mesh is replicated over theirs.
bool spreadMesh(Expr* expr) {
  const TensorView* meshed = nullptr;
  const auto look = [&](const TensorView* tv) {
    if (meshed == nullptr && tv->hasDeviceMesh()) meshed = tv;
  };
  for (const TensorView* tv : expr->outputs()) look(tv);
  for (const TensorView* tv : expr->inputs()) look(tv);
  if (meshed == nullptr) return false;
  bool changed = false;
  for (TensorView* tv : expr->inputs()) {
    if (tv->hasDeviceMesh() || tv->isCpuScalar()) continue;
    tv->setDeviceMesh(meshed->getDeviceMesh());
    tv->setDeclared(false);
    changed = true;
  }
  return changed;
}

}  // namespace

static bool propagateSharding(Fusion& fusion) {
  bool changed = false;
  const std::vector<Expr*> exprs = fusion.exprs();
  for (bool again = true; again; changed = changed || again) {
    again = false;
    for (Expr* expr : exprs) again = spreadForward(expr) || again;
    for (auto it = exprs.rbegin(); it != exprs.rend(); ++it) again = spreadMesh(*it) || again;
  }
  return changed;
}

MESHFUSE_REGISTER_PASS(
    propagateSharding, "propagate-sharding",
    "Gives results without a mesh the mesh and the splits of their operands, along "
    "each op's factors; operands without a mesh are replicated. User annotations are "
    "never changed.");

}  // namespace meshfuse
