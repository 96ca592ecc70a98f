// SPDX-License-Identifier: BSD-3-Clause
// Chooses how an operation is divided over the mesh when its operands disagree. Changes nothing.
#pragma once
#include <meshfuse/passes/placement.h>
#include <meshfuse/passes/projection.h>

#include <array>
#include <vector>

namespace meshfuse {

/// How an operation is divided over one mesh axis.
struct AxisChoice {
  enum Kind : uint8_t {
    Keep,      // every operand as it is: the operation is local on this mesh axis
    Whole,     // each device does all of it
    Parallel,  // each device does a part of factor `factor`
    Partial    // each device sums a part of the reduction factor `factor`
  } kind = Keep;
  int32_t factor = -1;
  SplitPath path;  // splits from the factor down to the device axis
  SplitKey key;    // of the split, as project() gives it
};

/// The choice for a whole operation.
struct Alignment {
  const DeviceMesh* mesh = nullptr;  // where it is computed
  std::array<AxisChoice, kDeviceTypes.size()> choices;

  AxisChoice& on(ParallelType p) { return choices[static_cast<size_t>(meshAxisOffset(p))]; }
  const AxisChoice& on(ParallelType p) const {
    return choices[static_cast<size_t>(meshAxisOffset(p))];
  }
  bool hasPartial() const;
};

/// The rule (semantics 5.4): a reduction factor that all operands divide alike, or that the result
/// asks to be reduced, gives partial results; else the result's own division wins; else the
/// choice that moves the fewest bytes, operands before the operation and results after it, unknown
/// sizes taken as 256. Ties go to the divided choice, operands in order.
Alignment chooseAlignment(const Expr* expr);

/// What the alignment asks of operand `o` (inputs first, then results as they are computed).
MeshState stateUnder(const Expr* expr, size_t o, const Alignment& alignment);

}  // namespace meshfuse
