// SPDX-License-Identifier: BSD-3-Clause
// Checks that the indexing ops share.
#pragma once
#include <meshfuse/ops/op_def.h>

namespace meshfuse {

/// `axis` of the tensor at parameter `param`, wrapped. Throws Error when there is no such axis.
int64_t wrappedAxis(const OpCall& call, size_t param, int64_t axis);

/// Throws Error when the tensor at `param` does not hold integers.
void checkIndexType(const OpCall& call, size_t param);

/// Throws Error when both tensors do not have the same number of axes.
void checkSameRank(const OpCall& call, size_t param, size_t other);

/// Throws Error when the index, at parameter 1, is larger than the tensor at `other` on an axis but
/// `exempt` (-1: none), as far as sizes are declared.
void checkIndexFits(const OpCall& call, size_t other, int64_t exempt);
/// The same at evaluation.
void checkIndexFits(const OpCall& call, size_t other, int64_t exempt, const at::Tensor& index,
                    const at::Tensor& tensor);

/// Whether two axes certainly have one size: then a device's part of one belongs to its part of the
/// other.
bool haveEqualSizes(const TensorView* a, int64_t axis_a, const TensorView* b, int64_t axis_b);

/// `indices`, the values of the tensor at `param`, as torch takes them. Throws Error when one is
/// not in 0 to `size` - 1; `indexed` and `axis` say what it is the size of. On other devices than
/// CPU torch's kernels check.
at::Tensor checkedIndices(const OpCall& call, size_t param, const at::Tensor& indices,
                          const TensorView* indexed, int64_t axis, int64_t size);

/// A factor map of axes that are added one by one; operands in order of the call's tensors.
class AxisFactors {
 public:
  explicit AxisFactors(const OpCall& call) : call_(call), builder_(call) {}
  /// A factor over axis `axis` of the operands whose bit is set in `operands`.
  std::optional<int32_t> over(FactorKind kind, int64_t axis, unsigned operands);
  FactorBuilder& builder() { return builder_; }

 private:
  const OpCall& call_;
  FactorBuilder builder_;
};

}  // namespace meshfuse
