// SPDX-License-Identifier: BSD-3-Clause
// The loop over a plan's steps, and the frame around every evaluation: sizes, layout and type of a
// result are what the allocation domain says (semantics 4).
#include <meshfuse/base/error.h>
#include <meshfuse/exec/communicate.h>
#include <meshfuse/exec/executor.h>
#include <meshfuse/exec/profile.h>
#include <meshfuse/exec/written_inputs.h>
#include <meshfuse/ops/torch_types.h>

#include <algorithm>
#include <deque>
#include <list>
#include <mutex>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

namespace meshfuse {
namespace {

using Slots = c10::SmallVector<at::Tensor, 8>;

bool sameWithoutOnes(c10::IntArrayRef a, c10::IntArrayRef b) {
  size_t i = 0, k = 0;
  while (true) {
    while (i < a.size() && a[i] == 1) ++i;
    while (k < b.size() && b[k] == 1) ++k;
    if (i == a.size() || k == b.size()) return i == a.size() && k == b.size();
    if (a[i++] != b[k++]) return false;
  }
}

at::Tensor copyTo(const at::Tensor& t, const Layout& layout, at::ScalarType type) {
  at::Tensor out = at::empty_strided(layout.sizes, layout.strides, t.options().dtype(type));
  out.copy_(t);
  return out;
}

/// Brings a result to the wanted sizes, type and, unless the step leaves it open, layout.
void conform(at::Tensor& t, const Layout& want, DataType type, const Step& step,
             ExecutionStats& stats) {
  if (t.sizes() != c10::IntArrayRef(want.sizes)) {
    // Axes that stand for devices have one element here, and torch's op does not know them.
    MESHFUSE_ASSERT(sameWithoutOnes(t.sizes(), want.sizes), step.text(), " gave sizes ", t.sizes(),
                    " where ", c10::IntArrayRef(want.sizes), " were inferred");
    t = t.reshape(want.sizes);
  }
  const at::ScalarType scalar_type = toScalarType(type);
  if (!step.any_layout && needsRelayout(t, want)) {
    ++stats.relayouts;
    t = copyTo(t, want, scalar_type);
  } else if (t.scalar_type() != scalar_type) {
    t = t.to(scalar_type);
  }
}

}  // namespace

/// One run of a plan on one device.
class DeviceRun {
 public:
  DeviceRun(const Plan& plan, int64_t device, std::span<const InputValue> inputs,
            ExecutionStats& stats)
      : plan_(plan), device_(device), inputs_(inputs), stats_(stats) {
    slots_.resize(static_cast<size_t>(plan.num_slots));
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (plan.inputs[i] >= 0) slot(plan.inputs[i]) = std::get<at::Tensor>(inputs[i]);
    }
  }

  /// `drawn`: values of step.drawn, the same on all devices.
  void step(const Step& step, const ExpressionEvaluator* scalars, std::span<const int64_t> drawn) {
    if (!plan_.every_device_runs && step.mesh != nullptr && !step.mesh->has(device_)) return;
    const Operands operands(slots_.data(), step.in, step.out, device_);
    if (step.dynamic_scalars.empty() && drawn.empty()) [[likely]] {
      evaluate(step, step.call, operands);
    } else {
      OpCall call = step.call;
      if (!step.dynamic_scalars.empty()) {
        Executor::setValues(call, step.dynamic_scalars, *scalars);
      }
      Executor::setDrawn(call, step.drawn, drawn);
      evaluate(step, call, operands);
    }
    for (const Slot s : step.free_after) slot(s).reset();
  }

