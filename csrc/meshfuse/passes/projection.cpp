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
  enum Code : int64_t { kFactor = -1, kSplit = -2, kMerge = -3 };

  /// The same key as walk() makes of an axis that runs over the factor alone.
  FactorSplit ofFirstFactor(int32_t factor, std::vector<PathStep> path) const {
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

  /// Number of elements of an axis; that of its factor, where only another operand declares it.
  std::optional<int64_t> knownExtent(int32_t id) const {
    const ScalarPool& pool = tv_->fusion()->scalars();
    const auto own = pool.constInt(tv_->domain().id(id)->getMaybeExpandedExtent());
    const auto it = std::ranges::find(mapped_, id);
    if (own || it == mapped_.end()) return own;
    const auto factors = expr_->factors().axis(operand_, static_cast<size_t>(it - mapped_.begin()));
    if (factors.size() != 1) return own;
    return pool.constInt(expr_->factors().factor(factors[0]).extent);
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
    auto rest = pool.constInt(tv_->domain().id(sibling)->getMaybeExpandedExtent());
    if (!rest && extent && factor && *factor > 0) {
      rest = outer == t->inner ? *factor : *extent / *factor;
    }
    if (!uneven && rest == 1) {
      return walk(t->in[0], out);
    }
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
  std::vector<int32_t> mapped_;
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
  PathReader reader(expr, operand);
  if (const auto axis = shardedAxis(tv, p)) {
    row.split = reader.read(axis->id, p, false);
    row.divides_unmapped = !row.split.has_value() && !tv->domain().id(axis->id)->isBroadcast();
  }
  if (const auto axis = reducedAxis(tv, p); axis && is_output)
    row.reduced = reader.read(*axis, p, true);
  return row;
}

std::vector<OperandProjection> project(const Expr* expr, ParallelType p) {
  std::vector<OperandProjection> rows;
  const size_t operands = expr->inputs().size() + expr->outputs().size();
  for (size_t o = 0; o < operands; ++o) rows.push_back(projectOperand(expr, o, p));
  return rows;
}

std::optional<std::string> whyNotLocal(const Expr* expr, ParallelType p) {
  const auto rows = project(expr, p);
  const auto axis = pythonName(p);
  for (const OperandProjection& row : rows) {
    if (row.reduced) {
      return concat(row.tensor->name(), " asks for a reduction of '",
                    factorName(expr, row.reduced->factors[0]), "' across ", axis);
    }
    if (row.divides_unmapped) {
      return concat(row.tensor->name(), " splits an axis over ", axis,
                    " that the other operands do not have");
    }
  }
  for (const OperandProjection& row : rows) {
    if (!row.split) continue;
    for (const int32_t f : row.split->factors) {
      if (expr->factors().factor(f).kind == FactorKind::Blocking) {
        return concat(row.tensor->name(), " splits '", factorName(expr, f), "' over ", axis,
                      ", which ", expr->op().name(), " needs whole");
      }
      for (size_t o = 0; o < rows.size(); ++o) {
        const OperandProjection& other = rows[o];
        if (!holdsFactor(expr, o, f)) continue;
        if (other.split && other.split->key == row.split->key) continue;
        const bool partial =
            other.is_output && expr->factors().factor(f).kind == FactorKind::Reduction;
        const std::string first =
            concat(row.tensor->name(), " splits '", factorName(expr, f), "' over ", axis);
        if (partial) {
          return concat(first, ", so each device has a part of the sum that ", other.tensor->name(),
                        " is");
        }
        if (other.split && divides(*other.split, f)) {
          return concat(first, " in another way than ", other.tensor->name(), " does");
        }
        return concat(first, ", ", other.tensor->name(), " holds '", factorName(expr, f),
                      "' unsplit");
      }
    }
  }
  return std::nullopt;
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
  return several || std::ranges::any_of(kDeviceTypes, [&](ParallelType p) {
           return whyNotLocal(expr, p).has_value();
         });
}

}  // namespace meshfuse
