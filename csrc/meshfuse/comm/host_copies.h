// SPDX-License-Identifier: BSD-3-Clause
// CUDA tensors in collectives of a backend that carries CPU tensors only.
#pragma once
#include <meshfuse/comm/communicator.h>

namespace meshfuse {

/// Copies in host memory that stand for the CUDA tensors of a call. The host waits for the work
/// that `in` comes from.
class HostCopies {
 public:
  /// Whether a call needs them: there are messages, of CUDA tensors, which `group` does not carry.
  static bool needed(const Communicator& group, const Team& team, LocalTensors out,
                     LocalTensors in);

  HostCopies(LocalTensors out, LocalTensors in);
  /// A tensor that is read and written.
  explicit HostCopies(LocalTensors in_out);

  LocalTensors out() { return out_; }
  LocalTensors in() { return in_; }
  /// Writes the results where they belong.
  void giveBack();

 private:
  LocalTensors results_;
  std::vector<at::Tensor> out_, in_;
};

}  // namespace meshfuse
