// SPDX-License-Identifier: BSD-3-Clause
// How ranks find out, before the first data message of an execution, whether all members of its
// team run the same. Every member sends every other one a fingerprint when it begins. The messages
// between two ranks are numbered by the executions that the two have in common, so that those of an
// execution that one of them gave up are told from those of the next.
//
//   Fingerprint  I have begun.               Refused    I will not run it.
//   Abandoned    I had begun, and failed.    Disagreed  We differ; this is what I run.
//
// A member that knows of a difference sends Disagreed to all, and waits for that of all: so each
// can name the difference, and nobody is left behind who saw none.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/comm/mailbox.h>
#include <meshfuse/comm/proposal.h>

#include <deque>

namespace meshfuse {

/// One rank's side of it. Not thread-safe: the communicator's lock guards it.
class ExecutionAgreement {
 public:
  enum class Verdict { Pending, Agreed, GivenUp, Different };
  /// A member that refused or abandoned the execution.
  struct Quitter {
    int rank = -1;
    std::string reason;
  };

  /// `mailbox` must carry nothing else.
  explicit ExecutionAgreement(std::unique_ptr<Mailbox> mailbox);

  void begin(const Team& team, const Proposal& proposal);
  void refuse(const Team& team, std::string_view reason);
  /// `completed`: calls that this rank had completed.
  void abandon(std::string_view reason, int64_t completed);
  void end() { members_.clear(); }
  bool running() const { return !members_.empty(); }

  /// Takes in what has arrived, as far as needed, and says how the execution stands.
  Verdict check();
  /// After Different: the same until all have told what they run. Gives Different then, or GivenUp.
  Verdict compare();
  /// Whether the verdict waits for this rank.
  bool isAwaited(int rank) const { return awaited_[static_cast<size_t>(rank)]; }
  const std::vector<bool>& awaited() const { return awaited_; }
  /// After GivenUp.
  const Quitter& quitter() const { return quitter_; }
  /// After Different: throws Error.
  [[noreturn]] void throwDifference() const;
  /// In a collective call of the execution: a member that will not do its part in it.
  const Quitter* findQuitter(int64_t call);

  /// Takes in all that has arrived.
  void receiveAll();
  /// Whether all messages are out of our buffers.
  bool allSent() { return mailbox_->allSent(); }

 private:
  enum class Kind : int32_t { Fingerprint, Refused, Abandoned, Disagreed };
  struct Header {
    int64_t number = 0;  // of the execution, for the pair of ranks
    uint64_t word = 0;   // Fingerprint: it; Abandoned: calls completed
    Kind kind = Kind::Fingerprint;
    int32_t unused = 0;
  };
  struct Message : Header {
    std::string text;
  };

  void send(int to, const Header& header, std::string_view text);
  /// Takes a message in; its sender, or -1 if there is none.
  int receive();
  void look(int member);
  void hear(int member, const Message& message);
  void tell(int member);
  std::deque<Message>& from(int rank) { return queues_[static_cast<size_t>(rank)]; }
  int64_t& number(int rank) { return numbers_[static_cast<size_t>(rank)]; }

  std::unique_ptr<Mailbox> mailbox_;
  const int rank_;
  std::vector<int64_t> numbers_;             // by rank: executions in common so far
  std::vector<std::deque<Message>> queues_;  // by rank: what came from it
  // The current execution.
  const Proposal* proposal_ = nullptr;
  std::vector<int> members_;   // without this rank; empty: no execution
  std::vector<bool> awaited_;  // by rank
  size_t missing_ = 0;         // members whose fingerprint has not come
  bool different_ = false;
  Quitter quitter_;
  std::vector<Statement> statements_;  // while comparing; this rank's is the first
};

}  // namespace meshfuse
