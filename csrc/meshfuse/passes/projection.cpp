// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/factor_path.h>
#include <meshfuse/passes/projection.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// Builds the key of an axis by walking up to the axes that map to factors.
class PathReader {
 public:
  PathReader(const Expr* expr, size_t operand)
      : expr_(expr),
        tv_(operandOf(expr, operand)),
        operand_(operand),
        mapped_(mappedAxes(expr, operand)) {}

  /// nullopt: the axis leads to one that maps to no factor.
  std::optional<FactorSplit> read(int32_t id, ParallelType p, bool reduction) {
    FactorSplit out;
    if (const auto axis = devicePath(expr_, operand_, p, reduction)) {
      if (expr_->factors().axis(operand_, axis->axis).size() > 1) {
        if (auto blocks = blocksOfFactor(expr_, operand_, axis->axis, axis->path)) {
          return ofFirstFactor(axis->factor, std::move(*blocks));
        }
      }
      out.path = axis->path;
    }
    if (!walk(id, out)) return std::nullopt;
    return out;
  }

 private:
  static constexpr int64_t kFactor = -1, kSplit = -2, kMerge = -3;

  /// The same key as walk() makes of an axis that runs over the factor alone.
  FactorSplit ofFirstFactor(int32_t factor, SplitPath path) const {
    const ScalarPool& pool = tv_->fusion()->scalars();
    std::vector<std::optional<int64_t>> sizes = {
        pool.constInt(expr_->factors().factor(factor).extent)};
    for (const PathStep& step : path) {
      const auto count = pool.constInt(step.factor);
      const auto whole = sizes.back();
      sizes.push_back(step.outer_half ? count
                      : whole         ? std::optional(*whole / *count)
                                      : std::nullopt);
    }
    FactorSplit out;
    for (size_t i = path.size(); i-- > 0;) {
      const int64_t count = *pool.constInt(path[i].factor);
      const auto sibling = path[i].outer_half
                               ? (sizes[i] ? std::optional(*sizes[i] / count) : std::nullopt)
                               : std::optional(count);
      if (sibling == 1) continue;
      out.key.insert(out.key.end(), {kSplit, path[i].outer_half ? 1 : 0, 0, count});
    }
    out.key.insert(out.key.end(), {kFactor, factor});
    out.factors = {factor};
    out.path = std::move(path);
    return out;
  }

  /// Number of elements of an axis: as it declares, or by its factor and the splits between, where
  /// only another operand declares it.
  std::optional<int64_t> knownExtent(int32_t id) const {
    const ScalarPool& pool = tv_->fusion()->scalars();
    const auto own = pool.constInt(tv_->domain().id(id)->getMaybeExpandedExtent());
    if (own) return own;
    const auto it = std::ranges::find(mapped_, id);
    if (it != mapped_.end()) {
      const auto factors =
          expr_->factors().axis(operand_, static_cast<size_t>(it - mapped_.begin()));
      if (factors.size() != 1) return std::nullopt;
      return pool.constInt(expr_->factors().factor(factors[0]).extent);
    }
    const Transform* t = tv_->domain().definition(id);
    if (t == nullptr || t->kind != Transform::Split) return std::nullopt;
    const auto whole = knownExtent(t->in[0]);
    const auto factor = pool.constInt(t->factor);
    if (!whole || !factor || *factor <= 0) return std::nullopt;
    const bool has_factor = (t->out[t->inner ? 1 : 0] == id);
    return has_factor ? *factor : (*whole + *factor - 1) / *factor;
  }

