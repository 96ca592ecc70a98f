// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>  // first: std::span looks at it as soon as one is named

#include <meshfuse/comm/host_copies.h>

#include <algorithm>

#include <ATen/ops/empty_like.h>

namespace meshfuse {
namespace {

bool onCuda(const at::Tensor& t) { return t.defined() && t.is_cuda(); }

/// Memory that the GPU copies from and to without a detour.
at::Tensor hostMemory(const at::Tensor& t) {
  return onCuda(t) ? at::empty_like(t, t.options().device(at::kCPU).pinned_memory(true)) : t;
}

at::Tensor hostCopy(const at::Tensor& t) { return onCuda(t) ? hostMemory(t).copy_(t) : t; }

template <class Copy>
std::vector<at::Tensor> map(LocalTensors tensors, Copy copy) {
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& t : tensors) copies.push_back(copy(t));
  return copies;
}

}  // namespace

bool HostCopies::needed(const Communicator& group, const Team& team, LocalTensors out,
                        LocalTensors in) {
  return team.size() > 1 && !group.carriesCuda() &&
         (std::ranges::any_of(out, onCuda) || std::ranges::any_of(in, onCuda));
}

HostCopies::HostCopies(LocalTensors out, LocalTensors in)
    : results_(out), out_(map(out, hostMemory)), in_(map(in, hostCopy)) {}

HostCopies::HostCopies(LocalTensors in_out) : results_(in_out), out_(map(in_out, hostCopy)) {}

void HostCopies::giveBack() {
  for (size_t i = 0; i < results_.size(); ++i)
    if (onCuda(results_[i])) results_[i].copy_(out_[i]);
}

}  // namespace meshfuse
