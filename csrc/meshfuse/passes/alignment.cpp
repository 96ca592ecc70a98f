// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/passes/alignment.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/passes/factor_path.h>

#include <algorithm>

namespace meshfuse {
namespace {

constexpr double kUnknownExtent = 256;

/// Bytes of the global tensor; unknown sizes are guessed.
double bytesOf(const TensorView* tv) {
  double bytes = static_cast<double>(bitsOf(tv->dtype())) / 8;
  for (const IterDomain* id : tv->getLogicalDomain()) {
    if (id->isReduction()) continue;
    const auto size = tv->fusion()->scalars().constInt(id->getMaybeExpandedExtent());
    bytes *= size ? static_cast<double>(*size) : kUnknownExtent;
  }
  return bytes;
}

/// axisOfFactor among the non-reduction logical axes; -1 for reductions and pieces of an rfactor
/// too.
int64_t positionOfFactor(const Expr* expr, size_t o, int32_t factor) {
  const int64_t axis = axisOfFactor(expr, o, factor);
  if (axis < 0 || o < expr->inputs().size()) return axis;
  const TensorDomain& domain = operandOf(expr, o)->domain();
  const int32_t id = domain.root()[static_cast<size_t>(axis)];
  const auto logical = domain.withoutReductions(domain.logical());
  const auto it = std::ranges::find(logical, id);
  return it == logical.end() ? -1 : it - logical.begin();
}

/// Whether the operand has an axis that can be divided so.
bool dividesAs(const Expr* expr, size_t o, const AxisChoice& choice) {
  const int64_t axis = axisOfFactor(expr, o, choice.factor);
  return axis >= 0 && pathOnAxis(expr, o, static_cast<size_t>(axis), choice.path);
}

class Chooser {
 public:
  explicit Chooser(const Expr* expr) : expr_(expr), inputs_(expr->inputs().size()) {}

  Alignment run() {
    result_.mesh = chooseMesh();
    for (const ParallelType p : kDeviceTypes) {
      if (!result_.mesh->hasParallelType(p) || result_.mesh->size(p) == 1) continue;
      result_.on(p) = choose(p);
    }
    return result_;
  }

 private:
  /// The result's mesh, or the one that all operands are on when it costs less to move the result.
  const DeviceMesh* chooseMesh() const {
    const DeviceMesh* out = &expr_->output(0)->getDeviceMesh();
    const DeviceMesh* in = nullptr;
    double bytes = 0;
    for (const TensorView* tv : expr_->inputs()) {
      if (!tv->hasDeviceMesh()) continue;
      if (in != nullptr && !(*in == tv->getDeviceMesh())) return out;
      in = &tv->getDeviceMesh();
      bytes += bytesOf(tv);
    }
    if (in == nullptr || *in == *out) return out;
    double result = 0;
    for (const TensorView* tv : expr_->outputs()) result += bytesOf(tv);
    return result <= bytes ? in : out;
  }

  bool onOtherMesh(size_t o) const {
    const TensorView* tv = operandOf(expr_, o);
    return tv->hasDeviceMesh() && !(tv->getDeviceMesh() == *result_.mesh);
  }
  /// Whether operand `o` counts on mesh axis `p`: it is there, or its mesh has such an axis too.
  bool speaksFor(size_t o, ParallelType p) const {
    const TensorView* tv = operandOf(expr_, o);
    if (!tv->hasDeviceMesh()) return false;
    if (o >= inputs_ && onOtherMesh(o)) return false;
    return sameDevices(tv->getDeviceMesh(), *result_.mesh, p);
  }

  AxisChoice choose(ParallelType p) {
    rows_ = project(expr_, p);
    bool all_speak = true;
    for (size_t o = 0; o < rows_.size(); ++o) {
      all_speak = all_speak && (speaksFor(o, p) || !rows_[o].tensor->hasDeviceMesh());
    }
    if (all_speak && isLocal(expr_, rows_)) return {};
    if (auto partial = partialChoice(p)) return *partial;
    for (size_t o = inputs_; o < rows_.size(); ++o) {
      auto own = candidateOf(o, p);
      if (own && own->kind == AxisChoice::Parallel && isPossible(*own, p)) return *own;
    }
    AxisChoice best{.kind = AxisChoice::Whole, .path = {}, .key = {}};
    double cost = costOf(best, p);
    bool first = true;
    for (size_t o = 0; o < inputs_; ++o) {
      auto candidate = candidateOf(o, p);
      if (!candidate || !isPossible(*candidate, p)) continue;
      const double bytes = costOf(*candidate, p);
      if (first ? bytes > cost : bytes >= cost) continue;
      best = std::move(*candidate);
      cost = bytes;
      first = false;
    }
    return best;
  }

  /// The division of operand `o`, as one of the operation.
  std::optional<AxisChoice> candidateOf(size_t o, ParallelType p) const {
    const OperandProjection& row = rows_[o];
    if (!row.split || row.split->factors.size() != 1 || !speaksFor(o, p)) return std::nullopt;
    const auto axis = shardedAxis(row.tensor, p);
    if (!axis || axis->through_merge) return std::nullopt;
    const int32_t f = row.split->factors[0];
    const FactorKind kind = expr_->factors().factor(f).kind;
    if (kind == FactorKind::Blocking) return std::nullopt;
    if (kind == FactorKind::Reduction && o >= inputs_) return std::nullopt;
    return AxisChoice{
        .kind = kind == FactorKind::Reduction ? AxisChoice::Partial : AxisChoice::Parallel,
        .factor = f,
        .path = row.split->path,
        .key = row.split->key};
  }

