// SPDX-License-Identifier: BSD-3-Clause
// Times and sizes of executions, step by step. Where no recorder is active an execution pays one
// look at a thread-local pointer, and nothing per step.
#pragma once
#include <meshfuse/plan/plan.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace c10 {
struct Event;
}

namespace meshfuse {

/// What a step turned out to be: a communication with at least one other device; nothing but
/// another view of an operand's memory; or a computation or copy through ATen.
enum class StepKind : uint8_t { Communication, NoOp, ExprEval };
std::string_view name(StepKind kind);  // "communication", "no_op", "expr_eval"

/// One step of a run. Bytes are those of all local devices that took part, together, as the time
/// is: a simulated mesh runs them one after the other.
struct StepProfile {
  std::string name;  // as plan() prints it, communications with their kind
  StepKind kind = StepKind::ExprEval;
  double start_ms = 0;   // since the run began
  double time_ms = 0;    // wall time, waiting for accelerators included
  double host_ms = 0;    // wall time until the host had queued or done the work
  double device_ms = 0;  // of the work on a CUDA device, by its events; 0 without one
  int64_t input_bytes = 0, output_bytes = 0;
};

/// A step as plan() prints it, communications with their kind.
std::string profileName(const Step& step);

/// One execution. Times are wall times in milliseconds.
struct RunProfile {
  int64_t fusion_id = 0;
  int64_t device = 0;                           // first local device
  int64_t start_ns = 0;                         // when it began, in nanoseconds since 1970
  std::chrono::steady_clock::time_point start;  // the same, for differences
  double compile_ms = 0;                        // to find the plan, or to compile it
  double steps_ms = 0;                          // from the first step to the last
  double host_ms = 0;                           // all of it
  int64_t input_bytes = 0, output_bytes = 0;    // of all local devices
  std::vector<StepProfile> steps;               // those in which a local device took part, in order
};

/// Records the executions of the thread that started it, until stop(). Recorders may be nested;
/// what the inner one recorded is added to the outer one when the inner one stops.
class ProfileRecorder {
 public:
  ProfileRecorder() = default;
  ~ProfileRecorder();
  ProfileRecorder(const ProfileRecorder&) = delete;
  ProfileRecorder& operator=(const ProfileRecorder&) = delete;

  /// Throws Error when it was started already.
  void start();
  /// Ends recording and returns what was recorded; executions that threw are left out. Throws Error
  /// when it was not the last one started on this thread.
  std::vector<RunProfile> stop();

  /// The innermost one of this thread, or nullptr.
  static ProfileRecorder* active() noexcept;

  /// The execution that is going on; made by RunProbe.
  RunProfile& current() { return current_; }

 private:
  friend class RunProbe;
  ProfileRecorder* outer_ = nullptr;
  bool started_ = false;
  RunProfile current_;
  std::vector<RunProfile> runs_;
};

/// Around one execution; does nothing when no recorder is active.
class RunProbe {
 public:
  RunProbe(int64_t fusion_id, int64_t device, std::span<const std::vector<InputValue>> inputs)
      : recorder_(ProfileRecorder::active()) {
    if (recorder_ != nullptr) [[unlikely]]
      begin(fusion_id, device, inputs);
  }
  /// The plan is there.
  void planned() {
    if (recorder_ != nullptr) [[unlikely]]
      recordPlanned();
  }
  /// The results of every local device are there. Without this call nothing is recorded.
  void finish(std::span<const std::vector<at::Tensor>> outputs) {
    if (recorder_ != nullptr) [[unlikely]]
      record(outputs);
  }

 private:
  using Clock = std::chrono::steady_clock;
  void begin(int64_t fusion_id, int64_t device, std::span<const std::vector<InputValue>> inputs);
  void recordPlanned();
  void record(std::span<const std::vector<at::Tensor>> outputs);

  ProfileRecorder* recorder_;
  Clock::time_point start_;
};

/// Sets `milliseconds` to its own lifetime.
class ProfileTimer {
 public:
  explicit ProfileTimer(double& milliseconds) : milliseconds_(milliseconds) {}
  ~ProfileTimer();
  ProfileTimer(const ProfileTimer&) = delete;
  ProfileTimer& operator=(const ProfileTimer&) = delete;

 private:
  double& milliseconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Around one step.
class StepProbe {
 public:
  explicit StepProbe(const Step& step) : step_(step) {}
  /// Reads the operands of a device that takes part, before the step.
  void addDevice(std::span<const at::Tensor> slots);
  /// Begins the time.
  void start();
  /// Ends the time.
  void stop();
  /// Reads the results of a device that took part, after the step.
  void addResults(std::span<const at::Tensor> slots);
  /// Adds the step to the run, unless no local device took part.
  void record(RunProfile& run) const;

 private:
  void synchronize() const;
  void recordEvents();

  const Step& step_;
  std::chrono::steady_clock::time_point start_;
  StepProfile profile_;
  // Of the operands: its address, and what keeps that from being used again (not the memory).
  std::vector<std::pair<const void*, std::shared_ptr<void>>> memory_;
  std::vector<at::Device> devices_;  // those other than the CPU that must finish first
  std::vector<std::shared_ptr<c10::Event>> events_;  // on CUDA devices: beginnings, then ends
  int64_t members_ = 0;
  bool only_views_ = true;
};

}  // namespace meshfuse
