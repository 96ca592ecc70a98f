// SPDX-License-Identifier: BSD-3-Clause
// The communicator of the plugin. mpi.cpp: joining and leaving. mpi_job.cpp: calls that have begun.
// mpi_collectives.cpp: what the ranks send each other in a collective.
#pragma once
#include <meshfuse/base/error.h>
#include <meshfuse/comm/mpi_mailbox.h>
#include <meshfuse/comm/mpi_plugin.h>
#include <meshfuse/comm/rank_communicator.h>
#include <mpi.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

namespace meshfuse {

class MpiCommunicator final : public RankCommunicator {
 public:
  MpiCommunicator();
  ~MpiCommunicator() override;

  std::string_view backend() const override { return "mpi"; }

 protected:
  void runBarrier(int64_t call) override;
  const char* whyEnded() const override;
  void release(bool closed) override;
  bool hasPosted() const override { return !jobs_.empty(); }
  void finishPosted(int64_t last) override { finishJobs(last); }
  void abort(const std::string& reason) override;

  void runTransfers(const CollectiveCall& call, std::span<const Transfer> transfers) override;
  void runBroadcast(const CollectiveCall& call, int64_t root) override;
  void runAllReduce(const CollectiveCall& call, ReduceKind kind) override;
  void runReduceScatter(const CollectiveCall& call, ReduceKind kind) override;
  void runReduce(const CollectiveCall& call, int64_t root, ReduceKind kind) override;

 private:
  class Job;  // a collective call
  class MoveJob;
  class BroadcastJob;
  class ReductionJob;
  /// Which elements of the input each member of a team reduces, in consecutive rounds.
  struct ReductionLayout;
  /// Memory for messages.
  struct Scratch {
    std::unique_ptr<std::byte[]> bytes;
    int64_t size = 0;
  };

  void runReduction(const CollectiveCall& call, ReduceKind kind, ReductionLayout layout);
  /// Begins the job as the next collective call, and ends it and all before it, unless `posted`.
  void runJob(std::unique_ptr<Job> job, Posted* posted);
  /// Ends the calls up to number `last`. The caller has the turn.
  void finishJobs(int64_t last);
  Scratch scratch(int64_t bytes);
  void keepScratch(std::vector<Scratch> blocks);

  const bool owns_mpi_;  // MPI was initialised here: then it is finalised here
  MPI_Comm data_;
  MPI_Comm control_comm_;
  MPI_Comm agreement_comm_;
  std::vector<Scratch> scratch_;  // guarded by mutex_
  // Begun and not ended, in order of their numbers; guarded by turn_.
  std::deque<std::unique_ptr<Job>> jobs_;
};

}  // namespace meshfuse
