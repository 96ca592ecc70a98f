// SPDX-License-Identifier: BSD-3-Clause
// The text form of a Fusion (docs/ir.md). It is complete: parseIr(irText(f)) is the same as f.
#pragma once
#include <meshfuse/ir/printer.h>

#include <string>
#include <vector>

namespace meshfuse {

/// One line per input, one per operation that the outputs need, and a last one with the outputs.
std::string irText(const Fusion& fusion);

/// "T2 = matmul(T0, T1)".
std::string toString(const Expr* expr);

/// Names for the text of a Fusion, each used once: TensorView::name() unless another tensor has it,
/// and s0, s1, ... for scalar inputs in order.
TextNames textNames(const Fusion& fusion);
/// The arguments of an operation, "T0, T1, dims=[1]"; those equal to their default are left out.
std::vector<std::string> argumentTexts(const Expr& expr, const TextNames& names);

}  // namespace meshfuse
