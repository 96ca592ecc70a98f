// SPDX-License-Identifier: BSD-3-Clause
// Runs programs: passes once per definition, a plan once per signature, then a loop over its steps.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/plan/plan.h>

#include <atomic>
#include <list>
#include <mutex>
#include <unordered_map>

namespace meshfuse {

/// Counters of one FusionExecutorCache.
struct ExecutionStats {
  std::atomic<int64_t> runs{0};
  std::atomic<int64_t> compiles{0};
  std::atomic<int64_t> relayouts{0};  // results copied because their layout differed
};

class Executor {
 public:
  /// Runs a plan for the local ranks of `comm` in lock-step. `inputs[r]` are the inputs of local
  /// rank r; returns their outputs. Never throws between two communications.
  static std::vector<std::vector<at::Tensor>> run(
      const Plan& plan, Communicator& comm, std::span<const std::vector<InputValue>> inputs,
      ExecutionStats& stats);
};

/// A program with its compiled plans. Calls from several threads are safe.
class FusionExecutorCache {
 public:
  explicit FusionExecutorCache(std::shared_ptr<Fusion> fusion);

  /// Local tensors in, local tensors out, for a communicator of one local rank. Throws Error,
  /// and PeerError when another rank failed.
  std::vector<at::Tensor> run(std::span<const InputValue> inputs);
  /// The same for every device of a simulated mesh.
  std::vector<std::vector<at::Tensor>> runAll(std::span<const std::vector<InputValue>> inputs,
                                              Communicator& comm);

  bool isCompiled(std::span<const InputValue> inputs);
  const std::shared_ptr<Fusion>& fusion() const { return fusion_; }
  /// After the passes.
  std::shared_ptr<const Fusion> compiledFusion();
  /// The plan that ran last, or nullptr.
  std::shared_ptr<const Plan> lastPlan() const;
  const ExecutionStats& stats() const { return stats_; }

  static constexpr size_t kMaxPlans = 256;  // least recently used plans are dropped

 private:
  std::shared_ptr<const Plan> planFor(std::span<const InputValue> inputs, Communicator& comm);

  std::shared_ptr<Fusion> fusion_;
  std::shared_ptr<const Fusion> compiled_;
  uint64_t compiled_version_ = ~uint64_t{0};
  const void* compiled_for_ = nullptr;  // communicator
  struct Entry {
    std::shared_ptr<const Plan> plan;
  };
  std::list<std::shared_ptr<const Plan>> plans_;  // most recently used first
  std::unordered_multimap<size_t, std::list<std::shared_ptr<const Plan>>::iterator> index_;
  mutable std::mutex mutex_;
  ExecutionStats stats_;
};

}  // namespace meshfuse
