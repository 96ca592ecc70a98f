// SPDX-License-Identifier: BSD-3-Clause
// A rank that waits polls three things: the collective itself, what other ranks tell
// (control_channel.h), and the clock, so that it never waits for a rank that is gone.
#include <meshfuse/comm/rank_communicator.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

namespace meshfuse {
namespace {

constexpr std::string_view kBarrier = "barrier";
constexpr double kPatienceAfterFailure = 2;  // seconds for the others to notice and leave

std::string listRanks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

RankCommunicator::RankCommunicator() : process_(getpid()) {}

void RankCommunicator::open(std::unique_ptr<Mailbox> control, std::unique_ptr<Mailbox> agreement) {
  rank_ = control->rank();
  size_ = control->size();
  control_.emplace(std::move(control));
  agreement_.emplace(std::move(agreement));
}

void RankCommunicator::setLocal(int64_t local_rank, int64_t local_size) {
  local_rank_ = local_rank;
  local_size_ = local_size;
}

// --- Collective calls ----------------------------------------------------------------------------

void RankCommunicator::barrier() {
  if (size_ == 1) return;
  runCall(kBarrier, nullptr, [this](int64_t call) {
    runBarrier(call);
    ++barriers_;
  });
}

void RankCommunicator::skipCall(std::string_view what) {
  const auto turn = takeTurn(turn_, what);
  const std::lock_guard lock(mutex_);
  checkUsable(what);
  ++calls_;
  if (ownsExecution()) ++calls_of_execution_;
  if (!hasPosted()) completed_ = calls_;
}

void RankCommunicator::runCall(std::string_view what, const Team* team,
                               const std::function<void(int64_t)>& body) {
  const auto turn = takeTurn(turn_, what);
  finishPosted(calls_);
  const int64_t call = beginCall(what, team);
  tellIfStopped(what, call, [&] { body(call); });
  const std::lock_guard lock(mutex_);
  completed_ = call;
}

void RankCommunicator::tellIfStopped(std::string_view what, int64_t call,
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

std::unique_lock<std::timed_mutex> RankCommunicator::takeTurn(std::timed_mutex& mutex,
                                                              std::string_view what) {
  MESHFUSE_CHECK(!inOtherProcess(), what, ": process ", getpid(), " is a forked child of process ",
                 process_, ", which is the member of the group. Communicate in the parent only.");
  std::unique_lock turn(mutex, std::defer_lock);
  while (!turn.try_lock_for(std::chrono::milliseconds(50))) checkInterrupt();
  return turn;
}

int64_t RankCommunicator::beginCall(std::string_view what, const Team* team) {
  const std::lock_guard lock(mutex_);
  checkUsable(what);
  await(team);
  control_->poll();
  control_
      ->poll();  // twice: the first may only have moved MPI on, without seeing what that brought
  const int64_t call = calls_ + 1;
  throwIfPeerGone(what, call);
  if (someoneWaitsIn(call)) announceWaiting(what, call);
  return calls_ = call;
}

void RankCommunicator::await(const Team* team) {
  awaited_.assign(team != nullptr ? static_cast<size_t>(size_) : 0, false);
  if (team != nullptr)
    for (const int64_t d : team->devices) awaited_[static_cast<size_t>(d)] = true;
}

void RankCommunicator::wait(const std::function<bool()>& done, std::string_view what, int64_t call,
                            double busy) {
  Backoff backoff(busy);
  while (!step(done, what, call, backoff)) backoff.pause();
}

bool RankCommunicator::step(const std::function<bool()>& done, std::string_view what, int64_t call,
                            const Backoff& backoff) {
  const std::lock_guard lock(mutex_);
  checkUsable(what);
  if (done()) return true;
  if (backoff.spinning()) return false;
  control_->poll();
  if (done()) return true;  // what a rank sent before it left has come by now
  throwIfPeerGone(what, call);
  throwIfAbandoned(what, call);
  throwIfElsewhere(what, call);
  if (someoneWaitsIn(call) || backoff.elapsed() > std::min(1.0, timeout_ / 2))
    announceWaiting(what, call);
  if (backoff.elapsed() > timeout_) giveUp(what, call);
  return false;
}

bool RankCommunicator::isAwaited(int r) const {
  return r != self() && (awaited_.empty() || awaited_[static_cast<size_t>(r)]);
}

bool RankCommunicator::someoneWaitsIn(int64_t call) const {
  return std::ranges::any_of(
      control_->peers(), [&](const ControlChannel::Peer& peer) { return peer.waiting_in >= call; });
}

// Told only in slow calls, so that who gives up knows who never came.
void RankCommunicator::announceWaiting(std::string_view what, int64_t call) {
  const int64_t barrier = what == kBarrier ? barriers_ + 1 : 0;
  if (announced_ == std::pair{call, barrier}) return;
  announced_ = {call, barrier};
  control_->announceWaiting(call, barrier);
}

// --- What ends a group ---------------------------------------------------------------------------

void RankCommunicator::checkUsable(std::string_view what) const {
  if (closed_) throw PeerError(*closed_);
  MESHFUSE_CHECK(!hasLeft(), what, ": rank ", rank_, " has left the group already (",
                 left_ ? "at exit" : whyEnded(), "). Communicate before that.");
}

void RankCommunicator::throwIfPeerGone(std::string_view what, int64_t call) {
  const auto blame = [&](auto guilty) {
    for (int r = 0; r < size_; ++r) {
      const ControlChannel::Peer& peer = control_->peers()[static_cast<size_t>(r)];
      // One that has completed this call did its part in it: the call can still succeed.
      if (peer.completed < call && guilty(r, peer)) closeBecauseOf(r, peer, what, call);
    }
  };
  // The cause first, and last those who left because of another.
  // A failed rank is not always in the team, but a member may wait for it in another one.
  using Peer = ControlChannel::Peer;
  blame([](int, const Peer& peer) { return peer.failed; });
  blame([this](int r, const Peer& peer) { return peer.left && peer.culprit < 0 && isAwaited(r); });
  blame([this](int r, const Peer& peer) { return peer.left && isAwaited(r); });
  throwIfRefused(what, call);
}

// A rank that gave up more executions than this one gave up the one that this rank is in, unless it
// had completed this call before.
void RankCommunicator::throwIfRefused(std::string_view what, int64_t call) {
  for (int r = 0; r < size_; ++r) {
    const ControlChannel::Peer& peer = control_->peers()[static_cast<size_t>(r)];
    if (peer.refusals <= refusals_ || peer.refused_at >= call) continue;
    closeWithout(
        r, peer.refusal,
        concat(what, ": rank ", r, " gave up an execution that rank ", rank_,
               " takes part in (call ", call, "). The group is closed. Reason: ", peer.refusal));
  }
}

void RankCommunicator::closeWithout(int r, const std::string& reason, const std::string& message) {
  blamed_ = r;
  control_->announce(ControlChannel::Kind::Failure, completed_, r, reason);
  close(r, reason, message);
}

void RankCommunicator::closeBecauseOf(int r, const ControlChannel::Peer& peer,
                                      std::string_view what, int64_t call) {
  blamed_ = r;
  const std::string here = concat(", and rank ", rank_, " waits for it in ", what, " (call ", call,
                                  "). The group is closed. ");
  if (!peer.failed) {
    const std::string fact = concat("rank ", r, " left the group after ", peer.completed,
                                    " calls because its program ended");
    // Ranks that wait for this one in another team don't wait for that rank.
    if (!awaited_.empty()) control_->announce(ControlChannel::Kind::Failure, completed_, r, fact);
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

void RankCommunicator::giveUp(std::string_view what, int64_t call) {
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) {
    const ControlChannel::Peer& peer = control_->peers()[static_cast<size_t>(r)];
    const bool came = what != kExecute && std::max(peer.waiting_in, peer.completed) >= call;
    if (isAwaited(r) && !came) missing.push_back(r);
  }
  const std::string who = missing.empty() ? "no rank in particular" : listRanks(missing);
  const int culprit = missing.empty() ? -1 : missing.front();
  const std::string reason = concat("timed out after ", timeout_, " s (MESHFUSE_TIMEOUT) in ", what,
                                    " (call ", call, ") without ", who);
  control_->announce(ControlChannel::Kind::Failure, completed_, culprit, reason);
  close(culprit, reason,
        concat(what, ": rank ", rank_, " ", reason, ". The group is closed. Look why ", who,
               " did not come; if it is only slow, set MESHFUSE_TIMEOUT to more seconds."));
}

void RankCommunicator::closeBecauseOfTransport(std::string_view what, int64_t call,
                                               const std::string& reason) {
  const std::lock_guard lock(mutex_);
  checkUsable(what);
  control_->announce(ControlChannel::Kind::Failure, completed_, -1, reason);
  close(-1, reason,
        concat(what, ": rank ", rank_, " cannot communicate any more (call ", call,
               "). The group is closed. Reason: ", reason));
}

void RankCommunicator::close(int culprit, const std::string& reason, const std::string& message) {
  closed_.emplace(culprit, reason, message);
  throw PeerError(*closed_);
}

void RankCommunicator::reportFailure(std::string_view reason) noexcept {
  if (inOtherProcess()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (closed_ || hasLeft()) return;  // closed: the others know of it already
    closed_.emplace(
        self(), std::string(reason),
        concat("rank ", rank_, " (this one) failed before, which closed the group: ", reason));
    control_->announce(ControlChannel::Kind::Failure, completed_, self(), reason);
  } catch (...) {  // NOLINT(bugprone-empty-catch): others run into their timeout
  }
}

void RankCommunicator::reportRefusal(std::string_view reason) noexcept {
  if (inOtherProcess()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (closed_ || hasLeft()) return;
    ++refusals_;
    control_->announce(ControlChannel::Kind::Refusal, completed_, self(), reason);
  } catch (...) {  // NOLINT(bugprone-empty-catch): others run into their timeout
  }
}

// --- Leaving -------------------------------------------------------------------------------------

void RankCommunicator::shutdown(bool failed) noexcept {
  if (inOtherProcess()) return;
  if (failed) reportFailure("its program ended because of an error");
  try {
    {
      const std::lock_guard lock(mutex_);
      if (hasLeft()) return;
      left_ = true;
      failed = closed_.has_value();
      // Before our leaving is heard: others should name the culprit, not who left because of it.
      if (blamed_) control_->passOn(*blamed_);
      control_->announce(ControlChannel::Kind::Leaving, completed_, blamed_.value_or(-1));
    }
    if (!waitUntilOthersLeft(failed)) abort(closed_ ? closed_->reason() : "interrupted at exit");
    const std::lock_guard lock(mutex_);
    release(closed_.has_value());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "meshfuse: rank %d cannot leave its group: %s\n", self(), error.what());
  } catch (...) {
    std::fprintf(stderr, "meshfuse: rank %d cannot leave its group\n", self());
  }
}

/// False when a failed rank lost patience. An interrupt counts as failure.
bool RankCommunicator::waitUntilOthersLeft(bool failed) {
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

bool RankCommunicator::othersLeft() {
  const std::lock_guard lock(mutex_);
  control_->poll();
  agreement_->receiveAll();  // a long message is only sent when it is received
  if (!control_->allSent() || !agreement_->allSent()) return false;
  for (int r = 0; r < size_; ++r)
    if (r != self() && !control_->peers()[static_cast<size_t>(r)].left) return false;
  return true;
}

}  // namespace meshfuse
