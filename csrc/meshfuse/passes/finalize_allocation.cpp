// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>
#include <utility>

namespace meshfuse {
namespace {

/// The output of a pointwise op whose memory order nobody set takes that of the operand asked first
/// that has all its axes, so that an order travels on without a copy.
bool inheritOrder(Expr* expr) {
  TensorView* out = expr->outputs()[0];
  if (!expr->op().isPointwise() || out->hasAllocation()) return false;
  const OpCall call(*expr);
  for (const int i : expr->op().referenceOrder(call)) {
    const TensorView* in = expr->input(static_cast<size_t>(i));
    const auto axes = in->domain().withoutReductions(in->domain().logical());
    const bool has_all = in->ndim() == out->ndim() && std::ranges::all_of(axes, [&](int32_t a) {
                           return !in->domain().id(a)->isBroadcast();
                         });
    if (!has_all) continue;
    const std::vector<int64_t> order = strideOrderOf(in);
    if (order.empty()) return false;
    out->setStrideOrder(order, "finalize-allocation");
    return true;
  }
  return false;
}

/// The cut axis of a gather or reduce-scatter is outermost in memory, which saves copies, unless
/// the user has set the result's memory order (semantics 6).
bool cutAxisOutermost(const Expr* expr) {
  const auto info = getCommunicationInfo(expr);
  if (!info || info->between_meshes) return false;
  TensorView* out = expr->output(0);
  const bool gathers = info->kind == CommunicationKind::AllGather;
  if (out->hasAllocation() || (!gathers && info->kind != CommunicationKind::ReduceScatter)) {
    return false;
  }
  const auto cut = shardedAxis(gathers ? expr->input(0) : out, info->mesh_axis);
  if (!cut || cut->logical <= 0) return false;
  const bool outer_first = cut->path.empty() || (cut->path.size() == 1 && cut->path[0].outer_half);
  if (!outer_first) return false;
  const auto n = static_cast<size_t>(out->ndim());
  std::vector<int64_t> order(n);  // place of each axis, 0 innermost
  int64_t place = static_cast<int64_t>(n) - 1;
  order[static_cast<size_t>(cut->logical)] = place--;
  for (size_t i = 0; i < n; ++i) {
    if (std::cmp_not_equal(i, cut->logical)) order[i] = place--;
  }
  out->setStrideOrder(order, "finalize-allocation");
  return true;
}

/// Parallel axes first (stream, z, y, x), the rest in order.
bool orderLoop(TensorView* tv) {
  const auto rank = [&](int32_t i) {
    const ParallelType p = tv->domain().id(i)->getParallelType();
    if (p == ParallelType::Stream) return 0;
    return isDeviceType(p) ? 1 + static_cast<int>(p) : 10;
  };
  if (std::ranges::is_sorted(tv->domain().loop(), {}, rank)) return false;
  AxisList loop = tv->domain().loop();
  std::ranges::stable_sort(loop, {}, rank);
  tv->domain().setLoop(std::move(loop));
  return true;
}

void checkAgreement(const TensorView* tv) {
  for (const ParallelType p : kDeviceTypes) {
    const auto loop = deviceAxis(tv, p, DomainKind::Loop);
    const auto memory = deviceAxis(tv, p, DomainKind::Allocation);
    if (loop == memory) continue;
    fail("finalize-allocation: ", at(tv), " is divided over ", p, " in its ",
         loop ? "loop" : "allocation", " domain but not in its ", loop ? "allocation" : "loop",
         " domain. Call set_allocation_as_loop, or leave the allocation to the library.");
  }
}

}  // namespace

static bool finalizeAllocation(Fusion& fusion) {
  bool changed = false;
  for (Expr* expr : fusion.exprs())
    changed = cutAxisOutermost(expr) || inheritOrder(expr) || changed;
  for (TensorView* tv : fusion.usedTvs()) {
    changed = alignAllocationWithLoop(tv) || changed;
    changed = orderLoop(tv) || changed;
    checkAgreement(tv);
  }
  return changed;
}

MESHFUSE_REGISTER_PASS(
    finalizeAllocation, "finalize-allocation",
    "Makes every allocation domain the memory order that the user set, else the "
    "operand's (pointwise ops), else the logical order, with the device splits of "
    "the loop domain repeated in place. Device axes come first in the loop.");

}  // namespace meshfuse
