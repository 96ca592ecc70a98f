// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/passes/factor_path.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// `path` on an axis of `extent`, as splits by a number of blocks that an axis whose outermost
/// factor has `first` elements can be given too; nullopt when it is not made of such blocks. A size
/// that is not known is taken to be divisible, as every division but an uneven one must be.
std::optional<SplitPath> outermostBlocks(const Fusion& fusion, Scalar extent, Scalar first,
                                         const SplitPath& path) {
  const ScalarPool& pool = fusion.scalars();
  const auto elements = pool.constInt(first);
  auto rest = pool.constInt(extent);
  if (!elements && fusion.uneven) return std::nullopt;
  SplitPath result;
  int64_t blocks = 1;
  bool inside = false;  // below an outer half: within the blocks counted so far
  for (const PathStep& step : path) {
    auto count = pool.constInt(step.factor);
    if (!count || *count == 0) return std::nullopt;
    Scalar factor = step.factor;
    if (step.inner_split) {
      if (!rest || *rest % *count != 0) return std::nullopt;
      count = *rest / *count;
      if (*count == 0) return std::nullopt;
      factor = const_cast<Fusion&>(fusion).scalars().constant(*count);
    }
    if (!inside) blocks *= *count;
    inside = inside || step.outer_half;
    if (elements && *elements % blocks != 0) return std::nullopt;
    result.push_back({step.outer_half, false, factor});
    if (rest) rest = step.outer_half ? *count : *rest / *count;
  }
  if (!inside) return std::nullopt;
  return result;
}

/// Whether all devices get parts of one size of an axis of `extent`, as far as numbers tell. In an
/// uneven program they need not.
bool isEven(const Fusion& fusion, Scalar extent, const SplitPath& path) {
  const ScalarPool& pool = fusion.scalars();
  auto rest = pool.constInt(extent);
  for (const PathStep& step : path) {
    const auto factor = pool.constInt(step.factor);
    if (fusion.uneven || !rest || !factor) return true;
    if (*factor == 0 || *rest % *factor != 0) return false;
    rest = step.outer_half == step.inner_split ? *rest / *factor : *factor;
  }
  return true;
}

Scalar extentOfAxis(const Expr* expr, size_t operand, size_t axis) {
  const TensorDomain& domain = operandOf(expr, operand)->domain();
  return domain.id(mappedAxes(expr, operand)[axis])->getMaybeExpandedExtent();
}

}  // namespace

const TensorView* operandOf(const Expr* expr, size_t operand) {
  const size_t inputs = expr->inputs().size();
  return operand < inputs ? expr->input(operand) : expr->output(operand - inputs);
}

int64_t axisOfFactor(const Expr* expr, size_t operand, int32_t factor) {
  const FactorMap& map = expr->factors();
  for (size_t axis = 0; axis < map.numAxes(operand); ++axis) {
    const auto factors = map.axis(operand, axis);
    if (!factors.empty() && factors[0] == factor) return static_cast<int64_t>(axis);
  }
  return -1;
}

std::optional<SplitPath> blocksOfFactor(const Expr* expr, size_t operand, size_t axis,
                                        const SplitPath& path) {
  const FactorMap& map = expr->factors();
  const Scalar first = map.factor(map.axis(operand, axis)[0]).extent;
  return outermostBlocks(*expr->output(0)->fusion(), extentOfAxis(expr, operand, axis), first,
                         path);
}

std::optional<SplitPath> pathOnAxis(const Expr* expr, size_t operand, size_t axis,
                                    const SplitPath& path) {
  const FactorMap& map = expr->factors();
  const auto factors = map.axis(operand, axis);
  const Fusion& fusion = *expr->output(0)->fusion();
  const Scalar extent = map.factor(factors[0]).extent;
  if (factors.size() > 1) return outermostBlocks(fusion, extent, extent, path);
  return isEven(fusion, extent, path) ? std::optional(path) : std::nullopt;
}

AxisList mappedAxes(const Expr* expr, size_t operand) {
  const TensorDomain& domain = operandOf(expr, operand)->domain();
  return operand < expr->inputs().size() ? domain.withoutReductions(domain.logical())
                                         : domain.root();
}

std::optional<FactorPath> devicePath(const Expr* expr, size_t operand, ParallelType p,
                                     bool reduction) {
  const TensorDomain& domain = operandOf(expr, operand)->domain();
  const auto axis = std::ranges::find_if(domain.loop(), [&](int32_t i) {
    return domain.id(i)->getParallelType() == p && domain.id(i)->isReduction() == reduction;
  });
  if (axis == domain.loop().end()) return std::nullopt;
  const AxisList mapped = mappedAxes(expr, operand);
  FactorPath result;
  int32_t id = *axis;
  auto place = std::ranges::find(mapped, id);
  for (; place == mapped.end(); place = std::ranges::find(mapped, id)) {
    const Transform* t = domain.definition(id);
    if (t == nullptr || t->kind == Transform::Merge) return std::nullopt;
    result.path.push_back({t->out[0] == id, t->inner, t->factor});
    id = t->in[0];
  }
  std::ranges::reverse(result.path);
  result.axis = static_cast<size_t>(place - mapped.begin());
  const auto factors = expr->factors().axis(operand, result.axis);
  if (factors.empty()) return std::nullopt;
  result.factor = factors[0];
  return result;
}

std::optional<FactorPath> carryPath(const Expr* expr, size_t from, const FactorPath& path,
                                    size_t to) {
  const FactorMap& map = expr->factors();
  const auto factors = map.axis(from, path.axis);
  const auto isBlocking = [&](int32_t f) { return map.factor(f).kind == FactorKind::Blocking; };
  if (isBlocking(factors[0])) return std::nullopt;
  for (size_t axis = 0; axis < map.numAxes(to); ++axis) {
    const auto other = map.axis(to, axis);
    if (other.empty() || other[0] != factors[0]) continue;
    if (std::ranges::equal(factors, other) && std::ranges::none_of(factors, isBlocking)) {
      return FactorPath{axis, path.path, factors[0]};
    }
    auto blocks = factors.size() == 1 ? std::optional(path.path)
                                      : blocksOfFactor(expr, from, path.axis, path.path);
    if (blocks) blocks = pathOnAxis(expr, to, axis, *blocks);
    if (!blocks) return std::nullopt;
    return FactorPath{axis, std::move(*blocks), factors[0]};
  }
  return std::nullopt;
}

std::string factorName(const Expr* expr, int32_t factor) {
  const std::string& label = expr->factors().factor(factor).label;
  return label.empty() ? concat("factor ", factor) : label;
}

std::string factorName(const Fusion& fusion, const ShardingOrigin& origin) {
  if (origin.factor == ShardingOrigin::kMemory) return "its memory";
  if (origin.factor < 0) return "";
  return factorName(&fusion.allExprs()[static_cast<size_t>(origin.expr)], origin.factor);
}

}  // namespace meshfuse
