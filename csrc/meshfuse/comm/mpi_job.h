// SPDX-License-Identifier: BSD-3-Clause
// One collective call of this rank: what it sends, and what it does with what arrives. It begins
// when it is called, and ends when its results are there; in between this rank may do other work.
#pragma once
#include <meshfuse/comm/collective_call.h>
#include <meshfuse/comm/mpi_communicator.h>

namespace meshfuse {

class MpiCommunicator::Job {
 public:
  Job(MpiCommunicator& group, const CollectiveCall& call);
  virtual ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Sends and receives what needs nothing from others; does not wait.
  virtual void start() = 0;
  /// The rest.
  virtual void finish() = 0;

 protected:
  /// Messages that are waited for together.
  struct Batch {
    std::vector<MPI_Request> requests;
    std::vector<std::pair<int, int>> expected;  // per request: sender (-1: it is a send) and size
    std::vector<MPI_Status> statuses;
    int64_t bytes = 0;
  };

  int64_t teamSize() const { return team_.size(); }
  int64_t device(int64_t place) const { return team_.devices[static_cast<size_t>(place)]; }
  int64_t rank() const { return group_.rank_; }
  void send(Batch& batch, int64_t to, const std::byte* from, int64_t bytes);
  void receive(Batch& batch, int64_t from, std::byte* to, int64_t bytes);
  /// Waits for the messages of `batch`, which is empty then.
  void wait(Batch& batch);
  /// Uninitialised memory for messages, for as long as the job.
  std::byte* memory(int64_t bytes);

  const int64_t me_;  // this rank's place in the team
  const bool in_place_;
  std::vector<at::Tensor> out_, in_;

 private:
  friend class MpiCommunicator;
  bool done(Batch& batch);
  /// Begins messages of at most the group's piece size, by `begin(offset, size, request)`.
  template <class Begin>
  void beginPieces(Batch& batch, int64_t bytes, int sender, Begin begin);

  MpiCommunicator& group_;
  const std::string_view what_;
  const Team team_;
  int64_t number_ = 0;  // of the call
  int tag_ = 0;
  size_t pending_ = 0;
  std::vector<Scratch> memory_;
};

}  // namespace meshfuse
