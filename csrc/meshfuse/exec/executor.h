// SPDX-License-Identifier: BSD-3-Clause
// Runs programs: passes once per definition, a plan once per signature, then a loop over its steps.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/exec/kernel_argument_holder.h>
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
  /// Runs a plan for the local ranks of `comm` in lock-step: the same for all, or one for each, of
  /// the same steps. `inputs[r]` are the inputs of local rank r; returns their outputs. Never
  /// throws between two communications.
  static std::vector<std::vector<at::Tensor>> run(std::span<const Plan* const> plans,
                                                  Communicator& comm,
                                                  std::span<const std::vector<InputValue>> inputs,
                                                  ExecutionStats& stats);

 private:
  friend class DeviceRun;
  static void setValues(OpCall& call, std::span<const size_t> params,
                        const ExpressionEvaluator& scalars);
  static void setDrawn(OpCall& call, std::span<const size_t> params,
                       std::span<const int64_t> values);
};

/// A program with its compiled plans. Calls from several threads are safe.
class FusionExecutorCache {
 public:
  /// `fusion_id`: a number of the caller's, shown in profiles.
  explicit FusionExecutorCache(std::shared_ptr<Fusion> fusion, int64_t fusion_id = 0);

  /// Local tensors in, local tensors out, for a communicator of one local rank. Throws Error,
  /// and PeerError when another rank failed.
  std::vector<at::Tensor> run(std::vector<InputValue> inputs);
  KernelArgumentHolder runFusionWithInputs(const KernelArgumentHolder& inputs) {
    return KernelArgumentHolder(run(inputs.inputs()));
  }
  /// The same for every device of a simulated mesh.
  std::vector<std::vector<at::Tensor>> runAll(std::span<const std::vector<InputValue>> inputs,
                                              Communicator& comm);

  /// Tells the ranks that would take part in an execution with this one that it gave the execution
  /// up before it had begun: its inputs could not be read, say. run() does so by itself.
  void refuse(std::string_view reason) noexcept;

  bool isCompiled(std::span<const InputValue> inputs);
  const std::shared_ptr<Fusion>& fusion() const { return fusion_; }
  /// After the passes.
  std::shared_ptr<const Fusion> compiledFusion();
  /// The plan that ran last, or nullptr.
  std::shared_ptr<const Plan> lastPlan() const;
  const ExecutionStats& stats() const { return stats_; }

  static constexpr size_t kMaxPlans = 256;  // least recently used plans are dropped

 private:
  /// What a plan depends on beside the inputs.
  struct Team {
    int64_t size = 0, local = 0, first = 0;
    bool operator==(const Team&) const = default;
  };
  /// Plans of an uneven program, one per local device.
  std::vector<std::shared_ptr<const Plan>> plansPerDevice(
      std::span<const std::vector<InputValue>> inputs, Communicator& comm);
  /// The one plan of all local devices, whose inputs must fit it.
  std::vector<std::shared_ptr<const Plan>> planForAll(
      std::span<const std::vector<InputValue>> inputs, Communicator& comm);
  static Team teamOf(const Communicator& comm);
  /// Plans made for other devices are dropped.
  void useTeam(const Team& team);
  void dropPlans();
  /// `told`: sizes of the program's told axes.
  std::shared_ptr<const Plan> planFor(std::span<const InputValue> inputs, Communicator& comm,
                                      std::span<const int64_t> told = {});
  /// The same, with sizes from the other ranks where the program needs them; when it throws, the
  /// others are told.
  std::shared_ptr<const Plan> planOrRefuse(std::span<const InputValue> inputs, Communicator& comm);
  /// A plan that needs no sizes from other ranks, if there is one; else nullptr.
  std::shared_ptr<const Plan> knownPlan(std::span<const InputValue> inputs, const Team& team);
  std::shared_ptr<const Plan> find(std::span<const InputValue> inputs, const Team& team,
                                   std::span<const int64_t> told = {});
  std::shared_ptr<const Fusion> compiledLocked();
  /// What ranks that run the program agree on; nullptr where this process has all devices.
  std::shared_ptr<const ProgramAgreement> agreementLocked(const Communicator& comm);
  /// Sizes of the program's told axes that this rank's inputs give.
  std::vector<int64_t> sizesLocked(std::span<const InputValue> inputs, Communicator& comm);
  /// For the comparison with other ranks.
  std::string describe(std::span<const InputValue> inputs, Communicator& comm);
  /// Per input the tensor of a device that holds it.
  std::vector<InputValue> representativeInputs(std::span<const std::vector<InputValue>> inputs,
                                               Communicator& comm);
  /// Throws Error unless scalar inputs are the same on all devices.
  static void checkScalars(std::span<const std::vector<InputValue>> inputs,
                           std::span<const int64_t> devices);
  /// Throws Error when a device's inputs do not fit the plan that the others run.
  static void checkAgreement(const Plan& plan, std::span<const InputValue> representative,
                             std::span<const InputValue> inputs, int64_t device);

  std::shared_ptr<Fusion> fusion_;
  int64_t fusion_id_;
  std::shared_ptr<const Fusion> compiled_;
  uint64_t compiled_version_ = 0;
  std::vector<size_t> by_value_;  // scalar inputs of compiled_ that sizes depend on
  std::shared_ptr<const ProgramAgreement> agreement_;  // of compiled_; made when needed
  Team team_;
  std::list<std::shared_ptr<const Plan>> plans_;         // most recently used first
  std::vector<std::shared_ptr<const Plan>> per_device_;  // of an uneven program, as run last
  std::unordered_multimap<size_t, std::list<std::shared_ptr<const Plan>>::iterator> index_;
  std::pair<Signature, std::vector<int64_t>> last_sizes_;  // that inputs gave to told axes
  mutable std::mutex mutex_;
  ExecutionStats stats_;
};

/// The part of a global tensor that this process's device holds.
inline at::Tensor shardTensor(const at::Tensor& global, const TensorView* tv) {
  return shardTensor(global, tv, Communicator::instance().deviceId());
}

}  // namespace meshfuse