  bool walk(int32_t id, FactorSplit& out) const {
    const auto it = std::ranges::find(mapped_, id);
    if (it != mapped_.end()) {
      const auto factors =
          expr_->factors().axis(operand_, static_cast<size_t>(it - mapped_.begin()));
      if (factors.empty()) return false;
      for (const int32_t f : factors) {
        out.key.insert(out.key.end(), {kFactor, f});
        out.factors.push_back(f);
      }
      return true;
    }
    const Transform* t = tv_->domain().definition(id);
    if (t == nullptr) return false;
    if (t->kind == Transform::Merge) {
      // An axis of size 1 adds nothing to the merged one.
      const auto isOne = [&](int32_t i) {
        const IterDomain* axis = tv_->domain().id(i);
        return axis->isBroadcast() && !axis->expandedExtent();
      };
      if (isOne(t->in[0])) return walk(t->in[1], out);
      if (isOne(t->in[1])) return walk(t->in[0], out);
      out.key.push_back(kMerge);
      return walk(t->in[0], out) && walk(t->in[1], out);
    }
    // Which digit of the split axis this is: the outer one of `count` parts, or the inner one. Both
    // forms of a split are the same digit when the extents are known and agree.
    const ScalarPool& pool = tv_->fusion()->scalars();
    const bool outer = t->out[0] == id;
    const int32_t sibling = t->out[outer ? 1 : 0];
    const auto extent = knownExtent(t->in[0]);
    const auto factor = pool.constInt(t->factor);
    const bool uneven = extent && factor && *factor > 0 && *extent % *factor != 0;
    if (!uneven && knownExtent(sibling) == 1) return walk(t->in[0], out);
    int64_t inner_form = t->inner ? 1 : 0;
    int64_t amount = factor.value_or(-static_cast<int64_t>(t->factor.id) - 2);
    if (extent && factor && *factor > 0 && *extent % *factor == 0 && t->inner) {
      inner_form = 0;
      amount = *extent / *factor;
    }
    out.key.insert(out.key.end(), {kSplit, outer ? 1 : 0, inner_form, amount});
    return walk(t->in[0], out);
  }

  const Expr* expr_;
  const TensorView* tv_;
  size_t operand_;
  AxisList mapped_;
};

bool divides(const FactorSplit& split, int32_t factor) {
  return std::ranges::find(split.factors, factor) != split.factors.end();
}

}  // namespace

bool holdsFactor(const Expr* expr, size_t operand, int32_t factor) {
  const FactorMap& map = expr->factors();
  for (size_t axis = 0; axis < map.numAxes(operand); ++axis) {
    const auto factors = map.axis(operand, axis);
    if (std::ranges::find(factors, factor) != factors.end()) return true;
  }
  return false;
}

OperandProjection projectOperand(const Expr* expr, size_t operand, ParallelType p) {
  const TensorView* tv = operandOf(expr, operand);
  const bool is_output = operand >= expr->inputs().size();
  OperandProjection row{.tensor = tv, .is_output = is_output, .split = {}, .reduced = {}};
  const bool one_device = tv->hasDeviceMesh() && tv->getDeviceMesh().hasParallelType(p) &&
                          tv->getDeviceMesh().size(p) == 1;
  if (one_device) return row;
  if (const auto axis = deviceAxis(tv, p)) {
    row.split = PathReader(expr, operand).read(*axis, p, false);
    row.divides_unmapped = !row.split.has_value() && !tv->domain().id(*axis)->isBroadcast();
  }
  if (const auto axis = is_output ? reducedAxis(tv, p) : std::nullopt) {
    row.reduced = PathReader(expr, operand).read(*axis, p, true);
  }
  return row;
}

std::vector<OperandProjection> project(const Expr* expr, ParallelType p) {
  std::vector<OperandProjection> rows;
  const size_t operands = expr->inputs().size() + expr->outputs().size();
  rows.reserve(operands);
  for (size_t o = 0; o < operands; ++o) rows.push_back(projectOperand(expr, o, p));
  return rows;
}

