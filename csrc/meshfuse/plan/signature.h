// SPDX-License-Identifier: BSD-3-Clause
// What a compiled plan depends on: sizes, strides, dtype and device of every tensor input, and
// sizes that other ranks tell.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace meshfuse {

/// An argument of a program.
using InputValue = std::variant<at::Tensor, ScalarValue>;

/// Flat words describing the inputs; equal signatures run the same plan. Of scalar inputs the kind
/// is part of it, and the value where sizes depend on it.
class Signature {
 public:
  Signature() = default;
  /// `by_value`: positions of the scalar inputs whose value counts, ascending. `told`: sizes that
  /// other ranks tell.
  explicit Signature(std::span<const InputValue> inputs, std::vector<size_t> by_value = {},
                     std::span<const int64_t> told = {});
  bool operator==(const Signature&) const = default;
  /// The same comparison without building a Signature.
  bool matches(std::span<const InputValue> inputs, std::span<const int64_t> told = {}) const;
  /// The same, whatever was told.
  bool matchesInputs(std::span<const InputValue> inputs) const;
  size_t hash() const { return hash_; }
  const std::vector<size_t>& byValue() const { return by_value_; }

 private:
  /// Number of words that these inputs have; nullopt if they are not the first ones.
  std::optional<size_t> prefix(std::span<const InputValue> inputs) const;

  std::vector<int64_t> words_;
  std::vector<size_t> by_value_;
  size_t told_ = 0;  // how many of them are told sizes
  size_t hash_ = 0;
};

/// Positions of the scalar inputs that the size of some tensor depends on, or is compared with,
/// ascending.
std::vector<size_t> inputsThatSizesNeed(const Fusion& fusion);

}  // namespace meshfuse