  /// Partial results: asked for by the result, or because all operands divide the factor alike.
  std::optional<AxisChoice> partialChoice(ParallelType p) const {
    for (size_t o = 0; o < inputs_; ++o) {
      auto candidate = candidateOf(o, p);
      if (!candidate || candidate->kind != AxisChoice::Partial) continue;
      bool alike = true;
      for (size_t k = 0; k < inputs_; ++k) {
        if (!holdsFactor(expr_, k, candidate->factor)) continue;
        alike = alike && rows_[k].split && rows_[k].split->key == candidate->key;
      }
      if (alike && isPossible(*candidate, p)) return candidate;
    }
    for (size_t o = inputs_; o < rows_.size(); ++o) {
      const auto& reduced = rows_[o].reduced;
      if (!reduced || reduced->factors.size() != 1) continue;
      if (!sameDevices(rows_[o].tensor->getDeviceMesh(), *result_.mesh, p)) continue;
      const auto path = devicePath(expr_, o, p, true);
      if (!path) continue;
      AxisChoice choice{.kind = AxisChoice::Partial,
                        .factor = reduced->factors[0],
                        .path = path->path,
                        .key = reduced->key};
      if (isPossible(choice, p)) return choice;
    }
    return std::nullopt;
  }

  /// Whether every operand can be divided so, beside what is chosen for other mesh axes.
  bool isPossible(const AxisChoice& choice, ParallelType p) const {
    if (choice.kind == AxisChoice::Partial && expr_->outputs().size() != 1) return false;
    Alignment with = result_;
    with.on(p) = choice;
    for (size_t o = 0; o < rows_.size(); ++o) {
      if (!rows_[o].tensor->hasDeviceMesh()) continue;
      const bool result = o >= inputs_;
      const bool holds = holdsFactor(expr_, o, choice.factor);
      if (holds && !dividesAs(expr_, o, choice)) return false;
      if (result && choice.kind == AxisChoice::Parallel &&
          positionOfFactor(expr_, o, choice.factor) < 0) {
        return false;
      }
      // An rfactored result stays as it is: its pieces are known to nobody else.
      if (result && rows_[o].tensor->domain().hasRoot() && !keepsResult(o, choice)) return false;
      if (!fitTogether(stateUnder(expr_, o, with))) return false;
    }
    return true;
  }

  bool keepsResult(size_t o, const AxisChoice& choice) const {
    return choice.kind == AxisChoice::Parallel && rows_[o].split &&
           rows_[o].split->key == choice.key;
  }

  double costOf(const AxisChoice& choice, ParallelType p) const {
    const auto d = static_cast<double>(result_.mesh->size(p));
    const double gather = (d - 1) / d, exchange = (d - 1) / (d * d);
    double bytes = 0;
    for (size_t o = 0; o < rows_.size(); ++o) {
      const bool result = o >= inputs_;
      const OperandProjection& row = rows_[o];
      const double n = bytesOf(row.tensor);
      const bool has = row.split.has_value() && (!result || speaksFor(o, p));
      const bool wants = choice.factor >= 0 && holdsFactor(expr_, o, choice.factor) &&
                         !(result && choice.kind == AxisChoice::Partial);
      if (result && choice.kind == AxisChoice::Partial) bytes += (has ? 1 : 2) * gather * n;
      const bool from = result ? wants : has, to = result ? has : wants;
      if (from && to && row.split->key != choice.key) bytes += exchange * n;
      if (from && !to) bytes += gather * n;
    }
    return bytes;
  }

  const Expr* expr_;
  size_t inputs_;
  Alignment result_;
  std::vector<OperandProjection> rows_;
};

}  // namespace

bool Alignment::hasPartial() const {
  return std::ranges::any_of(
      choices, [](const AxisChoice& choice) { return choice.kind == AxisChoice::Partial; });
}

Alignment chooseAlignment(const Expr* expr) { return Chooser(expr).run(); }

MeshState stateUnder(const Expr* expr, size_t o, const Alignment& alignment) {
  const TensorView* tv = operandOf(expr, o);
  const bool result = o >= expr->inputs().size();
  const bool here = tv->hasDeviceMesh() && tv->getDeviceMesh() == *alignment.mesh;
  MeshState state{.mesh = alignment.mesh, .placements = {}};
  for (const ParallelType p : kDeviceTypes) {
    if (!alignment.mesh->hasParallelType(p)) continue;
    const AxisChoice& choice = alignment.on(p);
    const bool keeps =
        choice.kind == AxisChoice::Keep || (result && choice.kind == AxisChoice::Partial);
    const bool alike = sameDevices(tv->getDeviceMesh(), *alignment.mesh, p);
    if (keeps && (here || (!result && alike))) {
      state.on(p) = placementOf(tv, p);
      continue;
    }
    if (choice.factor < 0 || (result && choice.kind == AxisChoice::Partial)) continue;
    const int64_t axis = positionOfFactor(expr, o, choice.factor);
    if (axis < 0) continue;
    // The same part by another path of splits stays as it is.
    const auto now = projectOperand(expr, o, p);
    const bool same = here && now.split && now.split->key == choice.key;
    if (same) {
      state.on(p) = placementOf(tv, p);
      continue;
    }
    const auto mapped = static_cast<size_t>(axisOfFactor(expr, o, choice.factor));
    if (auto path = pathOnAxis(expr, o, mapped, choice.path)) {
      state.on(p) = Placement{axis, std::move(*path)};
    }
  }
  return state;
}

}  // namespace meshfuse
