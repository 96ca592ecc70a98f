// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/passes/projection.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// Whether each device has one element of the factor: the factor itself is on the mesh, or the
/// outer half of a split that leaves one element to the inner half.
bool hasOneEach(const Expr* expr, const FactorSplit& split) {
  if (split.key.size() == 2) return true;
  if (split.path.size() != 1 || split.factors.size() != 1 || !split.path[0].outer_half)
    return false;
  const ScalarPool& pool = expr->output(0)->fusion()->scalars();
  const PathStep& step = split.path[0];
  const auto extent = pool.constInt(expr->factors().factor(split.factors[0]).extent);
  return pool.constInt(step.factor) == (step.inner_split ? 1 : extent);
}

int64_t dimensions(const TensorView* tv) { return tv->ndim(); }

/// The only axis that is summed is the device axis itself: a finished partial result. The other
/// half of a split of that axis leaves nothing to sum if it holds a single element. Another axis of
/// the operand is local work even with one element, as its dimension has to go.
bool sumsDevices(const Expr* expr, const OperandProjection& in) {
  if (!in.split || !combinesPartials(expr) || !hasOneEach(expr, *in.split)) return false;
  const TensorView* out = expr->output(0);
  const ScalarPool& pool = out->fusion()->scalars();
  return expr->factors().factor(in.split->factors[0]).kind == FactorKind::Reduction &&
         dimensions(expr->input(0)) == dimensions(out) + 1 &&
         std::ranges::count_if(out->getLoopDomain(), [&](const IterDomain* id) {
           return id->isReduction() && pool.constInt(id->extent()) != 1;
         }) == 1;
}

bool isPartialState(const Expr* expr, const OperandProjection& in, const OperandProjection& out) {
  return out.reduced && sumsDevices(expr, in) && in.split->key == out.reduced->key;
}

std::optional<CommunicationKind> kindOf(const Expr* expr, const OperandProjection& in,
                                        const OperandProjection& out) {
  if (isPartialState(expr, in, out)) {
    return out.split ? CommunicationKind::ReduceScatter : CommunicationKind::AllReduce;
  }
  if (!expr->op().isIdentity() || out.reduced || in.divides_unmapped || out.divides_unmapped) {
    return std::nullopt;
  }
  if (in.split && out.split) return CommunicationKind::AllToAll;
  return in.split ? CommunicationKind::AllGather : CommunicationKind::LocalSlice;
}

std::optional<ParallelType> dividedOver(const TensorView* tv) {
  for (const ParallelType p : kDeviceTypes) {
    if (hasSeveralDevices(tv, p) && shardedAxis(tv, p)) return p;
  }
  return std::nullopt;
}

/// Between two meshes: an identity, or a reduction of partial results to the devices of another
/// mesh.
std::optional<CommunicationInfo> betweenMeshes(const Expr* expr) {
  const TensorView *in = expr->input(0), *out = expr->output(0);
  CommunicationInfo info{.reduce = expr->op().reduceKind(), .between_meshes = true};
  const auto from = dividedOver(in), to = dividedOver(out);
  info.mesh_axis = from.value_or(to.value_or(ParallelType::DIDx));
  if (!expr->op().isIdentity()) {
    if (to || !from) return std::nullopt;
    for (const ParallelType p : kDeviceTypes) {
      const auto rows = project(expr, p);
      const bool divided = hasSeveralDevices(in, p) && shardedAxis(in, p);
      // The result's mesh need not have the mesh axis, so it does not ask for the reduction.
      if (divided && !(p == *from && sumsDevices(expr, rows[0]))) return std::nullopt;
    }
    info.kind = CommunicationKind::Reduce;
    return info;
  }
  const auto& receivers = out->getDeviceMesh().vector();
  const bool all_have = std::ranges::all_of(
      receivers, [&](int64_t device) { return in->getDeviceMesh().has(device); });
  if (!from && all_have) {
    info.kind = CommunicationKind::LocalSlice;
  } else if (from) {
    info.kind = to ? CommunicationKind::SendRecv : CommunicationKind::Gather;
  } else {
    info.kind = to ? CommunicationKind::Scatter : CommunicationKind::Broadcast;
  }
  return info;
}

}  // namespace

std::string_view name(CommunicationKind kind) {
  constexpr std::array<std::string_view, 10> kNames = {
      "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "local slice",
      "broadcast",  "gather",     "scatter",        "reduce",     "send-recv"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t bitsOf(DataType type) {
  switch (type) {
    case DataType::ComplexDouble:
      return 128;
    case DataType::Double:
    case DataType::Int:
    case DataType::UInt64:
    case DataType::Index:
    case DataType::ComplexFloat:
      return 64;
    case DataType::Float:
    case DataType::Int32:
      return 32;
    case DataType::Half:
    case DataType::BFloat16:
      return 16;
    case DataType::Float4_e2m1fn:
      return 4;
    default:
      return 8;
  }
}

bool hasSeveralDevices(const TensorView* tv, ParallelType p) {
  return tv->hasDeviceMesh() && tv->getDeviceMesh().hasParallelType(p) &&
         tv->getDeviceMesh().size(p) > 1;
}

bool combinesPartials(const Expr* expr) {
  return expr->op().name() == name(expr->op().reduceKind()) &&
         expr->input(0)->dtype() == expr->output(0)->dtype();
}

std::optional<CommunicationInfo> getCommunicationInfo(const Expr* expr) {
  if (expr->inputs().size() != 1 || expr->outputs().size() != 1) return std::nullopt;
  const TensorView *in = expr->input(0), *out = expr->output(0);
  if (!in->hasDeviceMesh() || !out->hasDeviceMesh()) return std::nullopt;
  if (!(in->getDeviceMesh() == out->getDeviceMesh())) return betweenMeshes(expr);
  std::optional<CommunicationInfo> found;
  for (const ParallelType p : kDeviceTypes) {
    const auto rows = projectUnlessLocal(expr, p);
    if (rows.empty()) continue;
    if (found) return std::nullopt;  // two mesh axes: not one communication
    const auto kind = kindOf(expr, rows[0], rows[1]);
    if (!kind) return std::nullopt;
    found = CommunicationInfo{.kind = *kind, .mesh_axis = p, .reduce = expr->op().reduceKind()};
  }
  return found;
}

}  // namespace meshfuse
