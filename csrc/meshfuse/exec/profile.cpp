// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/exec/profile.h>

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace meshfuse {
namespace {

thread_local ProfileRecorder* active_recorder = nullptr;

double millisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

int64_t bytesOf(const at::Tensor& t) {
  return t.defined() ? t.numel() * static_cast<int64_t>(t.element_size()) : 0;
}

/// Whether other devices are involved: a slice of what the device holds, and a team of one, are not
/// communication.
bool hasTraffic(const Step& step) {
  if (!step.communication) return false;
  const CommunicationStep& how = *step.communication;
  if (!how.pieces.empty()) {
    return std::ranges::any_of(how.pieces, [](const Piece& p) { return p.from != p.to; });
  }
  return how.info.kind != CommunicationKind::LocalSlice &&
         std::ranges::any_of(*how.teams, [](const Team& team) { return team.size() > 1; });
}

}  // namespace

std::string_view name(StepKind kind) {
  switch (kind) {
    case StepKind::Communication:
      return "communication";
    case StepKind::NoOp:
      return "no_op";
    case StepKind::ExprEval:
      break;
  }
  return "expr_eval";
}

std::string profileName(const Step& step) {
  if (!step.communication) return step.text();
  const CommunicationInfo& info = step.communication->info;
  return concat(name(info.kind), " over ", pythonName(info.mesh_axis), ": ", step.text());
}

ProfileRecorder* ProfileRecorder::active() noexcept { return active_recorder; }

ProfileRecorder::~ProfileRecorder() {
  if (started_ && active_recorder == this) active_recorder = outer_;
}

void ProfileRecorder::start() {
  MESHFUSE_CHECK(!started_,
                 "PythonProfiler: this profiler was started already. Use a new one for another "
                 "`with` block.");
  started_ = true;
  runs_.clear();
  outer_ = std::exchange(active_recorder, this);
}

std::vector<RunProfile> ProfileRecorder::stop() {
  MESHFUSE_CHECK(started_ && active_recorder == this,
                 "PythonProfiler: this profiler is not the innermost one of this thread. Leave "
                 "`with` blocks in the order in which they were nested, on the thread that "
                 "entered them.");
  started_ = false;
  active_recorder = std::exchange(outer_, nullptr);
  if (active_recorder != nullptr)
    std::ranges::copy(runs_, std::back_inserter(active_recorder->runs_));
  return std::move(runs_);
}

void RunProbe::begin(int64_t fusion_id, int64_t device,
                     std::span<const std::vector<InputValue>> inputs) {
  RunProfile& run = recorder_->current();
  run = RunProfile();
  run.fusion_id = fusion_id;
  run.device = device;
  for (const auto& list : inputs) {
    for (const InputValue& value : list) {
      if (const auto* t = std::get_if<at::Tensor>(&value)) run.input_bytes += bytesOf(*t);
    }
  }
  start_ = Clock::now();
  run.start = start_;
  run.start_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
}

void RunProbe::recordPlanned() { recorder_->current().compile_ms = millisecondsSince(start_); }

void RunProbe::record(std::span<const std::vector<at::Tensor>> outputs) {
  RunProfile& run = recorder_->current();
  run.host_ms = millisecondsSince(start_);
  for (const auto& list : outputs) {
    for (const at::Tensor& t : list) run.output_bytes += bytesOf(t);
  }
  recorder_->runs_.push_back(std::move(run));
}

ProfileTimer::~ProfileTimer() { milliseconds_ = millisecondsSince(start_); }

void StepProbe::addDevice(std::span<const at::Tensor> slots) {
  ++members_;
  for (const Slot s : step_.in) {
    if (s < 0) continue;
    const at::Tensor& t = slots[static_cast<size_t>(s)];
    if (!t.defined()) continue;
    profile_.input_bytes += bytesOf(t);
    using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
    memory_.emplace_back(t.storage().unsafeGetStorageImpl(),
                         std::make_shared<Weak>(t.storage().getWeakStorageImpl()));
    if (!t.device().is_cpu() && std::ranges::find(devices_, t.device()) == devices_.end()) {
      devices_.push_back(t.device());
    }
  }
}

void StepProbe::start() {
  synchronize();
  recordEvents();
  start_ = std::chrono::steady_clock::now();
}

void StepProbe::stop() {
  profile_.host_ms = millisecondsSince(start_);
  recordEvents();
  synchronize();
  profile_.time_ms = millisecondsSince(start_);
  const size_t count = events_.size() / 2;
  for (size_t i = 0; i < count; ++i) {
    profile_.device_ms = std::max(profile_.device_ms, events_[i]->elapsedTime(*events_[count + i]));
  }
}

void StepProbe::recordEvents() {
  for (const at::Device& device : devices_) {
    if (!device.is_cuda()) continue;
    auto event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    events_.push_back(std::move(event));
  }
}

/// Work on accelerators is only queued by a step; its time counts too.
void StepProbe::synchronize() const {
  for (const at::Device& device : devices_) {
    if (device.is_meta()) continue;
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

void StepProbe::addResults(std::span<const at::Tensor> slots) {
  for (const Slot s : step_.out) {
    const at::Tensor& t = slots[static_cast<size_t>(s)];
    if (!t.defined()) continue;  // nobody reads it
    profile_.output_bytes += bytesOf(t);
    const void* memory = t.storage().unsafeGetStorageImpl();
    const auto shared = [&](const auto& m) { return m.first == memory; };
    if (std::ranges::none_of(memory_, shared)) only_views_ = false;
  }
}

void StepProbe::record(RunProfile& run) const {
  if (members_ == 0) return;
  StepProfile profile = profile_;
  profile.name = profileName(step_);
  profile.start_ms = std::chrono::duration<double, std::milli>(start_ - run.start).count();
  profile.kind = hasTraffic(step_) ? StepKind::Communication
                 : only_views_     ? StepKind::NoOp
                                   : StepKind::ExprEval;
  run.steps.push_back(std::move(profile));
}

}  // namespace meshfuse
