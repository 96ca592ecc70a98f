// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/mpi_agreement.h>
#include <meshfuse/comm/mpi_control.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace meshfuse {
namespace {

constexpr int kTag = 1;

}  // namespace

MpiAgreement::MpiAgreement(MPI_Comm comm) : comm_(comm) {
  int size = 0;
  checkMpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  numbers_.resize(static_cast<size_t>(size));
  queues_.resize(static_cast<size_t>(size));
  awaited_.resize(static_cast<size_t>(size));
}

MpiAgreement::~MpiAgreement() {
  // MPI may still read what is not sent yet: better lost than freed.
  if (!sending_.empty()) new std::list<Sending>(std::move(sending_));
  new std::vector<Slot>(std::move(slots_));
}

// --- Messages ------------------------------------------------------------------------------------

void MpiAgreement::send(int to, const Header& header, std::string_view text) {
  Sending& s = sending_.emplace_back();
  s.bytes.assign(reinterpret_cast<const char*>(&header), sizeof header);
  s.bytes += text;
  checkMpi(MPI_Isend(s.bytes.data(), static_cast<int>(s.bytes.size()), MPI_BYTE, to, kTag, comm_,
                     &s.request),
           "MPI_Isend");
}

// On the way of every execution: without memory of its own.
void MpiAgreement::sendFingerprint(int to, const Header& header) {
  Slot& slot = slots_[next_slot_++ % slots_.size()];
  int done = 0;
  checkMpi(MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done == 0) return send(to, header, {});
  slot.header = header;
  checkMpi(MPI_Isend(&slot.header, sizeof slot.header, MPI_BYTE, to, kTag, comm_, &slot.request),
           "MPI_Isend");
}

bool MpiAgreement::allSent() {
  std::erase_if(sending_, [](Sending& s) {
    int done = 0;
    checkMpi(MPI_Test(&s.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
  return sending_.empty() && std::ranges::all_of(slots_, [](Slot& slot) {
           int done = 0;
           checkMpi(MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
           return done != 0;
         });
}

int MpiAgreement::receive() {
  int found = 0, count = 0;
  MPI_Status status;
  checkMpi(MPI_Iprobe(MPI_ANY_SOURCE, kTag, comm_, &found, &status), "MPI_Iprobe");
  if (found == 0) return -1;
  checkMpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  MESHFUSE_ASSERT(count >= static_cast<int>(sizeof(Header)), "agreement message of ", count,
                  " bytes");
  const int source = status.MPI_SOURCE;
  Message& message = from(source).emplace_back();
  auto* header = static_cast<Header*>(&message);
  if (count == static_cast<int>(sizeof(Header))) {
    checkMpi(MPI_Recv(header, count, MPI_BYTE, source, kTag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
    return source;
  }
  std::string bytes(static_cast<size_t>(count), '\0');
  checkMpi(MPI_Recv(bytes.data(), count, MPI_BYTE, source, kTag, comm_, MPI_STATUS_IGNORE),
           "MPI_Recv");
  std::memcpy(header, bytes.data(), sizeof(Header));
  message.text.assign(bytes, sizeof(Header));
  return source;
}

void MpiAgreement::receiveAll() {
  if (!sending_.empty()) allSent();
  while (receive() >= 0) {
  }
}

// --- An execution --------------------------------------------------------------------------------

void MpiAgreement::begin(const Team& team, const Proposal& proposal) {
  proposal_ = &proposal;
  members_.clear();
  quitter_ = {};
  statements_.clear();
  different_ = false;
  std::fill(awaited_.begin(), awaited_.end(), false);
  const std::string enclosure = proposal.enclosure();
  for (const int64_t device : team.devices) {
    const auto member = static_cast<int>(device);
    if (member == rank_) continue;
    members_.push_back(member);
    awaited_[static_cast<size_t>(member)] = true;
    const Header header{.number = ++number(member), .word = proposal.fingerprint(member)};
    if (enclosure.empty()) {
      sendFingerprint(member, header);
    } else {
      send(member, header, enclosure);
    }
  }
  missing_ = members_.size();
  for (const int member : members_) look(member);
}

void MpiAgreement::refuse(const Team& team, std::string_view reason) {
  for (const int64_t device : team.devices) {
    const auto member = static_cast<int>(device);
    if (member == rank_ || device >= static_cast<int64_t>(numbers_.size())) continue;
    send(member, {.number = ++number(member), .kind = Kind::Refused}, shortReason(reason));
  }
}

void MpiAgreement::abandon(std::string_view reason, int64_t completed) {
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
void MpiAgreement::look(int member) {
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

MpiAgreement::Verdict MpiAgreement::check() {
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
void MpiAgreement::tell(int member) {
  awaited_[static_cast<size_t>(member)] = true;
  std::string text = concat(members_.size());
  for (const int m : members_) text += concat(' ', m);
  send(member, {.number = number(member), .kind = Kind::Disagreed},
       concat(text, '\n', statements_.front().text));
}

void MpiAgreement::hear(int member, const Message& message) {
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

MpiAgreement::Verdict MpiAgreement::compare() {
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

void MpiAgreement::throwDifference() const {
  std::vector<Statement> statements = statements_;
  std::ranges::sort(statements, {}, &Statement::rank);
  proposal_->disagree(statements);
  MESHFUSE_ASSERT(false, "Proposal::disagree returned");
}

const MpiAgreement::Quitter* MpiAgreement::findQuitter(int64_t call) {
  if (members_.empty()) return nullptr;
  receiveAll();
  for (const int member : members_) {
    for (const Message& message : from(member)) {
      if (message.number != number(member)) continue;
      const bool quits =
          message.kind == Kind::Disagreed ||
          (message.kind == Kind::Abandoned && static_cast<int64_t>(message.word) < call);
      if (!quits) continue;
      quitter_ = {member, message.kind == Kind::Disagreed ? "it runs something else than others"
                                                          : message.text};
      return &quitter_;
    }
  }
  return nullptr;
}

}  // namespace meshfuse
