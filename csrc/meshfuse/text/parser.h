// SPDX-License-Identifier: BSD-3-Clause
// From the text form (docs/ir.md) to a Fusion.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <memory>
#include <string_view>

namespace meshfuse {

/// Reads the text form. Inferred types are checked against the written ones. Throws Error that says
/// line, column, what was found and what was expected. `file`, if given, is what messages about the
/// tensors and operations name as their origin.
std::unique_ptr<Fusion> parseIr(std::string_view text, std::string_view file = {});

}  // namespace meshfuse
