// SPDX-License-Identifier: BSD-3-Clause
// Environment variables that are switches or lists.
#pragma once
#include <string>
#include <vector>

namespace meshfuse {

/// Whether a switch is on: 1, true, yes or on; 0, false, no, off, empty and unset are off, upper
/// and lower case alike. Throws Error that names the variable on another value.
bool environmentFlag(const char* name);

/// The items of a list with commas, without spaces around them; that of `fallback` when `name` is
/// not set.
std::vector<std::string> environmentList(const char* name, const char* fallback = nullptr);

}  // namespace meshfuse
