// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/control_channel.h>
#include <meshfuse/comm/execution_agreement.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

namespace meshfuse {

ExecutionAgreement::ExecutionAgreement(std::unique_ptr<Mailbox> mailbox)
    : mailbox_(std::move(mailbox)), rank_(mailbox_->rank()) {
  const auto size = static_cast<size_t>(mailbox_->size());
  numbers_.resize(size);
  queues_.resize(size);
  awaited_.resize(size);
}

// --- Messages ------------------------------------------------------------------------------------

void ExecutionAgreement::send(int to, const Header& header, std::string_view text) {
  mailbox_->send(to, std::as_bytes(std::span(&header, 1)), text);
}

int ExecutionAgreement::receive() {
  Header header;
  std::string text;
  const int source = mailbox_->receive(std::as_writable_bytes(std::span(&header, 1)), text);
  if (source >= 0) from(source).push_back({header, std::move(text)});
  return source;
}

void ExecutionAgreement::receiveAll() {
  mailbox_->progress();
  while (receive() >= 0) {
  }
}

// --- An execution --------------------------------------------------------------------------------

void ExecutionAgreement::begin(const Team& team, const Proposal& proposal) {
  proposal_ = &proposal;
  members_.clear();
  quitter_ = {};
  statements_.clear();
  different_ = false;
  awaited_.assign(awaited_.size(), false);
  const std::string enclosure = proposal.enclosure();
  for (const int64_t device : team.devices) {
    const auto member = static_cast<int>(device);
    if (member == rank_) continue;
    members_.push_back(member);
    awaited_[static_cast<size_t>(member)] = true;
    const Header header{.number = ++number(member), .word = proposal.fingerprint(member)};
    send(member, header, enclosure);
  }
  missing_ = members_.size();
  for (const int member : members_) look(member);
}

void ExecutionAgreement::refuse(const Team& team, std::string_view reason) {
  for (const int64_t device : team.devices) {
    const auto member = static_cast<int>(device);
    if (member == rank_ || std::cmp_greater_equal(device, numbers_.size())) continue;
    send(member, {.number = ++number(member), .kind = Kind::Refused}, shortReason(reason));
  }
}

void ExecutionAgreement::abandon(std::string_view reason, int64_t completed) {
  for (const int member : members_) {
    send(member,
         {.number = number(member),
          .word = static_cast<uint64_t>(completed),
          .kind = Kind::Abandoned},
         shortReason(reason));
  }
  end();
}

/// Takes in what a member has sent so far.
void ExecutionAgreement::look(int member) {
  for (auto& queue = from(member); !queue.empty(); queue.pop_front()) {
    const Message& front = queue.front();
    if (front.number < number(member)) continue;  // this rank gave that execution up
    if (front.number > number(member)) {
      // After its fingerprint: it has seen all others', and is in the next execution already.
      different_ = different_ || isAwaited(member);
      return;
    }
    if (front.kind == Kind::Disagreed) {
      different_ = true;
      return;
    }
    if (front.kind != Kind::Fingerprint) {
      quitter_ = {member, front.text};
      return;
    }
    if (isAwaited(member)) --missing_;
    awaited_[static_cast<size_t>(member)] = false;
    different_ = different_ || front.word != proposal_->fingerprint(member) ||
                 !proposal_->take(member, front.text);
  }
}

ExecutionAgreement::Verdict ExecutionAgreement::check() {
  while (true) {
    if (quitter_.rank >= 0) return Verdict::GivenUp;
    if (different_) break;
    if (missing_ == 0) return Verdict::Agreed;
    const int source = receive();
    if (source < 0) return Verdict::Pending;
    if (std::ranges::find(members_, source) != members_.end()) look(source);
  }
  statements_.push_back({rank_, proposal_->describe()});
  for (const int member : members_) tell(member);
  return Verdict::Different;
}

// --- A difference --------------------------------------------------------------------------------

/// Sends a rank what this one runs, and with whom. Its answer is awaited.
void ExecutionAgreement::tell(int member) {
  awaited_[static_cast<size_t>(member)] = true;
  std::string text = concat(members_.size());
  for (const int m : members_) text += concat(' ', m);
  send(member, {.number = number(member), .kind = Kind::Disagreed},
       concat(text, '\n', statements_.front().text));
}

void ExecutionAgreement::hear(int member, const Message& message) {
  awaited_[static_cast<size_t>(member)] = false;
  number(member) = std::max(number(member), message.number);  // in step again
  std::istringstream text(message.text);
  size_t count = 0;
  text >> count;
  std::vector<int> others(count);
  for (int& other : others) text >> other;
  text.get();
  statements_.push_back({member, {std::istreambuf_iterator<char>(text), {}}});
  for (const int other : others) {  // teams may differ, too: then all ranks of all teams compare
    if (other == rank_ || std::ranges::find(members_, other) != members_.end()) continue;
    members_.push_back(other);
    ++number(other);  // for that rank this is an execution with this one
    tell(other);
  }
}

ExecutionAgreement::Verdict ExecutionAgreement::compare() {
  receiveAll();
  const std::vector<int> members = members_;  // hearing one may add others
  for (const int member : members) {
    auto& queue = from(member);
    while (isAwaited(member) && !queue.empty()) {
      // It went on, because of a member that gave up, of whom this rank will hear, too.
      const bool later = queue.front().number > number(member);
      if (later && queue.front().kind != Kind::Disagreed) break;
      const Message front = std::move(queue.front());
      queue.pop_front();
      if (front.kind == Kind::Disagreed) {
        hear(member, front);
      } else if (front.kind != Kind::Fingerprint && front.number == number(member)) {
        quitter_ = {member, front.text};
        return Verdict::GivenUp;
      }
    }
  }
  const bool all = std::ranges::none_of(members_, [this](int m) { return isAwaited(m); });
  return all ? Verdict::Different : Verdict::Pending;
}

void ExecutionAgreement::throwDifference() const {
  std::vector<Statement> statements = statements_;
  std::ranges::sort(statements, {}, &Statement::rank);
  proposal_->disagree(statements);
  MESHFUSE_ASSERT(false, "Proposal::disagree returned");
}

const ExecutionAgreement::Quitter* ExecutionAgreement::findQuitter(int64_t call) {
  if (members_.empty()) return nullptr;
  receiveAll();
  for (const int member : members_) {
    for (const Message& message : from(member)) {
      if (message.number != number(member)) continue;
      const bool quits = message.kind == Kind::Disagreed ||
                         (message.kind == Kind::Abandoned && std::cmp_less(message.word, call));
      if (!quits) continue;
      quitter_ = {member, message.kind == Kind::Disagreed ? "it runs something else than others"
                                                          : message.text};
      return &quitter_;
    }
  }
  return nullptr;
}

}  // namespace meshfuse
