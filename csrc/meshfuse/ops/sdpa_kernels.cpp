// SPDX-License-Identifier: BSD-3-Clause
// Attention by torch's flash kernels where they take the operands, else by matrix products.
#include <meshfuse/ops/sdpa.h>

#include <cmath>

#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace meshfuse {
namespace {

constexpr int64_t kFlashMultiple = 8;   // the CUDA kernel wants E to be a multiple of it
constexpr int64_t kFlashMaxHead = 256;  // and not above this

double scaleOf(const AttentionSettings& settings, int64_t head) {
  return settings.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<int64_t>(head, 1))));
}

bool isEmpty(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return q.numel() == 0 || k.numel() == 0 || v.numel() == 0;
}

/// Kernels step through the last axis by one.
at::Tensor unitStride(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

// The kernels divide by sizes, so empty operands never reach them.
bool usesCpuFlash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionSettings& settings) {
  return q.is_cpu() && settings.dropout_p == 0 && q.size(-1) == v.size(-1) && !isEmpty(q, k, v) &&
         q.scalar_type() != at::kDouble;  // its logsumexp must pass in float32
}

bool usesCudaFlash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const AttentionSettings& settings) {
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  // The kernel aligns the causal mask with the last row, torch's definition with the first.
  const bool square = !settings.is_causal || q.size(-2) == k.size(-2);
  return q.is_cuda() && half && square && q.size(-1) == v.size(-1) && q.size(-1) <= kFlashMaxHead &&
         !isEmpty(q, k, v);
}

/// Whether torch itself would take cuDNN's kernel. Dropout is left to the one that can repeat it.
bool prefersCudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionSettings& settings) {
  if (settings.dropout_p > 0) return false;
  const auto choice = at::_fused_sdp_choice(q, k, v, {}, 0.0, settings.is_causal, settings.scale);
  return static_cast<at::SDPBackend>(choice) == at::SDPBackend::cudnn_attention;
}

at::Tensor padHead(const at::Tensor& t) {
  const int64_t over = t.size(-1) % kFlashMultiple;
  return over == 0 ? unitStride(t) : at::constant_pad_nd(t, {0, kFlashMultiple - over});
}

at::ScalarType accumulateType(const at::Tensor& q) {
  return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Scaled scores [B, H, L, S], minus infinity where a row does not see a column.
at::Tensor scoresOf(const at::Tensor& q, const at::Tensor& k, const at::Tensor& bias,
                    const AttentionSettings& settings) {
  const at::ScalarType type = accumulateType(q);
  at::Tensor scores =
      at::matmul(q.to(type) * scaleOf(settings, q.size(-1)), k.to(type).transpose(-2, -1));
  if (bias.defined()) scores = scores + bias.to(type);
  if (settings.is_causal) {
    const at::Tensor seen = at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool)).tril();
    scores = scores.masked_fill(seen.logical_not(), -INFINITY);
  }
  return scores;
}

/// log(sum(exp(scores))) over the columns; 0 for a row that sees none, as the kernels give.
at::Tensor logsumexpOf(const at::Tensor& scores) {
  const at::Tensor lse = at::logsumexp(scores, {-1});
  return lse.masked_fill(lse == -INFINITY, 0);
}

void setZeroSeeds(AttentionResult& result, const at::Tensor& q) {
  result.philox_seed = at::zeros({2}, q.options().dtype(at::kUInt64));
  result.philox_offset = at::zeros({}, q.options().dtype(at::kUInt64));
}

}  // namespace

bool repeatsDropout(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionSettings& settings) {
  return usesCudaFlash(query, key, value, settings);
}