  const Step& stepAt(size_t index) const { return plan_.steps[index]; }
  bool takesPart(const Step& step) const {
    if (const auto& how = step.communication)
      return how->from->has(device_) || how->to->has(device_);
    return step.mesh == nullptr || step.mesh->has(device_);
  }
  std::span<const at::Tensor> slots() const { return {slots_.data(), slots_.size()}; }
  /// What this device has for a communication step.
  Participant participant(const Step& step) {
    const CommunicationStep& how = *step.communication;
    Participant p{.device = device_, .operand = {}, .result = {}, .want = &step.call.want(0)};
    if (how.from->has(device_)) p.operand = slot(step.in[0]);
    return p;
  }
  at::TensorOptions optionsFor(const Step& step) const {
    return optionsOf(step.call.resultType(0));
  }
  /// Lets go of what is not read after a communication step that has begun.
  void release(const Step& step) {
    for (const Slot s : step.free_after) slot(s).reset();
  }
  /// Takes the result of a communication step, if this device gets one.
  void receive(const Step& step, at::Tensor result) {
    if (!result.defined()) return;
    slot(step.out[0]) = std::move(result);
    conform(slot(step.out[0]), step.call.want(0), step.call.resultType(0), step, stats_);
  }

  std::vector<at::Tensor> outputs(const ExpressionEvaluator* scalars) {
    std::vector<at::Tensor> out;
    out.reserve(plan_.outputs.size());
    for (const PlanOutput& o : plan_.outputs) {
      if (o.slot < 0) {
        const auto value = scalars->evaluateValue(o.scalar);
        MESHFUSE_CHECK(value, "execute: a scalar output depends on a size that is not known.");
        out.push_back(at::scalar_tensor(toAtScalar(*value), at::dtype(toScalarType(o.dtype))));
        continue;
      }
      if (o.mesh != nullptr && !o.mesh->has(device_)) {
        if (o.alias_input < 0) out.push_back(at::empty(o.outside_sizes, optionsOf(o.dtype)));
        continue;
      }
      const at::Tensor& result = slot(o.slot);
      const bool copy = o.copy || sharesWritten(result);
      at::Tensor value = copy ? copyTo(result, o.layout, result.scalar_type()) : result;
      if (o.alias_input >= 0) {
        into_inputs_.emplace_back(o.alias_input, std::move(value));
      } else {
        out.push_back(std::move(value));
      }
    }
    return out;
  }

  /// Overwrites the inputs that take a result. Last of all, on all devices: results may be views of
  /// inputs, and devices may share them, until here.
  void writeInputs() {
    for (const auto& [input, value] : into_inputs_) {
      const auto& given = std::get<at::Tensor>(inputs_[static_cast<size_t>(input)]);
      given.detach().copy_(value);
      given.unsafeGetTensorImpl()->bump_version();  // autograd must notice the change
    }
  }

 private:
  at::Tensor& slot(Slot s) { return slots_[static_cast<size_t>(s)]; }

  /// Whether an input that takes a result has memory of `t`, by another name than the plan knows.
  bool sharesWritten(const at::Tensor& t) const {
    return std::ranges::any_of(plan_.overwritten, [&](int32_t i) {
      return shareElements(std::get<at::Tensor>(inputs_[static_cast<size_t>(i)]), t);
    });
  }

  at::TensorOptions optionsOf(DataType type) const {
    at::TensorOptions options = at::dtype(toScalarType(type));
    for (const InputValue& input : inputs_) {
      const auto* t = std::get_if<at::Tensor>(&input);
      if (t != nullptr && t->defined() && t->dim() > 0) return options.device(t->device());
    }
    return options;
  }

  void evaluate(const Step& step, const OpCall& call, const Operands& operands) {
    try {
      call.op().evaluate(call, operands);
    } catch (const c10::Error& error) {
      throw Error(concat(error.what_without_backtrace(), "\n  while running ", step.text()));
    }
    for (size_t i = 0; i < step.out.size(); ++i) {
      conform(operands.out(i), call.want(i), call.resultType(i), step, stats_);
    }
  }

  const Plan& plan_;
  int64_t device_;
  std::span<const InputValue> inputs_;
  ExecutionStats& stats_;
  Slots slots_;
  std::vector<std::pair<int32_t, at::Tensor>> into_inputs_;
};

