// SPDX-License-Identifier: BSD-3-Clause
// Scaled dot-product attention on local tensors, by torch's kernels or by its formulas.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

namespace meshfuse {

struct AttentionSettings {
  double dropout_p = 0;
  bool is_causal = false;       // row l sees the columns 0 to l
  std::optional<double> scale;  // absent: 1 / sqrt(E)
};

struct AttentionResult {
  at::Tensor output;                      // [B, H, L, Ev], in query's type
  at::Tensor logsumexp;                   // [B, H, L]; 0 for a row that sees nothing
  at::Tensor philox_seed, philox_offset;  // UInt64, [2] and []; zeros where no kernel draws
};

/// Attention of query [B, H, L, E], key [B, H, S, E] and value [B, H, S, Ev]. `bias`, [B, H, L, S]
/// or undefined, is added to the scaled scores. `kept` gives, where no kernel draws by itself, the
/// Bool tensor [B, H, L, S] of the weights that dropout keeps; it is not called without dropout.
AttentionResult attentionForward(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const at::Tensor& bias,
                                 const AttentionSettings& settings,
                                 const std::function<at::Tensor()>& kept);

/// Whether torch has a kernel that repeats the dropout of the forward pass for such operands.
bool repeatsDropout(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionSettings& settings);

struct AttentionSaved {
  at::Tensor output, logsumexp;           // of the forward pass
  at::Tensor philox_seed, philox_offset;  // undefined: the forward pass had no dropout
};
struct AttentionGradients {
  at::Tensor query, key, value;
};

/// Gradients for `grad`, [B, H, L, Ev], from what the forward pass gave; of dropout only where
/// repeatsDropout().
AttentionGradients attentionBackward(const at::Tensor& grad, const at::Tensor& query,
                                     const at::Tensor& key, const at::Tensor& value,
                                     const AttentionSaved& saved,
                                     const AttentionSettings& settings);

}  // namespace meshfuse
