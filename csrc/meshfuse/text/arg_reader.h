// SPDX-License-Identifier: BSD-3-Clause
// Arguments of an operation in the text form: `a, 2.5, dims=[1]`.
#pragma once
#include <meshfuse/ops/op_def.h>
#include <meshfuse/text/scalar_reader.h>

#include <vector>

namespace meshfuse {

/// Reads "(...)" behind the name of `op`: one value per parameter, defaults filled in. A number
/// where the op takes a number or a scalar becomes a constant of the Fusion.
std::vector<Arg> readArguments(TokenReader& in, ScalarReader& scalars, const NameTable& names,
                               const OpDef& op);

}  // namespace meshfuse