namespace {

/// Values for the parameters that a step has drawn anew at every execution.
std::vector<int64_t> draw(size_t count) {
  if (count == 0) return {};
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  auto* const source = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard lock(source->mutex_);
  std::vector<int64_t> values;
  values.reserve(count);
  // 53 bits: enough to tell executions apart, and a number that every program can write down.
  for (size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<int64_t>(source->random64() >> 11));
  }
  return values;
}

/// A range of torch's profiler. Where none is on, it looks once whether there is one.
class ProfilerRange {
 public:
  explicit ProfilerRange(const Step& step, const char* prefix = "meshfuse: ") {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks) [[likely]]
      return;
    range_.emplace(std::move(*callbacks));
    range_->before(concat(prefix, profileName(step)));
  }

 private:
  std::optional<at::RecordFunction> range_;
};

/// One step on all local devices.
void runStep(size_t index, Communicator& comm, std::span<DeviceRun* const> runs,
             const ExpressionEvaluator* scalars) {
  const Step& step = runs[0]->stepAt(index);
  const ProfilerRange range(step);
  if (!step.communication) {
    const std::vector<int64_t> drawn = draw(step.drawn.size());
    for (DeviceRun* run : runs) run->step(run->stepAt(index), scalars, drawn);
    return;
  }
  comm.agree();
  c10::SmallVector<Participant, 8> participants;
  for (DeviceRun* run : runs) participants.push_back(run->participant(run->stepAt(index)));
  communicate(*step.communication, comm, participants, runs[0]->optionsFor(step));
  for (size_t i = 0; i < runs.size(); ++i) {
    participants[i].operand.reset();
    runs[i]->release(runs[i]->stepAt(index));
    runs[i]->receive(runs[i]->stepAt(index), std::move(participants[i].result));
  }
}

void profileStep(size_t index, Communicator& comm, std::span<DeviceRun* const> runs,
                 const ExpressionEvaluator* scalars, RunProfile& profile) {
  const Step& step = runs[0]->stepAt(index);
  StepProbe probe(step);
  for (const DeviceRun* run : runs) {
    if (run->takesPart(step)) probe.addDevice(run->slots());
  }
  probe.start();
  runStep(index, comm, runs, scalars);
  probe.stop();
  for (const DeviceRun* run : runs) {
    if (run->takesPart(step)) probe.addResults(run->slots());
  }
  probe.record(profile);
}

/// The posted communications of one run, on its only local device.
class PostedSteps {
 public:
  PostedSteps(const Plan& plan, Communicator& comm, DeviceRun& run)
      : plan_(plan), comm_(comm), run_(run) {}
  PostedSteps(const PostedSteps&) = delete;
  PostedSteps& operator=(const PostedSteps&) = delete;
  /// After an exception the others still wait for this rank's part in them.
  ~PostedSteps() {
    try {
      for (auto& [index, communication] : begun_) communication.wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first exception is told
    }
  }

  void post(size_t index) {
    const Step& step = plan_.steps[index];
    const ProfilerRange range(step);
    comm_.agree();
    begun_.emplace_back(index, PostedCommunication(*step.communication, comm_,
                                                   run_.participant(step), run_.optionsFor(step)));
    run_.release(step);
  }
  /// Ends those up to step `last`.
  void finish(size_t last) {
    for (; !begun_.empty() && begun_.front().first <= last; begun_.pop_front()) {
      auto& [index, communication] = begun_.front();
      const ProfilerRange range(plan_.steps[index], "meshfuse: wait for ");
      run_.receive(plan_.steps[index], communication.finish());
    }
  }

 private:
  const Plan& plan_;
  Communicator& comm_;
  DeviceRun& run_;
  std::list<std::pair<size_t, PostedCommunication>> begun_;  // needs no memory while empty
};

