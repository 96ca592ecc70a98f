// SPDX-License-Identifier: BSD-3-Clause
// Communication steps of a plan: from local tensors to the buffers of a collective and back.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/plan/plan.h>

#include <span>
#include <vector>

namespace meshfuse {

/// One local device in a communication step.
struct Participant {
  int64_t device = -1;
  at::Tensor operand;            // undefined where the device holds none
  at::Tensor result;             // set by communicate() where the device gets one
  const Layout* want = nullptr;  // of the result; sizes and strides
};

/// Runs the step for all local devices; every rank calls it, in the same order of steps. `options`:
/// type and device of results on devices that have no operand. Results may not be in their wanted
/// strides yet.
void communicate(const CommunicationStep& step, Communicator& comm,
                 std::span<Participant> participants, const at::TensorOptions& options);

/// A communication step of a single local device that has begun. Steps end in the order in which
/// they began.
class PostedCommunication {
 public:
  /// Only for steps whose CommunicationStep says mayPost().
  PostedCommunication(const CommunicationStep& step, Communicator& comm, Participant participant,
                      const at::TensorOptions& options);
  PostedCommunication(PostedCommunication&&) noexcept;
  PostedCommunication& operator=(PostedCommunication&&) noexcept;
  ~PostedCommunication();

  /// Waits for the messages.
  void wait();
  /// The same; gives the device's result, undefined where it gets none.
  at::Tensor finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace meshfuse
