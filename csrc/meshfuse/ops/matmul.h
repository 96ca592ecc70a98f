// SPDX-License-Identifier: BSD-3-Clause
#pragma once
#include <meshfuse/ops/op_def.h>

namespace meshfuse {

/// matmul(a, b) as torch.matmul (semantics 4.1); the output ends with r{K}.
struct MatmulOp final : OpDef {
  OpInfo info() const override;
  FactorMap factors(const OpCall& call) const override;
  void evaluate(const OpCall& call, const Operands& operands) const override;
  std::vector<int> referenceOrder(const OpCall&) const override { return {1, 0}; }
};

/// a @ b on local tensors, computed so that the result has layout `want` where torch can do that
/// without a copy of the result: transposed operands for a result whose rows are innermost,
/// permuted operands for permuted batch axes. Otherwise the result is row-major.
at::Tensor matmulInLayout(const at::Tensor& a, const at::Tensor& b, const Layout& want);

}  // namespace meshfuse
