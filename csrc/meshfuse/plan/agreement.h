// SPDX-License-Identifier: BSD-3-Clause
// What the ranks of an execution that communicates must have in common.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/plan/signature.h>

#include <optional>

namespace meshfuse {

class ExpressionEvaluator;
class Fusion;

/// An axis of an input whose size is known only to the devices that hold the input.
struct ToldAxis {
  size_t input = 0;  // position
  int64_t axis = 0;  // among its axes
  Scalar extent;
};

/// The part of it that the program knows.
struct ProgramAgreement {
  Team team;             // all devices with a part in a message
  uint64_t program = 0;  // hash of the IR text
  /// Sizes that the members tell one another before every execution: of axes of inputs that some
  /// members don't hold. Empty where all members hold all inputs whose sizes are not declared.
  std::vector<ToldAxis> told;

  bool has(int64_t device) const;
};

/// The part of it that a plan knows: all but the values of scalar inputs.
struct PlanAgreement {
  Team team;  // all devices with a part in a message
  /// Per member of the team: hash of the program and of the global sizes of those inputs that both
  /// this device and the member hold.
  std::vector<uint64_t> fingerprints;
};

/// The team: the devices that send or receive when `fusion` (after the passes) runs, in order;
/// empty if no messages are needed.
ProgramAgreement makeProgramAgreement(const Fusion& fusion);

/// Per axis of `program.told` the global size that the bound inputs of `device` give it; -1 where
/// it does not hold the input.
std::vector<int64_t> sizesToTell(const Fusion& fusion, const ProgramAgreement& program,
                                 const ExpressionEvaluator& evaluator, int64_t device);

/// nullopt if `device` has no part in a message of `fusion`. `evaluator`: inputs are bound.
std::optional<PlanAgreement> makePlanAgreement(const Fusion& fusion,
                                               const ProgramAgreement& program,
                                               const ExpressionEvaluator& evaluator,
                                               int64_t device);

/// The hash with one more word.
uint64_t mixHash(uint64_t hash, uint64_t word);
uint64_t mixHash(uint64_t hash, const ScalarValue& value);

/// The program and its inputs as text, from which `throwDisagreement` finds what differs. `inputs`:
/// of this execution; `device`: this one.
std::string describeExecution(const Fusion& fusion, const ExpressionEvaluator& evaluator,
                              std::span<const InputValue> inputs, int64_t device);

/// Throws Error with the first difference between texts of `describeExecution`; `texts` are those
/// of `ranks`.
[[noreturn]] void throwDisagreement(std::span<const int64_t> ranks,
                                    std::span<const std::string> texts);

}  // namespace meshfuse
