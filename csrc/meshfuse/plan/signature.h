// SPDX-License-Identifier: BSD-3-Clause
// What a compiled plan depends on: sizes, strides, dtype and device of every tensor input.
#pragma once
#include <meshfuse/base/scalar.h>

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace meshfuse {

/// An argument of a program.
using InputValue = std::variant<at::Tensor, ScalarValue>;

/// Flat words describing the inputs; equal signatures run the same plan. Values of scalar inputs
/// are not part of it, their kind is.
class Signature {
 public:
  Signature() = default;
  explicit Signature(std::span<const InputValue> inputs);
  bool operator==(const Signature&) const = default;
  /// The same comparison without building a Signature.
  bool matches(std::span<const InputValue> inputs) const;
  size_t hash() const { return hash_; }

 private:
  std::vector<int64_t> words_;
  size_t hash_ = 0;
};

}  // namespace meshfuse