AttentionResult attentionForward(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const at::Tensor& bias,
                                 const AttentionSettings& settings,
                                 const std::function<at::Tensor()>& kept) {
  AttentionResult result;
  const double scale = scaleOf(settings, query.size(-1));
  if (!bias.defined() && usesCudaFlash(query, key, value, settings)) {
    if (prefersCudnn(query, key, value, settings)) {
      const auto r = at::_scaled_dot_product_cudnn_attention(
          query, key, value, {}, /*compute_log_sumexp=*/true, 0.0, settings.is_causal,
          /*return_debug_mask=*/false, scale);
      result.output = std::get<0>(r);
      result.logsumexp = std::get<1>(r).view(query.sizes().slice(0, 3));
      setZeroSeeds(result, query);
      return result;
    }
    const auto r = at::_scaled_dot_product_flash_attention(
        padHead(query), padHead(key), padHead(value), settings.dropout_p, settings.is_causal,
        /*return_debug_mask=*/false, scale);
    result.output = std::get<0>(r).narrow(-1, 0, value.size(-1));
    result.logsumexp = std::get<1>(r);
    result.philox_seed = std::get<6>(r);
    result.philox_offset = std::get<7>(r);
    return result;
  }
  setZeroSeeds(result, query);
  if (usesCpuFlash(query, key, value, settings)) {
    std::optional<at::Tensor> mask;
    if (bias.defined()) mask = bias.to(query.scalar_type()).contiguous();
    std::tie(result.output, result.logsumexp) = at::_scaled_dot_product_flash_attention_for_cpu(
        unitStride(query), unitStride(key), unitStride(value), 0.0, settings.is_causal, mask,
        scale);
    return result;
  }
  const at::Tensor scores = scoresOf(query, key, bias, settings);
  result.logsumexp = logsumexpOf(scores);
  at::Tensor weights = (scores - result.logsumexp.unsqueeze(-1)).exp();
  if (settings.dropout_p > 0) {
    const double left = 1 - settings.dropout_p;
    weights = weights.masked_fill(kept().logical_not(), 0) * (left > 0 ? 1 / left : 0);
  }
  result.output = at::matmul(weights, value.to(weights.scalar_type())).to(query.scalar_type());
  return result;
}

AttentionGradients attentionBackward(const at::Tensor& grad, const at::Tensor& query,
                                     const at::Tensor& key, const at::Tensor& value,
                                     const AttentionSaved& saved,
                                     const AttentionSettings& settings) {
  AttentionGradients out;
  const double scale = scaleOf(settings, query.size(-1));
  if (usesCudaFlash(query, key, value, settings)) {
    // Without dropout the kernel draws nothing, but it asks for the state.
    AttentionResult zero;
    setZeroSeeds(zero, query);
    const at::Tensor none;
    std::tie(out.query, out.key, out.value) = at::_scaled_dot_product_flash_attention_backward(
        padHead(grad), padHead(query), padHead(key), padHead(value), padHead(saved.output),
        saved.logsumexp.contiguous(), none, none, query.size(-2), key.size(-2), settings.dropout_p,
        settings.is_causal, saved.philox_seed.defined() ? saved.philox_seed : zero.philox_seed,
        saved.philox_offset.defined() ? saved.philox_offset : zero.philox_offset, scale);
    for (at::Tensor* t : {&out.query, &out.key, &out.value}) {
      *t = t->narrow(-1, 0, query.size(-1));
    }
    return out;
  }
  if (usesCpuFlash(query, key, value, settings)) {
    std::tie(out.query, out.key, out.value) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            unitStride(grad), unitStride(query), unitStride(key), unitStride(value),
            unitStride(saved.output), saved.logsumexp.contiguous(), 0.0, settings.is_causal,
            std::nullopt, scale);
    return out;
  }
  const at::ScalarType type = accumulateType(query);
  const at::Tensor q = query.to(type), k = key.to(type), v = value.to(type), g = grad.to(type);
  const at::Tensor scores = scoresOf(query, key, {}, settings);
  // float32 would spoil the gradients of float64.
  const at::Tensor lse = type == at::kDouble ? logsumexpOf(scores) : saved.logsumexp.to(type);
  const at::Tensor weights = (scores - lse.unsqueeze(-1)).exp();
  const at::Tensor row = (g * saved.output.to(type)).sum(-1, /*keepdim=*/true);
  const at::Tensor grad_scores = weights * (at::matmul(g, v.transpose(-2, -1)) - row);
  out.query = (at::matmul(grad_scores, k) * scale).to(query.scalar_type());
  out.key = (at::matmul(grad_scores.transpose(-2, -1), q) * scale).to(key.scalar_type());
  out.value = at::matmul(weights.transpose(-2, -1), g).to(value.scalar_type());
  return out;
}

}  // namespace meshfuse
