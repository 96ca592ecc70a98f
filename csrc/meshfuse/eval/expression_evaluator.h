// SPDX-License-Identifier: BSD-3-Clause
// Values of scalars, and binding of local tensors to symbolic global extents under DID splits.
#pragma once
#include <meshfuse/ir/fusion.h>
#include <meshfuse/ops/op_def.h>

#include <optional>
#include <string>
#include <vector>

namespace meshfuse {

class ExpressionEvaluator {
 public:
  explicit ExpressionEvaluator(const Fusion& fusion) : fusion_(&fusion) {}

  /// Binds the global extents of `tv` from this device's part: rank, dtype, sizes, and the strides
  /// that the contiguity flags promise (semantics 3.3). `position` is the input's number, for
  /// messages; -1 leaves it out. Throws Error naming tensor, axis and numbers.
  void bind(const TensorView* tv, const at::Tensor& local, int64_t position = -1);
  /// Throws Error naming both sources when the scalar already has another value.
  void bind(Scalar s, ScalarValue value, const std::string& source);

  /// Device whose part of tensors local sizes are about, where devices have different ones (uneven
  /// programs); -1: the first of a mesh.
  int64_t device() const { return device_; }
  void setDevice(int64_t device) { device_ = device; }

  bool isKnown(Scalar s) const { return evaluateValue(s).has_value(); }
  /// Value of an integer scalar; nullopt when a symbol in it is not bound.
  std::optional<int64_t> evaluate(Scalar s) const;
  std::optional<ScalarValue> evaluateValue(Scalar s) const;
  /// Global sizes of a tensor, in order of its non-reduction logical axes. Throws Error when one is
  /// not known.
  std::vector<int64_t> globalShape(const TensorView* tv) const;
  const Fusion& fusion() const { return *fusion_; }
  /// Throws Error when extents that an operation needs equal are not.
  void checkConstraints(const Expr* expr) const;

 private:
  const Fusion* fusion_;
  int64_t device_ = -1;
  mutable std::vector<std::optional<ScalarValue>> values_;  // by scalar id
  std::vector<std::string> sources_;                        // by scalar id
};

}  // namespace meshfuse
