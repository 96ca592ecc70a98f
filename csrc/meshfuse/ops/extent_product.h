// SPDX-License-Identifier: BSD-3-Clause
// A product of extents in a form in which products can be compared and divided: a number times
// symbols.
#pragma once
#include <meshfuse/base/scalar.h>

#include <optional>
#include <vector>

namespace meshfuse {

class ExtentProduct {
 public:
  void multiply(const ScalarPool& pool, Scalar extent);

  bool isConst() const { return symbols_.empty(); }
  /// The number beside the symbols.
  int64_t constant() const { return constant_; }
  /// The quotient when `other` divides this for all values of the symbols.
  std::optional<ExtentProduct> over(const ExtentProduct& other) const;
  /// Whether this, with further extents, may become `other`: it divides it, or both are numbers and
  /// this one is smaller.
  bool isBelow(const ExtentProduct& other) const;
  Scalar toScalar(ScalarPool& pool) const;
  bool operator==(const ExtentProduct&) const = default;

 private:
  int64_t constant_ = 1;
  std::vector<int32_t> symbols_;  // scalars that are no products, sorted
};

}  // namespace meshfuse
