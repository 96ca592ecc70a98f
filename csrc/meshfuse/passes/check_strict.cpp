// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/environment.h>
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/cause.h>
#include <meshfuse/passes/pass.h>

#include <algorithm>

namespace meshfuse {
namespace {

bool isDeclaredSet(const Expr* expr) {
  return expr->op().isIdentity() && expr->output(0)->meshIsDeclared();
}

/// The user has written the communication down: as a set whose result is annotated, or, since
/// nothing but communication can finish a sum over devices, by an annotation of its result or of
/// the sets that read it.
bool isExplicit(const Expr* user, std::string_view kind) {
  if (isDeclaredSet(user)) return true;
  const bool sums = kind == "all-reduce" || kind == "reduce-scatter" || kind == "reduce";
  if (!sums) return false;
  const TensorView* out = user->output(0);
  if (out->meshIsDeclared()) return true;
  return !out->isFusionOutput() && !out->uses().empty() &&
         std::ranges::all_of(out->uses(), isDeclaredSet);
}

std::string describe(const Fusion& fusion, const Cause& cause, const CommunicationInfo& info) {
  std::string lines;
  for (const SourceLoc loc : cause.lines) {
    lines += (lines.empty() ? " (" : ", ") + fusion.describe(loc);
  }
  if (!lines.empty()) lines += ')';
  return concat(cause.op, ": ", cause.tensor, " needs an implicit ", name(info.kind), " over ",
                info.mesh_axis, ": ", cause.reason, lines);
}

}  // namespace

static bool checkStrict(Fusion& fusion) {
  if (!fusion.strict && !environmentFlag("MESHFUSE_STRICT")) return false;
  const std::unique_ptr<Fusion> copy = fusion.clone();
  runPass(*copy, "decompose-resharding");
  const CommunicationCauses causes(fusion);
  std::string faults;
  for (const Expr* expr : copy->exprs()) {
    const auto info = sentCommunication(expr);
    if (!info) continue;
    const Expr* user = causes.userOf(expr);
    if (user != nullptr && isExplicit(user, name(info->kind))) continue;
    const Cause cause = causes.causeFor(expr, info->mesh_axis);
    faults += (faults.empty() ? "" : "\n") + describe(fusion, cause, *info);
  }
  MESHFUSE_CHECK(faults.empty(), "strict mode: ", faults,
                 ". Write the communication down: pass the operand through fd.ops.set and give "
                 "the result of the set the sharding that is needed (set_device_mesh, splits, "
                 "parallelize); for a sum over devices, annotate its result. Or shard the tensors "
                 "alike. fd.explain() shows every communication.");
  return false;
}

MESHFUSE_REGISTER_PASS(
    checkStrict, "check-strict",
    "In strict mode (FusionDefinition(strict=True), MESHFUSE_STRICT=1): checks that the user has "
    "written down every communication, as a set with an annotated result, or as an annotation of "
    "the result of a sum over devices. Changes nothing.");

}  // namespace meshfuse
