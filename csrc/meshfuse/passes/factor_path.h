// SPDX-License-Identifier: BSD-3-Clause
// How one operand of an operation is divided over a mesh axis, and the same division on another
// operand, by the factors that they share. Changes nothing.
#pragma once
#include <meshfuse/ir/fusion.h>
#include <meshfuse/schedule/sharding.h>

#include <optional>
#include <string>
#include <vector>

namespace meshfuse {

/// A device axis of one operand: its axis in the factor map, and the splits from there down.
struct FactorPath {
  size_t axis = 0;  // as FactorMap numbers the axes of the operand
  SplitPath path;
  int32_t factor = -1;  // the factor that is divided; the first of a group
  bool operator==(const FactorPath&) const = default;
};

/// Operand `operand` of an operation: inputs first, then results.
const TensorView* operandOf(const Expr* expr, size_t operand);

/// Axis, as in the factor map, of the operand that runs over `factor` alone, or over several of
/// which it is the first; -1 when there is none.
int64_t axisOfFactor(const Expr* expr, size_t operand, int32_t factor);

/// Splits of an axis that runs over several factors, as splits of the first of them into outermost
/// blocks, which divide any axis that begins with that factor alike; nullopt when they are others.
std::optional<SplitPath> blocksOfFactor(const Expr* expr, size_t operand, size_t axis,
                                        const SplitPath& path);

/// `path`, splits of `factor`, as splits of axis `axis` of the operand, which begins with it;
/// nullopt when they cannot be made there.
std::optional<SplitPath> pathOnAxis(const Expr* expr, size_t operand, size_t axis,
                                    const SplitPath& path);

/// Ids of the axes of operand `operand` in the order of the factor map: the logical axes of an
/// input, reductions left out, or the root axes of a result.
AxisList mappedAxes(const Expr* expr, size_t operand);

/// The operand's device axis for `p` that is a reduction, or one that is not. nullopt when there is
/// none, or when it comes from a merged axis, a broadcast axis, or one that no factor stands for.
std::optional<FactorPath> devicePath(const Expr* expr, size_t operand, ParallelType p,
                                     bool reduction);

/// The same division on another operand. nullopt when that has no such axis, when the factor is
/// blocking, or when the factors are grouped differently there and the division is not one into
/// outermost blocks of their first.
std::optional<FactorPath> carryPath(const Expr* expr, size_t from, const FactorPath& path,
                                    size_t to);

/// Name of a factor for people: its label, or its number.
std::string factorName(const Expr* expr, int32_t factor);
/// What a sharding was repeated along, for people: a factor's name, "its memory", or nothing.
std::string factorName(const Fusion& fusion, const ShardingOrigin& origin);

}  // namespace meshfuse
