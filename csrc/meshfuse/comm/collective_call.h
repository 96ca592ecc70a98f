// SPDX-License-Identifier: BSD-3-Clause
// What a backend gets to know of one call of a collective, and how many there were.
#pragma once
#include <meshfuse/comm/communicator.h>

#include <cstddef>

namespace meshfuse {

/// Checked arguments. `out` and `in` are the same where a collective works in place.
struct CollectiveCall {
  std::string_view what;  // "allReduce": for messages
  const Team& team;
  std::span<const int64_t> local;  // places in the team of its local members, ascending
  LocalTensors out, in;
  Posted* posted = nullptr;  // where the rest of a call goes that need not end yet
};

/// Bytes that one rank gives to another, or to itself.
struct Transfer {
  int64_t from, to;         // device ids
  const std::byte* source;  // nullptr where `from` is not local
  std::byte* target;        // nullptr where `to` is not local
  int64_t bytes;            // at least 1
};

/// Collective calls that this process has begun, on all communicators; barriers are not counted.
/// Ranks of which one gave up a test compare them: when they are equal, nobody sent a message that
/// another one never received.
int64_t collectiveCalls();

}  // namespace meshfuse
