// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/c10d_call_proposal.h>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

/// FNV-1a: equal on all machines, which std::hash need not be.
uint64_t hash(std::string_view text) {
  uint64_t value = 14695981039346656037U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return value;
}

std::string membersOf(const CollectiveCall& call) {
  std::string text = concat(call.what, " in the team {");
  for (const int64_t d : call.team.devices)
    text += concat(d == call.team.devices.front() ? "" : ", ", d);
  return text + "}";
}

std::string sizeOf(LocalTensors tensors) {
  return tensors.empty() ? "nothing"
                         : concat(tensors[0].nbytes(), " bytes of ", tensors[0].scalar_type());
}

}  // namespace

CallProposal::CallProposal(int64_t rank, const CollectiveCall& call, std::string_view how)
    : rank_(rank), what_(call.what), common_(concat(membersOf(call), ", ", how, " of ")) {
  common_ += sizeOf(call.in.empty() ? call.out : call.in);
  text_ = common_;
}

CallProposal::CallProposal(int64_t rank, const CollectiveCall& call,
                           std::span<const Transfer> transfers)
    : rank_(rank), what_(call.what), by_transfers_(true) {
  // The ranks of a sendRecv may know them in another order.
  common_ = call.what == "sendRecv" ? std::string(call.what) : membersOf(call);
  for (const Transfer& t : transfers) {
    if (t.from == rank && t.to != rank) moved_[t.to].first += t.bytes;
    if (t.to == rank && t.from != rank) moved_[t.from].second += t.bytes;
  }
  text_ = common_;
  for (const auto& [other, bytes] : moved_)
    text_ += concat(", ", bytes.first, " bytes to and ", bytes.second, " from rank ", other);
}

// Towards another rank: what the two give each other, from the lower one first.
uint64_t CallProposal::fingerprint(int64_t rank) const {
  if (!by_transfers_) return hash(common_);
  const auto found = moved_.find(rank);
  auto [sent, received] = found == moved_.end() ? std::pair<int64_t, int64_t>{} : found->second;
  if (rank < rank_) std::swap(sent, received);
  return hash(concat(common_, ':', sent, ':', received));
}

void CallProposal::disagree(std::span<const Statement> statements) const {
  std::string all;
  for (const Statement& s : statements)
    all += concat(all.empty() ? "rank " : "; rank ", s.rank, " makes ", s.text);
  fail(what_, ": the ranks make different calls: ", all,
       ". All ranks must make the same calls with the same sizes and types. Nothing was "
       "communicated.");
}

}  // namespace meshfuse
