// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/exec/agreement.h>

#include <algorithm>
#include <cstring>

namespace meshfuse {
namespace {

[[noreturn]] void throwDifference(std::span<const Statement> statements) {
  std::vector<int64_t> ranks;
  std::vector<std::string> texts;
  for (const auto& [rank, text] : statements) {
    ranks.push_back(rank);
    texts.push_back(text);
  }
  throwDisagreement(ranks, texts);
}

}  // namespace

ExecutionProposal::ExecutionProposal(const Plan& plan, std::span<const InputValue> inputs,
                                     int64_t device)
    : plan_(plan), inputs_(inputs), device_(device) {
  if (!plan.has_dynamic_scalars && plan.signature.byValue().empty()) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto* value = std::get_if<ScalarValue>(&inputs[i]);
    const auto* scalar = std::get_if<Scalar>(&plan.fusion->inputs()[i]);
    if (value == nullptr || scalar == nullptr) continue;
    scalars_ = mixHash(scalars_, exactValue(*value, plan.fusion->scalars().dtype(*scalar)));
  }
}

uint64_t ExecutionProposal::fingerprint(int64_t rank) const {
  const auto& devices = plan_.agreement->team.devices;
  const auto place = std::ranges::find(devices, rank) - devices.begin();
  return mixHash(plan_.agreement->fingerprints[static_cast<size_t>(place)], scalars_);
}

std::string ExecutionProposal::describe() const {
  return describeExecution(*plan_.fusion, plan_.evaluator, inputs_, device_);
}

void ExecutionProposal::disagree(std::span<const Statement> statements) const {
  throwDifference(statements);
}

namespace {

/// Runs `body` between the begin and the end of an execution.
template <class F>
auto inExecution(Communicator& comm, const Team& team, const Proposal& proposal, const F& body) {
  comm.beginExecution(team, proposal);
  try {
    auto result = body();
    comm.agree();  // a device may have no communication, although others have
    comm.endExecution();
    return result;
  } catch (const std::exception& error) {
    comm.abandonExecution(error.what());
    throw;
  } catch (...) {
    comm.abandonExecution("an exception of another kind");
    throw;
  }
}

}  // namespace

std::vector<at::Tensor> runAgreed(Communicator& comm, const Plan& plan,
                                  std::span<const InputValue> inputs,
                                  const std::function<std::vector<at::Tensor>()>& body) {
  const ExecutionProposal proposal(plan, inputs, comm.deviceId());
  return inExecution(comm, plan.agreement->team, proposal, body);
}

// --- Sizes ---------------------------------------------------------------------------------------

SizeProposal::SizeProposal(const ProgramAgreement& program, std::vector<int64_t>& sizes,
                           const std::function<std::string()>& describe)
    : program_(program), sizes_(sizes), describe_(describe) {}

uint64_t SizeProposal::fingerprint(int64_t) const {
  constexpr uint64_t kSizes = 0x73697A6573;  // tells it from the execution that follows
  return mixHash(program_.program, kSizes);
}

void SizeProposal::disagree(std::span<const Statement> statements) const {
  throwDifference(statements);
}

std::string SizeProposal::enclosure() const {
  std::string bytes(sizes_.size() * sizeof(int64_t), '\0');
  std::memcpy(bytes.data(), sizes_.data(), bytes.size());
  return bytes;
}

bool SizeProposal::take(int64_t, std::string_view enclosure) const {
  if (enclosure.size() != sizes_.size() * sizeof(int64_t)) return false;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    int64_t size = -1;
    std::memcpy(&size, enclosure.data() + i * sizeof size, sizeof size);
    if (size < 0) continue;
    if (sizes_[i] >= 0 && sizes_[i] != size) return false;
    sizes_[i] = size;
  }
  return true;
}

void tellSizes(Communicator& comm, const ProgramAgreement& program, std::vector<int64_t>& sizes,
               const std::function<std::string()>& describe) {
  const SizeProposal proposal(program, sizes, describe);
  inExecution(comm, program.team, proposal, [] { return true; });
}

void refuse(Communicator& comm, const ProgramAgreement* program, std::string_view reason) noexcept {
  if (comm.localRanks().size() != 1 || comm.size() == 1) return;
  if (program == nullptr) return comm.reportRefusal(reason);
  if (program->has(comm.localRanks()[0])) comm.refuseExecution(program->team, reason);
}

}  // namespace meshfuse
