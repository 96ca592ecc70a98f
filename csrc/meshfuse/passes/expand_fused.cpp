// SPDX-License-Identifier: BSD-3-Clause
// Makes ops in one piece of others where the axis that they need whole is divided.
#include <meshfuse/ops/fused.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/passes/projection.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// Whether the first operand is divided along a factor that the op needs whole.
bool dividesBlocking(const Expr* expr) {
  return std::ranges::any_of(kDeviceTypes, [&](ParallelType p) {
    const auto row = projectOperand(expr, 0, p);
    return row.split && std::ranges::any_of(row.split->factors, [&](int32_t f) {
             return expr->factors().factor(f).kind == FactorKind::Blocking;
           });
  });
}

/// The tensors of the program stay what they are, and get other definitions.
void expand(Fusion& fusion, Expr* expr, const FusedOp& op) {
  fusion.current_loc = expr->loc();
  const std::vector<TensorView*> results = expr->outputs();
  const std::vector<TensorView*> made = op.pieces(OpCall(*expr));
  std::vector<Expr*> last;
  last.reserve(made.size());
  for (const TensorView* tv : made) last.push_back(tv->definition());
  fusion.replaceOutputs(expr, TensorViews(made));
  for (size_t i = 0; i < results.size(); ++i) {
    TensorViews outputs = last[i]->outputs();
    std::ranges::replace(outputs, made[i], results[i]);
    fusion.replaceOutputs(last[i], std::move(outputs));
  }
  fusion.current_loc = {};
}

}  // namespace

static bool expandFused(Fusion& fusion) {
  bool changed = false;
  for (bool again = true; again;) {
    again = false;
    for (Expr* expr : fusion.exprs()) {
      const FusedOp* op = asFused(expr->op());
      if (op == nullptr || !dividesBlocking(expr)) continue;
      expand(fusion, expr, *op);
      again = true;
    }
    // The results of the pieces are divided where that of the op was whole, and readers follow.
    if (again) findPass("propagate-sharding").run(fusion);
    changed = changed || again;
  }
  return changed;
}

MESHFUSE_REGISTER_PASS(
    expandFused, "expand-fused",
    "Makes operations such as layer_norm of others where their first operand is divided along an "
    "axis that they need whole: then partial sums are communicated and the operand stays divided. "
    "Propagates the shardings through them.");

}  // namespace meshfuse
