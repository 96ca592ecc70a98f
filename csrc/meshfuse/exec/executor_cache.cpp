// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/exec/agreement.h>
#include <meshfuse/exec/executor.h>
#include <meshfuse/exec/profile.h>
#include <meshfuse/exec/written_inputs.h>
#include <meshfuse/plan/dump.h>
#include <meshfuse/plan/user_names.h>

#include <algorithm>

namespace meshfuse {
namespace {

void checkRunnable(const Fusion& fusion) {
  for (const TensorView& tv : fusion.tensors()) {
    const auto loop = tv.getLoopDomain();
    for (size_t i = 0; i < loop.size(); ++i) {
      const ParallelType p = loop[i]->getParallelType();
      if (p == ParallelType::Serial || p == ParallelType::Stream || isDeviceType(p)) continue;
      throw UnsupportedError(
          concat("execute: axis ", i, " of ", tv.name(), " is on ", p,
                 ", which belongs to CUDA kernel schedules. meshfuse evaluates "
                 "through ATen and has no such axis; use mesh_x, mesh_y, mesh_z, "
                 "stream or serial."));
    }
  }
}

/// Compiles what the passes made of `user`.
std::shared_ptr<const Plan> compileFor(const Fusion& user,
                                       const std::shared_ptr<const Fusion>& compiled,
                                       std::span<const InputValue> inputs, Signature signature,
                                       const PlanTarget& target) {
  try {
    return compile(compiled, inputs, std::move(signature), target);
  } catch (const Error& error) {
    throw withUserNames(error, *compiled, user.tensors().size());
  }
}

}  // namespace

FusionExecutorCache::FusionExecutorCache(std::shared_ptr<Fusion> fusion, int64_t fusion_id)
    : fusion_(std::move(fusion)), fusion_id_(fusion_id) {}

std::shared_ptr<const Fusion> FusionExecutorCache::compiledFusion() {
  const std::lock_guard lock(mutex_);
  return compiledLocked();
}

std::shared_ptr<const Fusion> FusionExecutorCache::compiledLocked() {
  if (compiled_ != nullptr && compiled_version_ == fusion_->version()) return compiled_;
  checkRunnable(*fusion_);
  std::shared_ptr<const Fusion> now = runPipelineWithDumps(*fusion_);
  dropPlans();
  agreement_.reset();
  compiled_ = std::move(now);
  by_value_ = inputsThatSizesNeed(*compiled_);
  compiled_version_ = fusion_->version();
  return compiled_;
}

void FusionExecutorCache::dropPlans() {
  plans_.clear();
  per_device_.clear();
  index_.clear();
  last_sizes_ = {};
}

std::shared_ptr<const ProgramAgreement> FusionExecutorCache::agreementLocked(
    const Communicator& comm) {
  if (comm.size() == 1 || comm.localRanks().size() != 1) return nullptr;
  const auto compiled = compiledLocked();
  if (agreement_ == nullptr)
    agreement_ = std::make_shared<ProgramAgreement>(makeProgramAgreement(*compiled));
  return agreement_;
}

FusionExecutorCache::Team FusionExecutorCache::teamOf(const Communicator& comm) {
  const auto devices = comm.localRanks();
  return {comm.size(), static_cast<int64_t>(devices.size()), devices[0]};
}

void FusionExecutorCache::useTeam(const Team& team) {
  if (team == team_) return;
  dropPlans();
  team_ = team;
}

std::shared_ptr<const Plan> FusionExecutorCache::knownPlan(std::span<const InputValue> inputs,
                                                           const Team& team) {
  const std::lock_guard lock(mutex_);
  return find(inputs, team);
}

std::shared_ptr<const Plan> FusionExecutorCache::find(std::span<const InputValue> inputs,
                                                      const Team& team,
                                                      std::span<const int64_t> told) {
  if (compiled_ == nullptr || compiled_version_ != fusion_->version() || !(team == team_)) {
    return nullptr;
  }
  if (!plans_.empty() && plans_.front()->signature.matches(inputs, told)) return plans_.front();
  if (plans_.size() < 2) return nullptr;
  const Signature signature(inputs, by_value_, told);
  const auto [first, last] = index_.equal_range(signature.hash());
  for (auto it = first; it != last; ++it) {
    if (!((*it->second)->signature == signature)) continue;
    plans_.splice(plans_.begin(), plans_, it->second);
    return plans_.front();
  }
  return nullptr;
}

std::shared_ptr<const Plan> FusionExecutorCache::planFor(std::span<const InputValue> inputs,
                                                         Communicator& comm,
                                                         std::span<const int64_t> told) {
  const Team team = teamOf(comm);
  const std::lock_guard lock(mutex_);
  if (auto plan = find(inputs, team, told)) return plan;
  std::shared_ptr<const Fusion> compiled = compiledLocked();
  useTeam(team);
  const auto agreement = agreementLocked(comm);
  auto plan = compileFor(*fusion_, compiled, inputs, Signature(inputs, by_value_, told),
                         {.local_devices = comm.localRanks(),
                          .device_count = comm.size(),
                          .agreement = agreement.get(),
                          .told = told});
  ++stats_.compiles;
  plans_.push_front(plan);
  index_.emplace(plan->signature.hash(), plans_.begin());
  if (plans_.size() > kMaxPlans) {
    const auto oldest = std::prev(plans_.end());
    const auto [first, last] = index_.equal_range((*oldest)->signature.hash());
    index_.erase(std::find_if(first, last, [&](const auto& e) { return e.second == oldest; }));
    plans_.pop_back();
  }
  return plan;
}

std::vector<at::Tensor> FusionExecutorCache::run(std::vector<InputValue> inputs) {
  Communicator& comm = Communicator::instance();
  MESHFUSE_CHECK(comm.localRanks().size() == 1, "execute: inside simulate(", comm.size(),
                 ") there is no single device to run on. Use sim.run with global tensors, or "
                 "sim.execute with one list of inputs per device.");
  RunProbe probe(fusion_id_, comm.localRanks()[0], std::span(&inputs, 1));
  const auto plan = planOrRefuse(inputs, comm);
  probe.planned();
  const auto body = [&] {
    const Plan* const plans[] = {plan.get()};
    auto outputs = Executor::run(plans, comm, std::span(&inputs, 1), stats_);
    probe.finish(outputs);
    return std::move(outputs[0]);
  };
  return plan->agreement ? runAgreed(comm, *plan, inputs, body) : body();
}

std::vector<std::shared_ptr<const Plan>> FusionExecutorCache::plansPerDevice(
    std::span<const std::vector<InputValue>> inputs, Communicator& comm) {
  const auto devices = comm.localRanks();
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Fusion> compiled = compiledLocked();
  useTeam(teamOf(comm));
  per_device_.resize(devices.size());
  for (size_t r = 0; r < devices.size(); ++r) {
    if (per_device_[r] != nullptr && per_device_[r]->signature.matches(inputs[r])) continue;
    per_device_[r] = compileFor(
        *fusion_, compiled, inputs[r], Signature(inputs[r], by_value_),
        {.local_devices = devices, .device_count = comm.size(), .device = devices[r], .told = {}});
    ++stats_.compiles;
  }
  return per_device_;
}

std::shared_ptr<const Plan> FusionExecutorCache::planOrRefuse(std::span<const InputValue> inputs,
                                                              Communicator& comm) {
  auto plan = knownPlan(inputs, teamOf(comm));
  if (plan != nullptr && plan->overwritten.empty()) [[likely]]
    return plan;
  const auto orRefuse = [&](auto make) {
    try {
      return make();
    } catch (const std::exception& error) {
      refuse(error.what());
      throw;
    }
  };
  const auto checked = [&](std::shared_ptr<const Plan> p) {
    return orRefuse([&] {
      checkWrittenInputs(*p, inputs, comm.deviceId());
      return std::move(p);
    });
  };
  if (plan != nullptr) return checked(std::move(plan));
  std::shared_ptr<const ProgramAgreement> program;
  std::vector<int64_t> told = orRefuse([&] {
    const std::lock_guard lock(mutex_);
    program = agreementLocked(comm);
    const bool tells = program != nullptr && program->has(comm.deviceId());
    return tells ? sizesLocked(inputs, comm) : std::vector<int64_t>();
  });
  if (!told.empty()) tellSizes(comm, *program, told, [&] { return describe(inputs, comm); });
  return checked(orRefuse([&] { return planFor(inputs, comm, told); }));
}

std::vector<int64_t> FusionExecutorCache::sizesLocked(std::span<const InputValue> inputs,
                                                      Communicator& comm) {
  if (agreement_->told.empty()) return {};
  useTeam(teamOf(comm));
  auto& [signature, sizes] = last_sizes_;
  if (sizes.empty() || !signature.matches(inputs)) {
    const auto evaluator =
        bindInputs(compiled_, inputs,
                   {.local_devices = comm.localRanks(), .device_count = comm.size(), .told = {}});
    sizes = sizesToTell(*compiled_, *agreement_, evaluator, comm.deviceId());
    signature = Signature(inputs);
  }
  return sizes;
}

std::string FusionExecutorCache::describe(std::span<const InputValue> inputs, Communicator& comm) {
  const auto compiled = compiledFusion();
  const auto evaluator =
      bindInputs(compiled, inputs,
                 {.local_devices = comm.localRanks(), .device_count = comm.size(), .told = {}});
  return describeExecution(*compiled, evaluator, inputs, comm.deviceId());
}

void FusionExecutorCache::refuse(std::string_view reason) noexcept {
  std::shared_ptr<const ProgramAgreement> program;
  try {
    const std::lock_guard lock(mutex_);
    program = agreementLocked(Communicator::instance());
  } catch (...) {  // NOLINT(bugprone-empty-catch): wrong here, and maybe elsewhere
  }
  try {
    meshfuse::refuse(Communicator::instance(), program.get(), reason);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no group, so nobody waits
  }
}

std::vector<std::vector<at::Tensor>> FusionExecutorCache::runAll(
    std::span<const std::vector<InputValue>> inputs, Communicator& comm) {
  const auto devices = comm.localRanks();
  MESHFUSE_CHECK(inputs.size() == devices.size(), "execute: ", inputs.size(),
                 " lists of inputs were given for ", devices.size(),
                 " devices. Give one list per device.");
  RunProbe probe(fusion_id_, devices[0], inputs);
  const auto plans = fusion_->uneven ? plansPerDevice(inputs, comm) : planForAll(inputs, comm);
  if (plans[0]->has_dynamic_scalars || !by_value_.empty()) checkScalars(inputs, devices);
  std::vector<const Plan*> list;
  list.reserve(plans.size());
  for (const auto& plan : plans) list.push_back(plan.get());
  for (size_t r = 0; r < devices.size(); ++r) {
    checkWrittenInputs(*plans[plans.size() == 1 ? 0 : r], inputs[r], devices[r]);
  }
  probe.planned();
  auto outputs = Executor::run(list, comm, inputs, stats_);
  probe.finish(outputs);
  return outputs;
}

std::vector<std::shared_ptr<const Plan>> FusionExecutorCache::planForAll(
    std::span<const std::vector<InputValue>> inputs, Communicator& comm) {
  const std::vector<InputValue> representative = representativeInputs(inputs, comm);
  auto plan = planFor(representative, comm);
  for (size_t r = 0; r < inputs.size(); ++r) {
    if (!plan->signature.matches(inputs[r]))
      checkAgreement(*plan, representative, inputs[r], comm.localRanks()[r]);
  }
  return {std::move(plan)};
}

void FusionExecutorCache::checkScalars(std::span<const std::vector<InputValue>> inputs,
                                       std::span<const int64_t> devices) {
  for (size_t r = 1; r < inputs.size(); ++r) {
    for (size_t i = 0; i < inputs[r].size(); ++i) {
      const auto* first = std::get_if<ScalarValue>(&inputs[0][i]);
      if (first == nullptr) continue;
      const auto* other = std::get_if<ScalarValue>(&inputs[r][i]);
      const std::string given = other == nullptr ? "a tensor" : meshfuse::toString(*other);
      MESHFUSE_CHECK(other != nullptr && given == meshfuse::toString(*first),
                     "execute: scalar input ", i, " is ", meshfuse::toString(*first), " on device ",
                     devices[0], " but ", given, " on device ", devices[r],
                     ". Give all devices the same number.");
    }
  }
}

std::vector<InputValue> FusionExecutorCache::representativeInputs(
    std::span<const std::vector<InputValue>> inputs, Communicator& comm) {
  const auto devices = comm.localRanks();
  std::vector<InputValue> chosen = inputs[0];
  const auto& declared = fusion_->inputs();
  for (size_t i = 0; i < std::min(chosen.size(), declared.size()); ++i) {
    const auto* tv = std::get_if<TensorView*>(&declared[i]);
    if (tv == nullptr || !(*tv)->hasDeviceMesh()) continue;
    const auto holder =
        std::ranges::find_if(devices, [&](int64_t d) { return (*tv)->getDeviceMesh().has(d); });
    if (holder == devices.end()) continue;
    const auto& list = inputs[static_cast<size_t>(holder - devices.begin())];
    if (i < list.size()) chosen[i] = list[i];
  }
  return chosen;
}

void FusionExecutorCache::checkAgreement(const Plan& plan,
                                         std::span<const InputValue> representative,
                                         std::span<const InputValue> inputs, int64_t device) {
  const auto& declared = plan.fusion->inputs();
  MESHFUSE_CHECK(inputs.size() == declared.size(), "execute: expected ", declared.size(),
                 " inputs, but device ", device, " was given ", inputs.size(), ".");
  ExpressionEvaluator evaluator = plan.evaluator;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto* tv = std::get_if<TensorView*>(&declared[i]);
    if (tv == nullptr) continue;
    if ((*tv)->hasDeviceMesh() && !(*tv)->getDeviceMesh().has(device)) continue;
    const auto* tensor = std::get_if<at::Tensor>(&inputs[i]);
    MESHFUSE_CHECK(tensor != nullptr, "Expected input ", i, ", ", toString(*tv),
                   ", to be an at::Tensor but device ", device, " was given a scalar.");
    const auto& other = std::get<at::Tensor>(representative[i]);
    MESHFUSE_CHECK(
        tensor->layout() == at::kStrided && tensor->device() == other.device(),
        "execute: Inputs are not all on the same device or don't match selection! Input ", i, " (",
        at(*tv), ") of device ", device, " is on ", tensor->device().str(),
        ", that of another one on ", other.device().str(),
        ". Move all inputs to one device, as dense tensors.");
    try {
      evaluator.bind(*tv, *tensor, static_cast<int64_t>(i));
    } catch (Error& error) {
      error.addNote(concat("on device ", device));
      throw;
    }
  }
}

bool FusionExecutorCache::isCompiled(std::span<const InputValue> inputs) {
  Communicator& comm = Communicator::instance();
  const Team team = teamOf(comm);
  const std::lock_guard lock(mutex_);
  if (find(inputs, team) != nullptr) return true;
  return compiled_version_ == fusion_->version() && team == team_ && agreement_ != nullptr &&
         !agreement_->told.empty() && std::ranges::any_of(plans_, [&](const auto& plan) {
           return plan->signature.matchesInputs(inputs);
         });
}

std::shared_ptr<const Plan> FusionExecutorCache::lastPlan() const {
  const std::lock_guard lock(mutex_);
  if (!per_device_.empty()) return per_device_.front();
  return plans_.empty() ? nullptr : plans_.front();
}

}  // namespace meshfuse
