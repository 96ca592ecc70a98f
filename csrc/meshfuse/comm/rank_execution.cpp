// SPDX-License-Identifier: BSD-3-Clause
// Agreement of ranks on an execution, before its first collective (execution_agreement.h).
#include <meshfuse/comm/rank_communicator.h>

namespace meshfuse {
namespace {

using Verdict = ExecutionAgreement::Verdict;

}  // namespace

void RankCommunicator::beginExecution(const Team& team, const Proposal& proposal) {
  auto execution = takeTurn(execution_turn_, kExecute);
  {
    const std::lock_guard lock(mutex_);
    checkUsable(kExecute);
    agreement_->begin(team, proposal);
  }
  execution.release();  // by endExecution
  executing_ = std::this_thread::get_id();
  agreed_ = false;
  calls_of_execution_ = 0;
}

void RankCommunicator::agree() {
  if (!ownsExecution() || agreed_) return;
  agreed_ = true;
  const Verdict verdict = waitForVerdict();
  if (verdict == Verdict::Agreed) return;
  const std::lock_guard lock(mutex_);
  agreement_->end();
  if (verdict == Verdict::Different) agreement_->throwDifference();
  const auto& [rank, reason] = agreement_->quitter();
  throw PeerError(rank, reason,
                  concat("execute: rank ", rank, " gave up an execution that rank ", rank_,
                         " takes part in. Nothing was communicated, and the group goes on. "
                         "Reason: ",
                         reason));
}

ExecutionAgreement::Verdict RankCommunicator::waitForVerdict() {
  auto verdict = Verdict::Pending;
  {
    const std::lock_guard lock(mutex_);
    checkUsable(kExecute);
    verdict = agreement_->check();
    if (verdict == Verdict::Agreed || verdict == Verdict::GivenUp) return verdict;
  }
  const auto turn = takeTurn(turn_, kExecute);
  const int64_t call = completed_ + 1;
  const auto settled = [&](Verdict now) {
    awaited_ = agreement_->awaited();
    return (verdict = now) != Verdict::Pending;
  };
  tellIfStopped(kExecute, call, [&] {
    if (verdict == Verdict::Pending)
      wait([&] { return settled(agreement_->check()); }, kExecute, call);
    if (verdict == Verdict::Different)
      wait([&] { return settled(agreement_->compare()); }, kExecute, call);
  });
  return verdict;
}

void RankCommunicator::endExecution() noexcept {
  if (!ownsExecution()) return;
  {
    const std::lock_guard lock(mutex_);
    agreement_->end();
  }
  executing_ = std::thread::id();
  execution_turn_.unlock();
}

void RankCommunicator::abandonExecution(std::string_view reason) noexcept {
  if (!ownsExecution()) return;
  try {
    const std::lock_guard lock(mutex_);
    // Nothing to tell where all know: the group is closed, or the ranks did not agree.
    if (!closed_ && !left_) agreement_->abandon(reason, completed_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): others run into their timeout
  }
  endExecution();
}

void RankCommunicator::refuseExecution(const Team& team, std::string_view reason) noexcept {
  if (inOtherProcess()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (closed_ || hasLeft()) return;
    agreement_->refuse(team, reason);
  } catch (...) {  // NOLINT(bugprone-empty-catch): others run into their timeout
  }
}

// A rank that waits in a barrier which this one has not reached will not begin the execution. (In a
// collective that would prove nothing: the rank may have done its part before.)
void RankCommunicator::throwIfElsewhere(std::string_view what, int64_t call) {
  if (what != kExecute) return;
  for (int r = 0; r < size_; ++r) {
    if (!isAwaited(r) || control_->peers()[static_cast<size_t>(r)].barrier <= barriers_) continue;
    const std::string fact = concat("rank ", r, " waits in a barrier, and rank ", rank_,
                                    " waits for it in ", what, " (call ", call, ")");
    closeWithout(r, fact,
                 concat(what, ": ", fact,
                        ". The group is closed. All ranks must make the same calls: look for a "
                        "branch that only some take."));
  }
}

// In a collective of an execution: a member gave the execution up after it had begun.
void RankCommunicator::throwIfAbandoned(std::string_view what, int64_t call) {
  if (!ownsExecution() || what == kExecute) return;
  const ExecutionAgreement::Quitter* quitter = agreement_->findQuitter(call);
  if (quitter == nullptr) return;
  closeWithout(
      quitter->rank, quitter->reason,
      concat(what, ": rank ", quitter->rank, " gave up an execution that rank ", rank_,
             " takes part in (call ", call, "). The group is closed. Reason: ", quitter->reason));
}

}  // namespace meshfuse
