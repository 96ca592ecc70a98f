// SPDX-License-Identifier: BSD-3-Clause
// The loops of an op's mathematics (factors) and which axis of which operand each of them runs
// over. This is all that analysis and passes know of an op.
#pragma once
#include <meshfuse/base/scalar.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshfuse {

/// Parallel: may be split freely. Reduction: a split gives partial results. Blocking: must not be
/// split (indexed, sorted, scanned, contracted inside).
enum class FactorKind : uint8_t { Parallel, Reduction, Blocking };

struct Factor {
  FactorKind kind = FactorKind::Parallel;
  Scalar extent;
  std::string label;  // letter of the op's formula, for messages

  bool operator==(const Factor&) const = default;
};

/// Axis of a result: its factors (major first; none = a broadcast axis of size 1).
/// Operands are numbered inputs first, then results. Axes of an input are its non-reduction logical
/// axes; axes of a result are its root axes, reductions included.
class FactorMap {
 public:
  int32_t addFactor(FactorKind kind, Scalar extent, std::string label = {}) {
    factors_.push_back({kind, extent, std::move(label)});
    return static_cast<int32_t>(factors_.size()) - 1;
  }
  /// Starts the axis list of the next operand.
  void beginOperand() { operands_.push_back(static_cast<int32_t>(axes_.size())); }
  /// Appends an axis to the operand begun last.
  void addAxis(std::span<const int32_t> factors) {
    axes_.push_back(static_cast<int32_t>(flat_.size()));
    flat_.insert(flat_.end(), factors.begin(), factors.end());
  }

  const std::vector<Factor>& factors() const { return factors_; }
  const Factor& factor(int32_t f) const { return factors_[static_cast<size_t>(f)]; }
  size_t numOperands() const { return operands_.size(); }
  size_t numAxes(size_t operand) const {
    return end(operands_, operand, axes_.size()) - static_cast<size_t>(operands_[operand]);
  }
  /// Factors of one axis, major first.
  std::span<const int32_t> axis(size_t operand, size_t axis) const {
    const size_t a = static_cast<size_t>(operands_[operand]) + axis;
    const auto first = static_cast<size_t>(axes_[a]);
    return std::span<const int32_t>(flat_).subspan(first, end(axes_, a, flat_.size()) - first);
  }
  bool operator==(const FactorMap&) const = default;
  size_t hash() const;

 private:
  static size_t end(const std::vector<int32_t>& starts, size_t i, size_t last) {
    return i + 1 < starts.size() ? static_cast<size_t>(starts[i + 1]) : last;
  }
  std::vector<Factor> factors_;
  std::vector<int32_t> operands_, axes_, flat_;
};

}  // namespace meshfuse
