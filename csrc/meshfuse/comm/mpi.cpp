// SPDX-License-Identifier: BSD-3-Clause
// The plugin libmeshfuse_mpi.so. A rank that waits polls three things: the collective itself, what
// other ranks tell (mpi_control.h), and the clock, so that it never waits for a rank that is gone.
#include <meshfuse/comm/mpi_job.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

constexpr std::string_view kBarrier = "barrier";
constexpr double kPatienceAfterFailure = 2;  // seconds for the others to notice and leave

/// Whether MPI was initialised here, and not by the program (mpi4py, say): then we finalise it.
bool joinMpi() {
  int finalized = 0, initialized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Finalized(&finalized);
  MESHFUSE_CHECK(
      finalized == 0,
      "Communicator: MPI was finalised already. Call Communicator.instance() before that.");
  MPI_Initialized(&initialized);
  if (initialized == 0)
    checkMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  else
    checkMpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  MESHFUSE_CHECK(provided >= MPI_THREAD_SERIALIZED, "Communicator: MPI runs with thread level ",
                 provided, ". Initialise it with MPI_Init_thread and MPI_THREAD_SERIALIZED (",
                 MPI_THREAD_SERIALIZED, ") or higher, or leave it to meshfuse.");
  return initialized == 0;
}

/// A communicator of our own, so that our messages never meet the program's.
MPI_Comm duplicateWorld() {
  MPI_Comm comm = MPI_COMM_NULL;
  checkMpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  checkMpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

std::string listRanks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

MpiCommunicator::MpiCommunicator()
    : owns_mpi_(joinMpi()),
      process_(getpid()),
      data_(duplicateWorld()),
      control_comm_(duplicateWorld()),
      agreement_comm_(duplicateWorld()) {
  int rank = 0, size = 0;
  checkMpi(MPI_Comm_rank(data_, &rank), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(data_, &size), "MPI_Comm_size");
  rank_ = rank;
  size_ = size;
  MESHFUSE_CHECK(
      !launcher_.mpi || launcher_.size == size_, "Communicator: mpirun started ", launcher_.size,
      " ranks but MPI sees ", size_,
      ". It belongs to another installation than the MPI library that meshfuse was built "
      "with; use the mpirun of the latter.");
  if (launcher_.local_found) {  // as launched: MPI's order on the node may be another
    local_rank_ = launcher_.local_rank;
    local_size_ = launcher_.local_size;
    return;
  }
  MPI_Comm node = MPI_COMM_NULL;
  checkMpi(MPI_Comm_split_type(data_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
           "MPI_Comm_split_type");
  checkMpi(MPI_Comm_rank(node, &rank), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(node, &size), "MPI_Comm_size");
  local_rank_ = rank;
  local_size_ = size;
  checkMpi(MPI_Comm_free(&node), "MPI_Comm_free");
}

MpiCommunicator::~MpiCommunicator() = default;

// --- Collective calls ----------------------------------------------------------------------------

void MpiCommunicator::barrier() {
  if (size_ == 1) return;
  runCall(kBarrier, nullptr, [this](int64_t call) {
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::lock_guard lock(mutex_);
      checkMpi(MPI_Ibarrier(data_, &request), "MPI_Ibarrier");
    }
    const auto done = [&request] {
      int flag = 0;
      checkMpi(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
      return flag != 0;
    };
    wait(done, kBarrier, call);
    ++barriers_;
  });
}

void MpiCommunicator::skipCall(std::string_view what) {
  const auto turn = takeTurn(turn_, what);
  const std::lock_guard lock(mutex_);
  checkUsable(what);
  ++calls_;
  if (ownsExecution()) ++calls_of_execution_;
  if (jobs_.empty()) completed_ = calls_;
}

void MpiCommunicator::runCall(std::string_view what, const Team* team,
                              const std::function<void(int64_t)>& body) {
  const auto turn = takeTurn(turn_, what);
  finishJobs(calls_);
  const int64_t call = beginCall(what, team);
  tellIfStopped(what, call, [&] { body(call); });
  const std::lock_guard lock(mutex_);
  completed_ = call;
}

void MpiCommunicator::tellIfStopped(std::string_view what, int64_t call,
                                    const std::function<void()>& body) {
  try {
    body();
  } catch (const PeerError&) {
    throw;  // the others know, or have been told
  } catch (const std::exception& error) {
    // An interrupt, say. The wait cannot be taken up again, so the group ends.
    reportFailure(concat("stopped waiting in ", what, " (call ", call, "): ", error.what()));
    throw;
  } catch (...) {
    reportFailure(concat("stopped waiting in ", what, " (call ", call, ")"));
    throw;
  }
}

std::unique_lock<std::timed_mutex> MpiCommunicator::takeTurn(std::timed_mutex& mutex,
                                                             std::string_view what) {
  MESHFUSE_CHECK(!inOtherProcess(), what, ": process ", getpid(), " is a forked child of process ",
                 process_, ", which is the member of the group. Communicate in the parent only.");
  std::unique_lock turn(mutex, std::defer_lock);
  while (!turn.try_lock_for(std::chrono::milliseconds(50))) checkInterrupt();
  return turn;
}

int64_t MpiCommunicator::beginCall(std::string_view what, const Team* team) {
  const std::lock_guard lock(mutex_);
  checkUsable(what);
  await(team);
  control_.poll();
  control_.poll();  // twice: the first may only have moved MPI on, without seeing what that brought
  const int64_t call = calls_ + 1;
  throwIfPeerGone(what, call);
  if (someoneWaitsIn(call)) announceWaiting(what, call);
  return calls_ = call;
}

void MpiCommunicator::await(const Team* team) {
  awaited_.assign(team != nullptr ? static_cast<size_t>(size_) : 0, false);
  if (team != nullptr)
    for (const int64_t d : team->devices) awaited_[static_cast<size_t>(d)] = true;
}

void MpiCommunicator::wait(const std::function<bool()>& done, std::string_view what, int64_t call,
                           double busy) {
  Backoff backoff(busy);
  while (!step(done, what, call, backoff)) backoff.pause();
}

bool MpiCommunicator::step(const std::function<bool()>& done, std::string_view what, int64_t call,
                           const Backoff& backoff) {
  const std::lock_guard lock(mutex_);
  checkUsable(what);
  if (done()) return true;
  if (backoff.spinning()) return false;
  control_.poll();
  if (done()) return true;  // what a rank sent before it left has come by now
  throwIfPeerGone(what, call);
  throwIfAbandoned(what, call);
  throwIfElsewhere(what, call);
  if (someoneWaitsIn(call) || backoff.elapsed() > std::min(1.0, timeout_ / 2))
    announceWaiting(what, call);
  if (backoff.elapsed() > timeout_) giveUp(what, call);
  return false;
}

bool MpiCommunicator::isAwaited(int r) const {
  return r != self() && (awaited_.empty() || awaited_[static_cast<size_t>(r)]);
}

bool MpiCommunicator::someoneWaitsIn(int64_t call) const {
  return std::ranges::any_of(control_.peers(),
                             [&](const MpiControl::Peer& peer) { return peer.waiting_in >= call; });
}

// Told only in slow calls, so that who gives up knows who never came.
void MpiCommunicator::announceWaiting(std::string_view what, int64_t call) {
  const int64_t barrier = what == kBarrier ? barriers_ + 1 : 0;
  if (announced_ == std::pair{call, barrier}) return;
  announced_ = {call, barrier};
  control_.announceWaiting(call, barrier);
}

// --- What ends a group ---------------------------------------------------------------------------

void MpiCommunicator::checkUsable(std::string_view what) const {
  if (closed_) throw PeerError(*closed_);
  int finalized = 0;
  MPI_Finalized(&finalized);
  MESHFUSE_CHECK(!left_ && finalized == 0, what, ": rank ", rank_, " has left the group already (",
                 left_ ? "at exit" : "MPI is finalised", "). Communicate before that.");
}

void MpiCommunicator::throwIfPeerGone(std::string_view what, int64_t call) {
  const auto blame = [&](auto guilty) {
    for (int r = 0; r < size_; ++r) {
      const MpiControl::Peer& peer = control_.peers()[static_cast<size_t>(r)];
      // One that has completed this call did its part in it: the call can still succeed.
      if (peer.completed < call && guilty(r, peer)) closeBecauseOf(r, peer, what, call);
    }
  };
  // The cause first, and last those who left because of another.
  // A failed rank is not always in the team, but a member may wait for it in another one.
  using Peer = MpiControl::Peer;
  blame([](int, const Peer& peer) { return peer.failed; });
  blame([this](int r, const Peer& peer) { return peer.left && peer.culprit < 0 && isAwaited(r); });
  blame([this](int r, const Peer& peer) { return peer.left && isAwaited(r); });
  throwIfRefused(what, call);
}

// A rank that gave up more executions than this one gave up the one that this rank is in, unless it
// had completed this call before.
void MpiCommunicator::throwIfRefused(std::string_view what, int64_t call) {
  for (int r = 0; r < size_; ++r) {
    const MpiControl::Peer& peer = control_.peers()[static_cast<size_t>(r)];
    if (peer.refusals <= refusals_ || peer.refused_at >= call) continue;
    closeWithout(
        r, peer.refusal,
        concat(what, ": rank ", r, " gave up an execution that rank ", rank_,
               " takes part in (call ", call, "). The group is closed. Reason: ", peer.refusal));
  }
}

void MpiCommunicator::closeWithout(int r, const std::string& reason, const std::string& message) {
  blamed_ = r;
  control_.announce(MpiControl::Kind::Failure, completed_, r, reason);
  close(r, reason, message);
}

void MpiCommunicator::closeBecauseOf(int r, const MpiControl::Peer& peer, std::string_view what,
                                     int64_t call) {
  blamed_ = r;
  const std::string here = concat(", and rank ", rank_, " waits for it in ", what, " (call ", call,
                                  "). The group is closed. ");
  if (!peer.failed) {
    const std::string fact = concat("rank ", r, " left the group after ", peer.completed,
                                    " calls because its program ended");
    // Ranks that wait for this one in another team don't wait for that rank.
    if (!awaited_.empty()) control_.announce(MpiControl::Kind::Failure, completed_, r, fact);
    close(r, fact,
          concat(what, ": ", fact, here,
                 "All ranks must make the same calls: look for a branch that only some take."));
  }
  const bool its_own = peer.culprit == r || peer.culprit == self() || peer.culprit < 0;
  close(its_own ? r : peer.culprit, peer.reason,
        concat(what, ": rank ", r,
               peer.culprit == r  ? " failed"
               : peer.culprit < 0 ? " gave up"
                                  : concat(" gave up on rank ", peer.culprit),
               here, "Reason: ", peer.reason));
}

void MpiCommunicator::giveUp(std::string_view what, int64_t call) {
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) {
    const MpiControl::Peer& peer = control_.peers()[static_cast<size_t>(r)];
    const bool came = what != kExecute && std::max(peer.waiting_in, peer.completed) >= call;
    if (isAwaited(r) && !came) missing.push_back(r);
  }
  const std::string who = missing.empty() ? "no rank in particular" : listRanks(missing);
  const int culprit = missing.empty() ? -1 : missing.front();
  const std::string reason = concat("timed out after ", timeout_, " s (MESHFUSE_TIMEOUT) in ", what,
                                    " (call ", call, ") without ", who);
  control_.announce(MpiControl::Kind::Failure, completed_, culprit, reason);
  close(culprit, reason,
        concat(what, ": rank ", rank_, " ", reason, ". The group is closed. Look why ", who,
               " did not come; if it is only slow, set MESHFUSE_TIMEOUT to more seconds."));
}

void MpiCommunicator::close(int culprit, const std::string& reason, const std::string& message) {
  closed_.emplace(culprit, reason, message);
  throw PeerError(*closed_);
}

void MpiCommunicator::reportFailure(std::string_view reason) noexcept {
  if (inOtherProcess()) return;
  try {
    const std::lock_guard lock(mutex_);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (closed_ || left_ || finalized != 0) return;  // closed: the others know of it already
    closed_.emplace(
        self(), std::string(reason),
        concat("rank ", rank_, " (this one) failed before, which closed the group: ", reason));
    control_.announce(MpiControl::Kind::Failure, completed_, self(), reason);
  } catch (...) {  // the job is failing anyway; the others will run into their timeout
  }
}

void MpiCommunicator::reportRefusal(std::string_view reason) noexcept {
  if (inOtherProcess()) return;
  try {
    const std::lock_guard lock(mutex_);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (closed_ || left_ || finalized != 0) return;
    ++refusals_;
    control_.announce(MpiControl::Kind::Refusal, completed_, self(), reason);
  } catch (...) {  // the others will run into their timeout
  }
}

// --- Leaving -------------------------------------------------------------------------------------

void MpiCommunicator::shutdown(bool failed) noexcept {
  if (inOtherProcess()) return;
  if (failed) reportFailure("its program ended because of an error");
  try {
    {
      const std::lock_guard lock(mutex_);
      int finalized = 0;
      MPI_Finalized(&finalized);
      if (left_ || finalized != 0) return;
      left_ = true;
      failed = closed_.has_value();
      // Before our leaving is heard: others should name the culprit, not who left because of it.
      if (blamed_) control_.passOn(*blamed_);
      control_.announce(MpiControl::Kind::Leaving, completed_, blamed_.value_or(-1));
    }
    if (!waitUntilOthersLeft(failed)) {
      std::fprintf(stderr, "meshfuse: rank %d left after an error: %s\n", self(),
                   closed_ ? closed_->reason().c_str() : "interrupted at exit");
      std::fflush(nullptr);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    const std::lock_guard lock(mutex_);
    if (owns_mpi_) {
      MPI_Finalize();
    } else if (!closed_) {  // a closed group may have a collective pending
      MPI_Comm_free(&data_);
      MPI_Comm_free(&control_comm_);
      MPI_Comm_free(&agreement_comm_);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "meshfuse: rank %d cannot leave its group: %s\n", self(), error.what());
  } catch (...) {
    std::fprintf(stderr, "meshfuse: rank %d cannot leave its group\n", self());
  }
}

/// False when a failed rank lost patience. An interrupt counts as failure.
bool MpiCommunicator::waitUntilOthersLeft(bool failed) {
  Backoff backoff;
  double deadline = kPatienceAfterFailure;
  while (!othersLeft()) {
    if (failed && backoff.elapsed() > deadline) return false;
    try {
      backoff.pause();
    } catch (...) {
      if (failed) return false;
      failed = true;
      deadline += backoff.elapsed();
    }
  }
  return true;
}

bool MpiCommunicator::othersLeft() {
  const std::lock_guard lock(mutex_);
  control_.poll();
  agreement_.receiveAll();  // a long message is only sent when it is received
  if (!control_.allSent() || !agreement_.allSent()) return false;
  for (int r = 0; r < size_; ++r)
    if (r != self() && !control_.peers()[static_cast<size_t>(r)].left) return false;
  return true;
}

}  // namespace meshfuse

extern "C" meshfuse::Communicator* meshfuseMakeMpiCommunicator() {
  return new meshfuse::MpiCommunicator;
}
