// SPDX-License-Identifier: BSD-3-Clause
// Where tests have their tensors: on the CPU, or with MESHFUSE_TEST_DEVICE=cuda on the GPU.
#pragma once
#include <meshfuse/comm/communicator.h>

#include <cstdlib>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace meshfuse {

inline bool testsUseCuda() {
  const char* device = std::getenv("MESHFUSE_TEST_DEVICE");
  return device && std::string_view(device) == "cuda";
}

/// The current device of this process.
inline at::TensorOptions testOptions(at::ScalarType type = at::kFloat) {
  return at::device(testsUseCuda() ? at::kCUDA : at::kCPU).dtype(type);
}

/// The collectives of a communicator, on copies of CPU tensors on the device of the tests.
class DeviceGroup {
 public:
  explicit DeviceGroup(Communicator& group) : group_(group) {}

  int64_t size() const { return group_.size(); }
  std::span<const int64_t> localRanks() const { return group_.localRanks(); }

  void allReduce(LocalTensors out, LocalTensors in, const Team& team, ReduceKind kind,
                 Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.allReduce(copies.out(), copies.in(), team, kind, copies.wait(posted));
  }
  void allReduce(LocalTensors in_out, const Team& team, ReduceKind kind, Posted* posted = nullptr) {
    Copies copies(in_out, {});
    group_.allReduce(copies.out(), team, kind, copies.wait(posted));
  }
  void allGather(LocalTensors out, LocalTensors in, const Team& team, Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.allGather(copies.out(), copies.in(), team, copies.wait(posted));
  }
  void reduceScatter(LocalTensors out, LocalTensors in, const Team& team, ReduceKind kind,
                     Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.reduceScatter(copies.out(), copies.in(), team, kind, copies.wait(posted));
  }
  void allToAll(LocalTensors out, LocalTensors in, const Team& team, Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.allToAll(copies.out(), copies.in(), team, copies.wait(posted));
  }
  void broadcast(LocalTensors in_out, int64_t root, const Team& team, Posted* posted = nullptr) {
    Copies copies(in_out, {});
    group_.broadcast(copies.out(), root, team, copies.wait(posted));
  }
  void gather(LocalTensors out, LocalTensors in, int64_t root, const Team& team,
              Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.gather(copies.out(), copies.in(), root, team, copies.wait(posted));
  }
  void scatter(LocalTensors out, LocalTensors in, int64_t root, const Team& team,
               Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.scatter(copies.out(), copies.in(), root, team, copies.wait(posted));
  }
  void reduce(LocalTensors out, LocalTensors in, int64_t root, const Team& team, ReduceKind kind,
              Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.reduce(copies.out(), copies.in(), root, team, kind, copies.wait(posted));
  }
  void sendRecv(LocalTensors out, LocalTensors in, std::span<const SendRecvPair> pairs,
                Posted* posted = nullptr) {
    Copies copies(out, in);
    group_.sendRecv(copies.out(), copies.in(), pairs, copies.wait(posted));
  }

 private:
  /// The tensors themselves, where tests use the CPU.
  class Copies {
   public:
    Copies(LocalTensors out, LocalTensors in) : wanted_(out), out_(copy(out)), in_(copy(in)) {}
    ~Copies() {
      for (size_t i = 0; i < wanted_.size(); ++i)
        if (!out_[i].is_same(wanted_[i])) wanted_[i].copy_(out_[i]);
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;

    LocalTensors out() { return out_; }
    LocalTensors in() { return in_; }
    /// Results must be there before they are copied.
    Posted* wait(Posted* posted) const { return testsUseCuda() ? nullptr : posted; }

   private:
    static std::vector<at::Tensor> copy(LocalTensors tensors) {
      std::vector<at::Tensor> copies(tensors.begin(), tensors.end());
      for (at::Tensor& t : copies)
        if (testsUseCuda() && t.defined() && t.is_cpu() && t.is_contiguous() && !t.is_quantized())
          t = t.to(at::kCUDA);
      return copies;
    }

    LocalTensors wanted_;
    std::vector<at::Tensor> out_, in_;
  };

  Communicator& group_;
};

}  // namespace meshfuse
