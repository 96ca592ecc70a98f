// SPDX-License-Identifier: BSD-3-Clause
// Decisions read from the bytes of a fuzzer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace meshfuse::fuzz {

/// Every decision takes one byte; when none is left, all decisions are 0.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : bytes_(data, size) {}
  bool empty() const { return bytes_.empty(); }
  /// A number from 0 to n - 1; n is at most 256.
  size_t below(size_t n) {
    if (n == 0 || bytes_.empty()) return 0;
    const size_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte % n;
  }
  int64_t range(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<size_t>(high - low + 1)));
  }
  bool coin() { return below(2) == 1; }
  template <class List>
  auto pick(const List& list) {
    return list[below(std::size(list))];
  }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace meshfuse::fuzz
