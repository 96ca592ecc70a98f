// SPDX-License-Identifier: BSD-3-Clause
// From the text form (docs/ir.md) to a Fusion.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <memory>
#include <string_view>

namespace meshfuse {

struct ParseOptions {
  std::string_view file;  // what messages about tensors and operations name as their origin
  bool uneven = false;    // the program's option, which its text does not say
};

/// Reads the text form. Inferred types are checked against the written ones. Throws Error that says
/// line, column, what was found and what was expected.
std::unique_ptr<Fusion> parseIr(std::string_view text, const ParseOptions& options = {});

}  // namespace meshfuse
