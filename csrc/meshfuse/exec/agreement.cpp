// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/exec/agreement.h>

#include <algorithm>

namespace meshfuse {

ExecutionProposal::ExecutionProposal(const Plan& plan, std::span<const InputValue> inputs,
                                     int64_t device)
    : plan_(plan), inputs_(inputs), device_(device) {
  if (!plan.has_dynamic_scalars) return;
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
  std::vector<int64_t> ranks;
  std::vector<std::string> texts;
  for (const auto& [rank, text] : statements) {
    ranks.push_back(rank);
    texts.push_back(text);
  }
  throwDisagreement(ranks, texts);
}

std::vector<at::Tensor> runAgreed(Communicator& comm, const Plan& plan,
                                  std::span<const InputValue> inputs,
                                  const std::function<std::vector<at::Tensor>()>& body) {
  const ExecutionProposal proposal(plan, inputs, comm.deviceId());
  comm.beginExecution(plan.agreement->team, proposal);
  try {
    auto outputs = body();
    comm.agree();  // a device may have no communication, although others have
    comm.endExecution();
    return outputs;
  } catch (const std::exception& error) {
    comm.abandonExecution(error.what());
    throw;
  } catch (...) {
    comm.abandonExecution("an exception of another kind");
    throw;
  }
}

void refuse(Communicator& comm, const Fusion* program, std::string_view reason) noexcept {
  if (comm.localRanks().size() != 1 || comm.size() == 1) return;
  if (program == nullptr) return comm.reportRefusal(reason);
  try {
    const Team team = communicatingDevices(*program);
    const auto& devices = team.devices;
    if (std::ranges::find(devices, comm.localRanks()[0]) == devices.end()) return;
    comm.refuseExecution(team, reason);
  } catch (...) {
    comm.reportRefusal(reason);
  }
}

}  // namespace meshfuse
