// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/environment.h>
#include <meshfuse/base/error.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace meshfuse {
namespace {

const char* valueOf(const char* name) {
  const char* text = name == nullptr ? nullptr : std::getenv(name);
  return text == nullptr ? "" : text;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

}  // namespace

bool environmentFlag(const char* name) {
  std::string text(trimmed(valueOf(name)));
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  constexpr std::array<std::string_view, 4> kOn = {"1", "true", "yes", "on"};
  constexpr std::array<std::string_view, 5> kOff = {"", "0", "false", "no", "off"};
  if (std::ranges::find(kOn, text) != kOn.end()) return true;
  MESHFUSE_CHECK(std::ranges::find(kOff, text) != kOff.end(), "the environment variable ", name,
                 " is \"", valueOf(name),
                 "\", which is neither on nor off. Set it to 1 (or true, yes, on) or to 0 (or "
                 "false, no, off), or unset it.");
  return false;
}

std::vector<std::string> environmentList(const char* name, const char* fallback) {
  std::string_view text = valueOf(name);
  if (text.empty()) text = valueOf(fallback);
  std::vector<std::string> items;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (const auto item = trimmed(text.substr(0, comma)); !item.empty()) items.emplace_back(item);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return items;
}

}  // namespace meshfuse
