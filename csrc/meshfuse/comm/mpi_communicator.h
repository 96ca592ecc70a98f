// SPDX-License-Identifier: BSD-3-Clause
// The communicator of the plugin. mpi.cpp: joining, waiting, failing, leaving. mpi_execution.cpp:
// agreement on executions. mpi_job.cpp: calls that have begun. mpi_collectives.cpp: what the ranks
// send each other in a collective.
#pragma once
#include <meshfuse/base/error.h>
#include <meshfuse/comm/mpi_agreement.h>
#include <meshfuse/comm/mpi_control.h>
#include <meshfuse/comm/mpi_plugin.h>
#include <meshfuse/comm/waiting.h>
#include <mpi.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace meshfuse {

/// Name of the wait for agreement in messages, where those for collectives have theirs.
inline constexpr std::string_view kExecute = "execute";

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator();
  ~MpiCommunicator() override;

  std::string_view backend() const override { return "mpi"; }
  int64_t size() const override { return size_; }
  std::span<const int64_t> localRanks() const override { return {&rank_, 1}; }
  int64_t rank() const override { return rank_; }
  int64_t localSize() const override { return local_size_; }
  int64_t localRank() const override { return local_rank_; }
  bool isAvailable() const override { return launcher_.found; }

  void barrier() override;
  void reportFailure(std::string_view reason) noexcept override;
  void reportRefusal(std::string_view reason) noexcept override;
  void shutdown(bool failed) noexcept override;

  void beginExecution(const Team& team, const Proposal& proposal) override;
  void agree() override;
  void endExecution() noexcept override;
  void abandonExecution(std::string_view reason) noexcept override;
  void refuseExecution(const Team& team, std::string_view reason) noexcept override;

 protected:
  void skipCall(std::string_view what) override;
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

  /// Runs `body(call)` as the next collective call, for which the members of `team` (nullptr: all
  /// ranks) are awaited. When it throws, the others are told and the group is closed.
  void runCall(std::string_view what, const Team* team, const std::function<void(int64_t)>& body);
  /// Runs `body`, which waits in `what`. When it throws, the others are told.
  void tellIfStopped(std::string_view what, int64_t call, const std::function<void()>& body);
  /// Makes what several threads do with other ranks follow one another.
  std::unique_lock<std::timed_mutex> takeTurn(std::timed_mutex& turn, std::string_view what);
  /// Number of the call that begins. Throws when it cannot succeed any more.
  int64_t beginCall(std::string_view what, const Team* team);
  /// Whom a wait is for: the members of `team`; nullptr: all ranks.
  void await(const Team* team);
  /// Polls until `done()`, which is called under the lock, returns true; `what` and `call` name the
  /// call in messages. `busy`: seconds of work for the polling to do (see Backoff).
  void wait(const std::function<bool()>& done, std::string_view what, int64_t call,
            double busy = 0);
  bool step(const std::function<bool()>& done, std::string_view what, int64_t call,
            const Backoff& backoff);
  bool isAwaited(int r) const;
  bool someoneWaitsIn(int64_t call) const;
  void announceWaiting(std::string_view what, int64_t call);

  void checkUsable(std::string_view what) const;
  void throwIfPeerGone(std::string_view what, int64_t call);
  void throwIfRefused(std::string_view what, int64_t call);
  void throwIfAbandoned(std::string_view what, int64_t call);
  void throwIfElsewhere(std::string_view what, int64_t call);
  /// Closes the group because another rank, which did not fail, will not do its part in `call`.
  [[noreturn]] void closeWithout(int r, const std::string& reason, const std::string& message);
  MpiAgreement::Verdict waitForVerdict();
  bool ownsExecution() const { return executing_ == std::this_thread::get_id(); }
  [[noreturn]] void closeBecauseOf(int r, const MpiControl::Peer& peer, std::string_view what,
                                   int64_t call);
  [[noreturn]] void giveUp(std::string_view what, int64_t call);
  [[noreturn]] void close(int culprit, const std::string& reason, const std::string& message);

  bool waitUntilOthersLeft(bool failed);
  bool othersLeft();
  bool inOtherProcess() const { return getpid() != process_; }
  int self() const { return static_cast<int>(rank_); }

  const double timeout_ = communicationTimeout();  // first: these throw when a value is wrong
  const int64_t piece_bytes_ = messagePieceBytes();
  const LauncherEnv launcher_ = readLauncherEnv();
  const bool owns_mpi_;  // MPI was initialised here: then it is finalised here
  const pid_t process_;
  MPI_Comm data_;
  MPI_Comm control_comm_;
  MPI_Comm agreement_comm_;
  int64_t rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;

  // Taken in this order.
  std::timed_mutex execution_turn_;  // held during an execution
  std::timed_mutex turn_;            // held during a collective call; guards jobs_
  std::mutex mutex_;  // guards all below, and every use of MPI (it may be only SERIALIZED)
  MpiControl control_{control_comm_};
  MpiAgreement agreement_{agreement_comm_};
  std::atomic<std::thread::id> executing_;  // the thread with the execution's turn
  bool agreed_ = false;                     // in the current execution; used by its thread only
  int64_t calls_of_execution_ = 0;          // the same
  int64_t calls_ = 0;                       // begun
  int64_t completed_ = 0;                   // all up to this one
  int64_t refusals_ = 0;       // executions that this rank gave up before communicating
  std::vector<bool> awaited_;  // members of the team of the current call; empty: all ranks
  std::pair<int64_t, int64_t> announced_;  // the latest call and barrier that we said we wait in
  int64_t barriers_ = 0;                   // completed
  std::optional<PeerError> closed_;
  std::optional<int> blamed_;  // the rank whose failure or departure closed the group
  bool left_ = false;
  std::vector<Scratch> scratch_;
  std::deque<std::unique_ptr<Job>> jobs_;  // begun and not ended, in order of their numbers
};

}  // namespace meshfuse