namespace {

/// What keeps an operation from being local.
struct Obstacle {
  enum Kind : uint8_t { Reduces, Unmapped, Blocking, Partial, Otherwise, Unsplit } kind;
  size_t row;           // the operand that is divided
  int32_t factor = -1;  // that it divides
  size_t other = 0;     // the operand that disagrees
};

/// Whether some operand has an axis on `p`, which anything there is to say of `p` needs.
bool anyDivided(const Expr* expr, ParallelType p) {
  const auto divided = [&](const TensorView* tv) {
    const TensorDomain& domain = tv->domain();
    return std::ranges::any_of(domain.loop(),
                               [&](int32_t i) { return domain.id(i)->getParallelType() == p; });
  };
  return std::ranges::any_of(expr->inputs(), divided) ||
         std::ranges::any_of(expr->outputs(), divided);
}

std::optional<Obstacle> findObstacle(const Expr* expr, const std::vector<OperandProjection>& rows) {
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].reduced) return Obstacle{Obstacle::Reduces, r, rows[r].reduced->factors[0]};
    if (rows[r].divides_unmapped) return Obstacle{Obstacle::Unmapped, r};
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r].split) continue;
    for (const int32_t f : rows[r].split->factors) {
      const FactorKind kind = expr->factors().factor(f).kind;
      if (kind == FactorKind::Blocking) return Obstacle{Obstacle::Blocking, r, f};
      for (size_t o = 0; o < rows.size(); ++o) {
        const OperandProjection& other = rows[o];
        if (!holdsFactor(expr, o, f)) continue;
        if (other.split && other.split->key == rows[r].split->key) continue;
        if (other.is_output && kind == FactorKind::Reduction) {
          return Obstacle{Obstacle::Partial, r, f, o};
        }
        const bool otherwise = other.split && divides(*other.split, f);
        return Obstacle{otherwise ? Obstacle::Otherwise : Obstacle::Unsplit, r, f, o};
      }
    }
  }
  return std::nullopt;
}

std::string text(const Obstacle& obstacle, const Expr* expr,
                 const std::vector<OperandProjection>& rows, ParallelType p) {
  const auto axis = pythonName(p);
  const std::string name = rows[obstacle.row].tensor->name();
  if (obstacle.kind == Obstacle::Unmapped) {
    return concat(name, " splits an axis over ", axis, " that the other operands do not have");
  }
  const std::string factor = concat("'", factorName(expr, obstacle.factor), "'");
  if (obstacle.kind == Obstacle::Reduces) {
    return concat(name, " asks for a reduction of ", factor, " across ", axis);
  }
  const std::string first = concat(name, " splits ", factor, " over ", axis);
  if (obstacle.kind == Obstacle::Blocking) {
    return concat(first, ", which ", expr->op().name(), " needs whole");
  }
  const std::string other = rows[obstacle.other].tensor->name();
  if (obstacle.kind == Obstacle::Partial) {
    return concat(first, ", so each device has a part of the sum that ", other, " is");
  }
  if (obstacle.kind == Obstacle::Otherwise) {
    return concat(first, " in another way than ", other, " does");
  }
  return concat(first, ", ", other, " holds ", factor, " unsplit");
}

}  // namespace

bool isLocal(const Expr* expr, const std::vector<OperandProjection>& rows) {
  return !findObstacle(expr, rows);
}

std::vector<OperandProjection> projectUnlessLocal(const Expr* expr, ParallelType p) {
  if (!anyDivided(expr, p)) return {};
  std::vector<OperandProjection> rows = project(expr, p);
  if (isLocal(expr, rows)) rows.clear();
  return rows;
}

bool isLocal(const Expr* expr, ParallelType p) { return projectUnlessLocal(expr, p).empty(); }

std::optional<std::string> whyNotLocal(const Expr* expr, ParallelType p) {
  const std::vector<OperandProjection> rows = project(expr, p);
  const auto obstacle = findObstacle(expr, rows);
  if (!obstacle) return std::nullopt;
  return text(*obstacle, expr, rows, p);
}

bool isResharding(const Expr* expr) {
  const DeviceMesh* mesh = nullptr;
  bool several = false;
  const auto look = [&](const TensorView* tv) {
    if (!tv->hasDeviceMesh()) return;
    several = several || (mesh != nullptr && !(*mesh == tv->getDeviceMesh()));
    mesh = &tv->getDeviceMesh();
  };
  for (const TensorView* tv : expr->inputs()) look(tv);
  for (const TensorView* tv : expr->outputs()) look(tv);
  return several ||
         std::ranges::any_of(kDeviceTypes, [&](ParallelType p) { return !isLocal(expr, p); });
}

}  // namespace meshfuse
