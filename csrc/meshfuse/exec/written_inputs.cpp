// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/exec/written_inputs.h>

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

namespace meshfuse {
namespace {

/// The bytes from the first element of a tensor to behind its last one.
struct Extent {
  explicit Extent(const at::Tensor& t) : begin(static_cast<const char*>(t.const_data_ptr())) {
    int64_t last = 0;  // strides of torch are never negative
    for (int64_t axis = 0; axis < t.dim(); ++axis) last += (t.size(axis) - 1) * t.stride(axis);
    end = begin + (last + 1) * t.element_size();
  }
  const char* begin;
  const char* end;
};

/// Addresses of all elements, in bytes after `base`.
at::Tensor addresses(const at::Tensor& t, const char* base) {
  at::Tensor all = at::scalar_tensor(Extent(t).begin - base, at::kLong);
  for (int64_t axis = 0; axis < t.dim(); ++axis) {
    all =
        all.unsqueeze(-1) + at::arange(t.size(axis), at::kLong) * t.stride(axis) * t.element_size();
  }
  return all.reshape(-1);
}

}  // namespace

bool shareElements(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0 || a.device() != b.device()) return false;
  const Extent of_a(a), of_b(b);
  if (of_a.end <= of_b.begin || of_b.end <= of_a.begin) return false;
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()) return true;
  // Elements of one type begin at multiples of its size; of two types, the bytes would count.
  if (a.element_size() != b.element_size()) return true;
  const char* base = std::min(of_a.begin, of_b.begin);
  return at::isin(addresses(a, base), addresses(b, base)).any().item<bool>();
}

void checkWrittenInputs(const Plan& plan, std::span<const InputValue> inputs, int64_t device) {
  const auto tensor = [&](int32_t i) -> const at::Tensor& {
    return std::get<at::Tensor>(inputs[static_cast<size_t>(i)]);
  };
  const auto view = [&](int32_t i) {
    return std::get<TensorView*>(plan.fusion->inputs()[static_cast<size_t>(i)]);
  };
  const auto held = [&](int32_t i) {
    return !view(i)->hasDeviceMesh() || view(i)->getDeviceMesh().has(device);
  };
  for (size_t k = 0; k < plan.overwritten.size(); ++k) {
    const int32_t i = plan.overwritten[k];
    if (!held(i)) continue;
    MESHFUSE_CHECK(!tensor(i).is_inference() || c10::InferenceMode::is_enabled(), "execute: input ",
                   i, " (", at(view(i)),
                   ") takes a result but was made in inference mode, where "
                   "torch forbids to write into it now. Call execute in torch.inference_mode(), or "
                   "pass a clone.");
    for (size_t m = 0; m < k; ++m) {
      const int32_t j = plan.overwritten[m];
      if (!held(j)) continue;
      MESHFUSE_CHECK(!shareElements(tensor(j), tensor(i)), "execute: inputs ", j, " (", at(view(j)),
                     ") and ", i, " (", at(view(i)),
                     ") each take a result, but they share memory, "
                     "so that one of the results would be lost. Pass tensors with memory of their "
                     "own: clone one of them.");
    }
  }
}

}  // namespace meshfuse
