// SPDX-License-Identifier: BSD-3-Clause
// Keeps ranks that would run something else than the others from communicating.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/comm/proposal.h>
#include <meshfuse/plan/plan.h>

#include <functional>

namespace meshfuse {

/// An execution as the other ranks must have it, too.
class ExecutionProposal final : public Proposal {
 public:
  /// All must stay. `plan.agreement` is set.
  ExecutionProposal(const Plan& plan, std::span<const InputValue> inputs, int64_t device);

  uint64_t fingerprint(int64_t rank) const override;
  std::string describe() const override;
  void disagree(std::span<const Statement> statements) const override;

 private:
  const Plan& plan_;
  std::span<const InputValue> inputs_;
  int64_t device_;
  uint64_t scalars_ = 0;  // hash of their values
};

/// Runs `body`, an execution of `plan` on this process's rank, so that the other members of
/// `plan.agreement` know of its begin, and of its failure if `body` throws. Before its first
/// communication `body` calls Communicator::agree().
std::vector<at::Tensor> runAgreed(Communicator& comm, const Plan& plan,
                                  std::span<const InputValue> inputs,
                                  const std::function<std::vector<at::Tensor>()>& body);

/// The sizes that a rank tells the others before a program is compiled for them.
class SizeProposal final : public Proposal {
 public:
  /// `sizes`: those of this rank, per axis of `program.told`; -1 where it has none. Those of the
  /// others are put in. `describe`: makes the text of describeExecution. All must stay.
  SizeProposal(const ProgramAgreement& program, std::vector<int64_t>& sizes,
               const std::function<std::string()>& describe);

  uint64_t fingerprint(int64_t rank) const override;
  std::string describe() const override { return describe_(); }
  void disagree(std::span<const Statement> statements) const override;
  std::string enclosure() const override;
  bool take(int64_t rank, std::string_view enclosure) const override;

 private:
  const ProgramAgreement& program_;
  std::vector<int64_t>& sizes_;
  const std::function<std::string()>& describe_;
};

/// Exchanges sizes with the other members of `program.team`, of which this process's rank is one.
/// Waits for all of them. Throws like Communicator::agree().
void tellSizes(Communicator& comm, const ProgramAgreement& program, std::vector<int64_t>& sizes,
               const std::function<std::string()>& describe);

/// Tells those who would wait for this process in an execution of `program` (nullptr: it does not
/// compile) that it will not run.
void refuse(Communicator& comm, const ProgramAgreement* program, std::string_view reason) noexcept;

}  // namespace meshfuse
