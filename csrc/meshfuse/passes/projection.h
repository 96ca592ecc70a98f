// SPDX-License-Identifier: BSD-3-Clause
// How the operands of one operation divide its factors over one mesh axis. Changes nothing.
#pragma once
#include <meshfuse/ir/fusion.h>
#include <meshfuse/schedule/sharding.h>

#include <optional>
#include <string>
#include <vector>

namespace meshfuse {

using SplitKey = SmallVector<int64_t, 14>;  // three splits and a factor
using FactorList = SmallVector<int32_t, 4>;

/// The way in which an operand divides a factor: the path from the factor to the device axis,
/// written down so that equal keys mean "each device has the same part".
struct FactorSplit {
  SplitKey key;        // path of splits and merges, with factors as leaves
  FactorList factors;  // factors that it divides
  SplitPath path;      // splits of the factor, if it is one; empty through merges
};

/// What one operand says about one mesh axis.
struct OperandProjection {
  const TensorView* tensor = nullptr;
  bool is_output = false;
  std::optional<FactorSplit> split;    // nothing: not divided over the mesh axis
  bool divides_unmapped = false;       // a device axis over an axis that maps to no factor
  std::optional<FactorSplit> reduced;  // output: its reduction axis is divided
};

/// What operand `operand` says, inputs counted first. Throws Error when a tensor has two axes on
/// `p`.
OperandProjection projectOperand(const Expr* expr, size_t operand, ParallelType p);

/// One row per operand, inputs first.
std::vector<OperandProjection> project(const Expr* expr, ParallelType p);

/// Whether operand `o` of the factor map has an axis that runs over factor `f`.
bool holdsFactor(const Expr* expr, size_t operand, int32_t factor);

/// Whether the operation runs without communication over mesh axis `p`.
bool isLocal(const Expr* expr, ParallelType p);
/// The same for one that has been projected.
bool isLocal(const Expr* expr, const std::vector<OperandProjection>& rows);
/// project(), where the operation is not local; empty where it is.
std::vector<OperandProjection> projectUnlessLocal(const Expr* expr, ParallelType p);
/// Why it does not: a sentence that names the tensors; nullopt when it is local.
std::optional<std::string> whyNotLocal(const Expr* expr, ParallelType p);

/// Whether the operation needs communication over any mesh axis, or between meshes.
bool isResharding(const Expr* expr);

}  // namespace meshfuse
