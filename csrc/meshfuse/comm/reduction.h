// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of reductions over ranks.
#pragma once
#include <meshfuse/base/types.h>

#include <cstddef>
#include <span>

namespace c10 {
enum class ScalarType : int8_t;
}

namespace meshfuse {

/// Throws Error when elements of `type` cannot be reduced by `kind`; `what` is the function named.
void checkReducible(std::string_view what, c10::ScalarType type, ReduceKind kind);

/// out[i] = reduction of terms[0][i], terms[1][i], ..., in that order, rounded once (see
/// communicator.h for the types used). `out` may be one of the terms. Has no threads and calls no
/// torch operator.
void reduceInOrder(std::byte* out, std::span<const std::byte* const> terms, int64_t count,
                   c10::ScalarType type, ReduceKind kind);

}  // namespace meshfuse