/// All steps, on the only local device.
void runAlone(const Plan& plan, Communicator& comm, DeviceRun& run,
              const ExpressionEvaluator* scalars) {
  DeviceRun* const alone[] = {&run};
  PostedSteps posted(plan, comm, run);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.awaits >= 0) posted.finish(static_cast<size_t>(step.awaits));
    if (step.posted) {
      posted.post(i);
    } else {
      runStep(i, comm, alone, scalars);
    }
  }
  posted.finish(plan.steps.size());
}

/// All steps, on all local devices. Where there are several of them, or times are taken, every
/// communication ends before the next step.
void runSteps(const Plan& plan, Communicator& comm, std::span<DeviceRun* const> runs,
              const ExpressionEvaluator* scalars) {
  if (ProfileRecorder* recorder = ProfileRecorder::active()) [[unlikely]] {
    RunProfile& profile = recorder->current();
    const ProfileTimer timer(profile.steps_ms);
    for (size_t i = 0; i < plan.steps.size(); ++i) profileStep(i, comm, runs, scalars, profile);
    return;
  }
  if (runs.size() == 1) return runAlone(plan, comm, *runs[0], scalars);
  for (size_t i = 0; i < plan.steps.size(); ++i) runStep(i, comm, runs, scalars);
}

}  // namespace

void Executor::setValues(OpCall& call, std::span<const size_t> params,
                         const ExpressionEvaluator& scalars) {
  for (const size_t p : params) {
    std::optional<Scalar> unknown;
    const auto lookup = [&](Scalar s) {
      const auto value = scalars.evaluateValue(s);
      if (!value) unknown = s;
      return value;
    };
    MESHFUSE_CHECK(call.bindScalar(p, lookup), call.op().name(), ": the value of ",
                   toString(call.fusion(), unknown.value_or(Scalar{})),
                   " is not known. Add the scalar to the inputs.");
  }
}

void Executor::setDrawn(OpCall& call, std::span<const size_t> params,
                        std::span<const int64_t> values) {
  for (size_t i = 0; i < params.size(); ++i) call.valueOf(params[i]) = values[i];
}

std::vector<std::vector<at::Tensor>> Executor::run(std::span<const Plan* const> plans,
                                                   Communicator& comm,
                                                   std::span<const std::vector<InputValue>> inputs,
                                                   ExecutionStats& stats) {
  const Plan& plan = *plans[0];
  // Results never require grad, so the autograd layers of the dispatcher are left out.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::optional<ExpressionEvaluator> scalars;
  if (plan.has_dynamic_scalars) {
    scalars.emplace(plan.evaluator);
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      if (plan.inputs[i] >= 0) continue;
      const Scalar s = std::get<Scalar>(plan.fusion->inputs()[i]);
      scalars->bind(
          s, exactValue(std::get<ScalarValue>(inputs[0][i]), plan.fusion->scalars().dtype(s)),
          "an input");
    }
  }
  const ExpressionEvaluator* values = scalars ? &*scalars : nullptr;
  const auto devices = comm.localRanks();
  std::vector<std::vector<at::Tensor>> outputs;
  outputs.reserve(devices.size());
  if (devices.size() == 1) {
    DeviceRun run(plan, devices[0], inputs[0], stats);
    DeviceRun* const alone[] = {&run};
    runSteps(plan, comm, alone, values);
    outputs.push_back(run.outputs(values));
    run.writeInputs();
    ++stats.runs;
    return outputs;
  }
  std::deque<DeviceRun> runs;
  for (size_t i = 0; i < devices.size(); ++i) {
    runs.emplace_back(*plans[plans.size() == 1 ? 0 : i], devices[i], inputs[i], stats);
  }
  std::vector<DeviceRun*> all;
  all.reserve(runs.size());
  for (DeviceRun& run : runs) all.push_back(&run);
  runSteps(plan, comm, all, values);
  for (DeviceRun& run : runs) outputs.push_back(run.outputs(values));
  for (DeviceRun& run : runs) run.writeInputs();
  ++stats.runs;
  return outputs;
}

}  // namespace meshfuse
