// SPDX-License-Identifier: BSD-3-Clause
// The communicator in Python, the simulated mesh, and what Python must do for a waiting rank.
#include "bind.h"

#include <meshfuse/comm/c10d.h>
#include <meshfuse/comm/collective_call.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/comm/select.h>

namespace meshfuse::python {
namespace {

/// Makes a communicator the current one of this thread until release().
class GuardHandle {
 public:
  explicit GuardHandle(std::shared_ptr<Communicator> communicator)
      : keep_(std::move(communicator)), guard_(std::make_unique<CommunicatorGuard>(keep_.get())) {}
  void release() { guard_.reset(); }

 private:
  std::shared_ptr<Communicator> keep_;
  std::unique_ptr<CommunicatorGuard> guard_;
};

/// The process-wide communicator is never destroyed, so nothing is lost by not owning it.
std::shared_ptr<Communicator> instance() {
  return {std::shared_ptr<void>(), &Communicator::instance()};
}

std::vector<int64_t> localRanks(const Communicator& self) {
  return {self.localRanks().begin(), self.localRanks().end()};
}

thread_local bool waits_for_others = false;

/// Lets Ctrl-C, and other signals that Python handles, reach a rank that waits in a communication.
void checkSignals() {
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire acquire;
  waits_for_others = true;
  const bool raised = PyErr_CheckSignals() != 0;
  waits_for_others = false;
  if (raised) throw py::error_already_set();
}

/// Rank and size as the launcher says, or None.
std::optional<std::pair<int64_t, int64_t>> launchedAs() {
  const LauncherEnv env = readLauncherEnv();
  if (!env.found) return std::nullopt;
  return std::pair{env.rank, env.size};
}

void reportFailure(const std::string& reason) {
  Communicator* communicator = Communicator::existing();
  if (communicator != nullptr && communicator->size() > 1) communicator->reportFailure(reason);
}

void reportRefusal(const std::string& reason) {
  Communicator* communicator = Communicator::existing();
  if (communicator != nullptr && communicator->size() > 1) communicator->reportRefusal(reason);
}

/// Calls `hook` when the communicator of this process starts.
void onStart(py::function hook) {
  // The function lives as long as the interpreter: the hook may outlive that.
  setStartHook([function = hook.release().ptr()] {
    const py::gil_scoped_acquire acquire;
    py::reinterpret_borrow<py::function>(function)();
  });
}

/// Lets Python make process groups. The functions live as long as the interpreter.
void setGroups(py::function exists, py::function open, py::function make) {
  const auto keep = [](py::function f) { return f.release().ptr(); };
  setC10dGroups(
      {.exists =
           [f = keep(std::move(exists))] {
             const py::gil_scoped_acquire acquire;
             return py::handle(f)().cast<bool>();
           },
       .open =
           [f = keep(std::move(open))] {
             const py::gil_scoped_acquire acquire;
             return py::handle(f)().cast<std::string>();
           },
       .make =
           [f = keep(std::move(make))](const std::string& group, std::span<const int64_t> team,
                                       const std::string& device) {
             const py::gil_scoped_acquire acquire;
             const std::vector<int64_t> members(team.begin(), team.end());
             return py::handle(f)(group, members, device).cast<std::string>();
           }});
}

void shutdown(bool failed) {
  if (Communicator* communicator = Communicator::existing()) communicator->shutdown(failed);
  setInterruptCheck({});  // the interpreter ends before this library does
  setStartHook({});
}

/// Whether a communicator of more than one process exists already.
bool isDistributed() {
  Communicator* communicator = Communicator::existing();
  return communicator != nullptr && communicator->isAvailable() && communicator->size() > 1;
}

}  // namespace

void bindCommunicator(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  // pos_only(), where a function names no argument, keeps None from being taken for `self`.
  py::class_<Communicator, std::shared_ptr<Communicator>>(module, "Communicator")
      .def("size", &Communicator::size, py::pos_only())
      .def("rank", &Communicator::rank, py::pos_only())
      .def("local_size", &Communicator::localSize, py::pos_only())
      .def("local_rank", &Communicator::localRank, py::pos_only())
      .def("local_ranks", &localRanks, py::pos_only())
      .def("is_available", &Communicator::isAvailable, py::pos_only())
      .def("backend", &Communicator::backend, py::pos_only())
      .def("barrier", &Communicator::barrier, py::pos_only(), Release(),
           "Waits until every rank arrives.");

  py::class_<GuardHandle>(module, "CommunicatorGuard")
      .def(py::init<std::shared_ptr<Communicator>>(), py::arg("communicator").none(false))
      .def("release", &GuardHandle::release);

  module.def("communicator", &instance, Release(),
             "The communicator of this thread or process; the first call starts it.");
  module.def(
      "make_simulated_communicator",
      [](int64_t size) -> std::shared_ptr<Communicator> { return makeSimulatedCommunicator(size); },
      py::arg("size"));
  module.def("report_failure", &reportFailure, Release(), py::arg("reason"),
             "Tells the other ranks that this one failed.");
  module.def("name_end", &nameEnd, py::arg("how"),
             "Says on standard error how this rank of several ended; only the first call does.");
  module.def("report_refusal", &reportRefusal, Release(), py::arg("reason"),
             "Tells the other ranks that this one gave up an execution before communicating.");
  module.def("shutdown", &shutdown, Release(), py::arg("failed"), "Leaves the group, at exit.");
  module.def("is_distributed", &isDistributed, Release());
  module.def("on_start", &onStart, py::arg("hook"),
             "Calls a function once the communicator of this process has started.");
  module.def("set_process_groups", &setGroups, py::arg("exists"), py::arg("open"), py::arg("make"),
             "Sets the functions that find, open and make process groups of torch.distributed.");
  module.def(
      "has_communicator", [] { return Communicator::existing() != nullptr; },
      "Whether the communicator of this process exists already.");
  module.def("launched_as", &launchedAs,
             "Rank and number of ranks that a launcher gave to this process, or None.");
  module.def("collective_calls", &collectiveCalls, "Collective calls begun by this process.");
  module.def(
      "waits_for_others", [] { return waits_for_others; },
      "In a signal handler: whether the signal came while this thread waits in a communication.");
  module.def("communication_timeout", &communicationTimeout);
  setInterruptCheck(&checkSignals);
}

}  // namespace meshfuse::python
