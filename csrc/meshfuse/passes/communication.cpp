// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/passes/projection.h>

namespace meshfuse {
namespace {

/// The input's axis that is summed is the device axis itself: a finished partial result.
bool isPartialState(const OperandProjection& in, const OperandProjection& out) {
  return in.split && out.reduced && in.split->key == out.reduced->key && in.split->key.size() == 2;
}

std::optional<CommunicationKind> kindOf(const Expr* expr, const OperandProjection& in,
                                        const OperandProjection& out) {
  if (isPartialState(in, out)) {
    return out.split ? CommunicationKind::ReduceScatter : CommunicationKind::AllReduce;
  }
  if (!expr->op().isIdentity() || out.reduced || in.divides_unmapped || out.divides_unmapped) {
    return std::nullopt;
  }
  if (in.split && out.split) return CommunicationKind::AllToAll;
  return in.split ? CommunicationKind::AllGather : CommunicationKind::LocalSlice;
}

}  // namespace

std::string_view name(CommunicationKind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"all-reduce", "all-gather", "reduce-scatter",
                                                      "all-to-all", "local slice"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<CommunicationInfo> getCommunicationInfo(const Expr* expr) {
  if (expr->inputs().size() != 1 || expr->outputs().size() != 1) return std::nullopt;
  if (!(expr->input(0)->getDeviceMesh() == expr->output(0)->getDeviceMesh())) return std::nullopt;
  std::optional<CommunicationInfo> found;
  for (const ParallelType p : kDeviceTypes) {
    if (!whyNotLocal(expr, p)) continue;
    if (found) return std::nullopt;  // two mesh axes: not one communication
    const auto rows = project(expr, p);
    const auto kind = kindOf(expr, rows[0], rows[1]);
    if (!kind) return std::nullopt;
    found = CommunicationInfo{*kind, p, expr->op().reduceKind()};
  }
  return found;
}

}  // namespace meshfuse
