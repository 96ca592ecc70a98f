// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/plan/signature.h>

#include <limits>

namespace meshfuse {
namespace {

/// Calls `word` for every word of the signature until it returns false.
template <class F>
bool forEachWord(std::span<const InputValue> inputs, F word) {
  for (const InputValue& input : inputs) {
    const auto* tensor = std::get_if<at::Tensor>(&input);
    if (tensor == nullptr) {
      if (!word(-1 - static_cast<int64_t>(std::get<ScalarValue>(input).index()))) return false;
      continue;
    }
    if (!tensor->defined() || tensor->layout() != at::kStrided || tensor->is_nested()) {
      if (!word(std::numeric_limits<int64_t>::min())) return false;  // compile() refuses it
      continue;
    }
    const c10::Device device = tensor->device();
    const int64_t kind = (static_cast<int64_t>(tensor->scalar_type()) << 32) |
                         (static_cast<int64_t>(device.type()) << 16) |
                         static_cast<int64_t>(static_cast<uint8_t>(device.index()));
    if (!word(kind) || !word(tensor->dim())) return false;
    for (const int64_t size : tensor->sizes()) {
      if (!word(size)) return false;
    }
    for (const int64_t stride : tensor->strides()) {
      if (!word(stride)) return false;
    }
  }
  return true;
}

}  // namespace

Signature::Signature(std::span<const InputValue> inputs) {
  forEachWord(inputs, [&](int64_t w) {
    words_.push_back(w);
    hash_ = hash_ * 0x9E3779B97F4A7C15ull + static_cast<size_t>(w);
    return true;
  });
}

bool Signature::matches(std::span<const InputValue> inputs) const {
  size_t i = 0;
  const bool same =
      forEachWord(inputs, [&](int64_t w) { return i < words_.size() && words_[i++] == w; });
  return same && i == words_.size();
}

}  // namespace meshfuse
