// SPDX-License-Identifier: BSD-3-Clause
// A collective outside of an execution is agreed on like one: the messages of a process group
// cannot have another size than the receiver expects; gloo ends the process then.
#pragma once
#include <meshfuse/comm/collective_call.h>
#include <meshfuse/comm/proposal.h>

#include <map>

namespace meshfuse {

class CallProposal final : public Proposal {
 public:
  /// Of a call whose members all give and get the same.
  CallProposal(int64_t rank, const CollectiveCall& call, std::string_view how);
  /// Of one that consists of `transfers`: those in which `rank` takes part.
  CallProposal(int64_t rank, const CollectiveCall& call, std::span<const Transfer> transfers);

  uint64_t fingerprint(int64_t rank) const override;
  std::string describe() const override { return text_; }
  [[noreturn]] void disagree(std::span<const Statement> statements) const override;

 private:
  const int64_t rank_;
  const std::string_view what_;
  std::string common_, text_;
  bool by_transfers_ = false;
  std::map<int64_t, std::pair<int64_t, int64_t>> moved_;  // by rank: bytes sent to it and received
};

}  // namespace meshfuse
