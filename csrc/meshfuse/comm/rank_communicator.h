// SPDX-License-Identifier: BSD-3-Clause
// What communicators of one rank per process have in common, whatever carries their data.
// rank_communicator.cpp: waiting, failing, leaving. rank_execution.cpp: agreement on executions.
#pragma once
#include <meshfuse/base/error.h>
#include <meshfuse/comm/control_channel.h>
#include <meshfuse/comm/execution_agreement.h>
#include <meshfuse/comm/waiting.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace meshfuse {

/// Name of the wait for agreement in messages, where those for collectives have theirs.
inline constexpr std::string_view kExecute = "execute";

class RankCommunicator : public Communicator {
 public:
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
  RankCommunicator();

  /// The channels are those of this group alone. Called by the constructor of a backend.
  void open(std::unique_ptr<Mailbox> control, std::unique_ptr<Mailbox> agreement);
  void setLocal(int64_t local_rank, int64_t local_size);

  // What a backend does.

  /// Waits, by wait(), until all ranks are in the barrier that is call number `call`.
  virtual void runBarrier(int64_t call) = 0;
  /// Why nothing can be sent any more ("MPI is finalised"), or nullptr. Called under the lock.
  virtual const char* whyEnded() const { return nullptr; }
  /// Frees what carries the data: all others have left, or the group is `closed`, which may mean
  /// that some of it is in use. Called under the lock, at the end of shutdown().
  virtual void release(bool closed) { (void)closed; }
  /// A failed rank that lost patience at its end, for `reason`: ends the job if others cannot see
  /// that it is gone.
  virtual void abort(const std::string& reason) { (void)reason; }

  /// Whether calls have begun and not ended. The caller has the turn.
  virtual bool hasPosted() const { return false; }
  /// Ends the calls up to number `last`. The caller has the turn.
  virtual void finishPosted(int64_t last) { (void)last; }

  void skipCall(std::string_view what) override;

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

  int self() const { return static_cast<int>(rank_); }
  bool inOtherProcess() const { return getpid() != process_; }
  bool ownsExecution() const { return executing_ == std::this_thread::get_id(); }
  bool hasLeft() const { return left_ || whyEnded() != nullptr; }
  /// Closes the group because what carries the data failed, in call number `call`; tells the
  /// others.
  [[noreturn]] void closeBecauseOfTransport(std::string_view what, int64_t call,
                                            const std::string& reason);

  const double timeout_ = communicationTimeout();  // first: these throw when a value is wrong
  const int64_t piece_bytes_ = messagePieceBytes();
  const LauncherEnv launcher_ = readLauncherEnv();
  int64_t rank_ = 0, size_ = 1;
  // Taken in this order, execution_turn_ before them.
  std::timed_mutex turn_;  // held during a collective call
  std::mutex mutex_;       // guards all below, and every use of the transport by several threads
  int64_t calls_ = 0;      // begun
  int64_t completed_ = 0;  // all up to this one
  int64_t calls_of_execution_ = 0;  // used by its thread only

 private:
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
  ExecutionAgreement::Verdict waitForVerdict();
  [[noreturn]] void closeBecauseOf(int r, const ControlChannel::Peer& peer, std::string_view what,
                                   int64_t call);
  [[noreturn]] void giveUp(std::string_view what, int64_t call);
  [[noreturn]] void close(int culprit, const std::string& reason, const std::string& message);

  bool waitUntilOthersLeft(bool failed);
  bool othersLeft();

  const pid_t process_;
  int64_t local_rank_ = 0, local_size_ = 1;

  std::timed_mutex execution_turn_;  // held during an execution
  // Guarded by mutex_.
  std::optional<ControlChannel> control_;
  std::optional<ExecutionAgreement> agreement_;
  std::atomic<std::thread::id> executing_;  // the thread with the execution's turn
  bool agreed_ = false;                     // in the current execution; used by its thread only
  int64_t refusals_ = 0;       // executions that this rank gave up before communicating
  std::vector<bool> awaited_;  // members of the team of the current call; empty: all ranks
  std::pair<int64_t, int64_t> announced_;  // the latest call and barrier that we said we wait in
  int64_t barriers_ = 0;                   // completed
  std::optional<PeerError> closed_;
  std::optional<int> blamed_;  // the rank whose failure or departure closed the group
  bool left_ = false;
};

}  // namespace meshfuse
