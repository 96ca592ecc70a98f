// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/passes/projection.h>

namespace meshfuse {
namespace {

std::string describe(const Fusion& fusion, const Expr* expr) {
  const std::string where = fusion.describe(expr->loc());
  return where.empty() ? "" : " (" + where + ")";
}

/// Operands of one operation must be on one mesh, or on none.
void checkMeshes(const Fusion& fusion, const Expr* expr) {
  const TensorView* first = nullptr;
  const auto check = [&](const TensorView* tv) {
    if (!tv->hasDeviceMesh()) return;
    if (first == nullptr) first = tv;
    MESHFUSE_CHECK(
        tv->getDeviceMesh() == first->getDeviceMesh(), expr->op().name(), ": ", at(expr->output(0)),
        describe(fusion, expr), " needs communication: ", first->name(), " is on ",
        first->getDeviceMesh().toString(), ", ", tv->name(), " on ", tv->getDeviceMesh().toString(),
        ", and it is not one communication. Add a set of the operand on the result's mesh.");
  };
  for (const TensorView* tv : expr->inputs()) check(tv);
  for (const TensorView* tv : expr->outputs()) check(tv);
}

/// Either all tensors are on a mesh or none is, CPU scalars aside (semantics 2.7).
void checkAllOrNone(Fusion& fusion) {
  const TensorView *with = nullptr, *without = nullptr;
  for (const TensorView* tv : fusion.usedTvs()) {
    if (tv->isCpuScalar()) continue;
    (tv->hasDeviceMesh() ? with : without) = tv;
  }
  MESHFUSE_CHECK(with == nullptr || without == nullptr,
                 "execute: ", with == nullptr ? "" : with->name(), " is on ",
                 with == nullptr ? "" : with->getDeviceMesh().toString(), ", but ",
                 at(without == nullptr ? with : without),
                 " has no mesh and meets no tensor that has one. Call set_device_mesh on it.");
}

}  // namespace

static bool checkLocal(Fusion& fusion) {
  checkAllOrNone(fusion);
  for (const Expr* expr : fusion.exprs()) {
    if (getCommunicationInfo(expr)) continue;
    checkMeshes(fusion, expr);
    for (const ParallelType p : kDeviceTypes) {
      if (isLocal(expr, p)) continue;
      const auto reason = whyNotLocal(expr, p);
      MESHFUSE_CHECK(
          !reason, expr->op().name(), ": ", at(expr->output(0)), describe(fusion, expr),
          " needs communication over ", p, ": ", reason.value_or(""),
          ", and that is not one communication. Shard the tensors alike (same axis of the "
          "operation, same splits), or leave the axis whole.");
    }
  }
  return false;
}

MESHFUSE_REGISTER_PASS(
    checkLocal, "check-local",
    "Checks that every operation runs on each device alone or is one communication. Changes "
    "nothing; anything else is an error that names the tensors.");

}  // namespace meshfuse
