// SPDX-License-Identifier: BSD-3-Clause
// Checks of messages: what a call throws, and which words must be in it.
#pragma once
#include <gtest/gtest.h>
#include <meshfuse/base/error.h>

#include <initializer_list>
#include <source_location>
#include <string>
#include <string_view>

namespace meshfuse {

/// Checks that `f` throws an E whose message has every one of `parts`.
template <class E = Error, class F>
void expectError(F&& f, std::initializer_list<std::string_view> parts,
                 std::source_location where = std::source_location::current()) {
  const auto line = static_cast<int>(where.line());
  try {
    f();
  } catch (const E& error) {
    const std::string text = error.what();
    for (const std::string_view part : parts) {
      if (text.find(part) != std::string::npos) continue;
      ADD_FAILURE_AT(where.file_name(), line) << "\"" << part << "\" is not in: " << text;
    }
    return;
  } catch (const std::exception& other) {
    ADD_FAILURE_AT(where.file_name(), line) << "another exception came: " << other.what();
    return;
  }
  ADD_FAILURE_AT(where.file_name(), line) << "nothing was thrown";
}

template <class E = Error, class F>
void expectError(F&& f, std::string_view part,
                 std::source_location where = std::source_location::current()) {
  expectError<E>(std::forward<F>(f), {part}, where);
}

}  // namespace meshfuse
