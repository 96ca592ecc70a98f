// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/passes/factor_path.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// `path` on an axis of `extent`, as splits by a number of blocks that an axis whose outermost
/// factor has `first` elements can be given too; nullopt when it is not made of such blocks.
std::optional<std::vector<PathStep>> outermostBlocks(ScalarPool& pool, Scalar extent, Scalar first,
                                                     const std::vector<PathStep>& path) {
  const auto elements = pool.constInt(first);
  auto rest = pool.constInt(extent);
  if (!elements) return std::nullopt;
  std::vector<PathStep> result;
  int64_t blocks = 1;
  bool inside = false;  // below an outer half: within the blocks counted so far
  for (const PathStep& step : path) {
    auto count = pool.constInt(step.factor);
    if (step.inner_split) {
      if (!rest || !count || *count == 0 || *rest % *count != 0) return std::nullopt;
      count = *rest / *count;
    }
    if (!count || *count == 0) return std::nullopt;
    if (!inside) blocks *= *count;
    inside = inside || step.outer_half;
    if (*elements % blocks != 0) return std::nullopt;
    result.push_back({step.outer_half, false, pool.constant(*count)});
    if (rest) rest = step.outer_half ? *count : *rest / *count;
  }
  if (!inside) return std::nullopt;
  return result;
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
    if (factors.size() == 1 && factors[0] == factor) return static_cast<int64_t>(axis);
  }
  return -1;
}

std::vector<int32_t> mappedAxes(const Expr* expr, size_t operand) {
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
  const std::vector<int32_t> mapped = mappedAxes(expr, operand);
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
  const bool blocking = std::ranges::any_of(
      factors, [&](int32_t f) { return map.factor(f).kind == FactorKind::Blocking; });
  if (blocking) return std::nullopt;
  for (size_t axis = 0; axis < map.numAxes(to); ++axis) {
    const auto other = map.axis(to, axis);
    if (other.empty() || other[0] != factors[0]) continue;
    if (std::ranges::equal(factors, other)) return FactorPath{axis, path.path, factors[0]};
    ScalarPool& pool = expr->output(0)->fusion()->scalars();
    const TensorDomain& domain = operandOf(expr, from)->domain();
    const Scalar extent = domain.id(mappedAxes(expr, from)[path.axis])->getMaybeExpandedExtent();
    auto blocks = outermostBlocks(pool, extent, map.factor(factors[0]).extent, path.path);
    if (!blocks) return std::nullopt;
    return FactorPath{axis, std::move(*blocks), factors[0]};
  }
  return std::nullopt;
}

std::string factorName(const Expr* expr, int32_t factor) {
  const std::string& label = expr->factors().factor(factor).label;
  return label.empty() ? concat("factor ", factor) : label;
}

}  // namespace meshfuse
