// SPDX-License-Identifier: BSD-3-Clause
// Execution in Python. The path of a call that is compiled already: one function of one argument
// reads the inputs, lets go of the interpreter lock, runs the plan and wraps the results.
#include "bind.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <meshfuse/eval/allocation.h>
#include <meshfuse/exec/executor.h>
#include <meshfuse/text/ir_text.h>

#include <algorithm>

namespace meshfuse::python {
namespace {

using Cache = FusionExecutorCache;
using Inputs = std::vector<InputValue>;

py::module_ tensorKinds() { return py::module_::import("meshfuse.tensor_kinds"); }

/// Where a tensor may be none that a program computes with.
constexpr c10::DispatchKeySet kOddKeys({c10::DispatchKey::Python, c10::DispatchKey::Quantized});

const at::Tensor& plainTensor(PyObject* object, size_t position) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (tensor.key_set().has_any(kOddKeys) || tensor._fw_grad(0).defined()) [[unlikely]] {
    tensorKinds().attr("refuse_input")("execute", position, py::handle(object));
  }
  return tensor;
}

constexpr int kMaxNesting = 32;

void read(PyObject* inputs, Inputs& result, int depth);

void readOne(PyObject* item, Inputs& result, int depth) {
  if (THPVariable_Check(item)) {
    result.emplace_back(plainTensor(item, result.size()));
  } else if (const auto number = numberIn(item)) {
    result.emplace_back(*number);
  } else if (PyList_Check(item) || PyTuple_Check(item)) {
    read(item, result, depth + 1);
  } else {
    throw py::type_error("execute: input " + std::to_string(result.size()) + " is " +
                         py::repr(item).cast<std::string>() + ", a " +
                         py::type::of(item).attr("__name__").cast<std::string>() +
                         ". Inputs are torch tensors (for numpy: torch.from_numpy(x)), bools, ints "
                         "of at most 64 bits, floats and "
                         "complex numbers.");
  }
}

/// Appends the values of an iterable; lists inside it are flattened.
void read(PyObject* inputs, Inputs& result, int depth) {
  if (depth > kMaxNesting) {
    throw py::type_error("execute: the lists of inputs are nested more than " +
                         std::to_string(kMaxNesting) + " deep. Does a list contain itself?");
  }
  if (!PyList_CheckExact(inputs) && THPVariable_Check(inputs)) {
    throw py::type_error("execute: expected a list of inputs, but got a tensor. Write [x].");
  }
  const auto list = py::reinterpret_steal<py::object>(
      PySequence_Fast(inputs, "execute: expected a list of inputs"));
  if (!list) throw py::error_already_set();
  const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr()));
  result.reserve(result.size() + n);
  for (size_t i = 0; i < n; ++i) readOne(PySequence_Fast_ITEMS(list.ptr())[i], result, depth);
}

Inputs readInputs(PyObject* inputs) {
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) [[unlikely]] {
    tensorKinds().attr("refuse_fake_mode")("execute");
  }
  Inputs result;
  read(inputs, result, 0);
  return result;
}

/// When it throws, the other ranks are told.
Inputs readInputsOrRefuse(Cache& cache, PyObject* inputs) {
  const auto refuse = [&](const std::string& reason) {
    const py::gil_scoped_release release;
    cache.refuse(reason);
  };
  try {
    return readInputs(inputs);
  } catch (const py::error_already_set& error) {
    refuse(py::str(error.value()).cast<std::string>());
    throw;
  } catch (const std::exception& error) {
    refuse(error.what());
    throw;
  }
}

/// Where no operand says it, results go to the device on which torch makes new tensors.
void toDefaultDevice(bool has_tensors, std::vector<at::Tensor>& outputs) {
  if (has_tensors || outputs.empty()) return;
  const auto device = py::module_::import("torch").attr("get_default_device")().cast<at::Device>();
  if (device.is_cpu()) return;
  for (at::Tensor& out : outputs) out = out.to(device);
}

bool hasTensors(const Inputs& inputs) {
  return std::ranges::any_of(
      inputs, [](const InputValue& value) { return std::holds_alternative<at::Tensor>(value); });
}

/// A new list.
PyObject* wrap(std::vector<at::Tensor>&& outputs) {
  auto list =
      py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
  if (!list) throw py::error_already_set();
  for (size_t i = 0; i < outputs.size(); ++i) {
    PyObject* item = THPVariable_Wrap(std::move(outputs[i]));
    if (item == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  return list.release().ptr();
}

PyObject* execute(Cache& cache, PyObject* inputs) {
  Inputs values = readInputsOrRefuse(cache, inputs);
  const bool has_tensors = hasTensors(values);
  std::vector<at::Tensor> outputs;
  {
    const py::gil_scoped_release release;
    outputs = cache.run(std::move(values));
  }
  toDefaultDevice(has_tensors, outputs);
  return wrap(std::move(outputs));
}

constexpr const char* kRunnerName = "meshfuse.FusionExecutorCache";

PyObject* runnerBody(PyObject* self, PyObjects args, PyObject* /*names*/) {
  auto* cache = static_cast<std::shared_ptr<Cache>*>(PyCapsule_GetPointer(self, kRunnerName));
  return execute(**cache, args[0]);
}

PyObject* runnerEntry(PyObject* self, PyObject* inputs) {
  return guarded(runnerBody, self, PyObjects(&inputs, 1), nullptr);
}

PyMethodDef runner_method = {"execute", runnerEntry, METH_O, "Runs the program on these inputs."};

/// A function of one argument, the inputs; cheaper to call than a bound method.
py::object runner(const std::shared_ptr<Cache>& self) {
  auto* keep = new std::shared_ptr<Cache>(self);
  const py::capsule capsule(keep, kRunnerName,
                            [](void* p) { delete static_cast<std::shared_ptr<Cache>*>(p); });
  return py::reinterpret_steal<py::object>(
      PyCFunction_NewEx(&runner_method, capsule.ptr(), nullptr));
}

std::vector<std::vector<at::Tensor>> executeAll(Cache& self, const std::vector<py::object>& ranks,
                                                Communicator& communicator) {
  std::vector<Inputs> values;
  values.reserve(ranks.size());
  for (const py::object& inputs : ranks) values.push_back(readInputs(inputs.ptr()));
  const bool has_tensors = std::ranges::any_of(values, hasTensors);
  std::vector<std::vector<at::Tensor>> outputs;
  {
    const py::gil_scoped_release release;
    outputs = self.runAll(values, communicator);
  }
  for (auto& of_device : outputs) toDefaultDevice(has_tensors, of_device);
  return outputs;
}

py::dict stats(const Cache& self) {
  const ExecutionStats& s = self.stats();
  return py::dict(py::arg("runs") = s.runs.load(), py::arg("compiles") = s.compiles.load(),
                  py::arg("relayouts") = s.relayouts.load());
}

std::string planText(const Cache& self) {
  const auto plan = self.lastPlan();
  MESHFUSE_CHECK(plan != nullptr,
                 "plan: Invalid fusion definition! It was not executed yet. Call "
                 "execute first; a plan depends on the sizes of the inputs.");
  return plan->toString();
}

std::vector<const TensorView*> visibleOutputs(const Fusion& fusion) {
  std::vector<const TensorView*> result;
  for (const FusionOutput& out : fusion.outputs()) {
    const auto* tv = std::get_if<TensorView*>(&out.value);
    if (out.alias == nullptr) result.push_back(tv == nullptr ? nullptr : *tv);
  }
  return result;
}

/// The global tensor of visible output `index`, from the parts of all local ranks.
at::Tensor unshardOutput(Cache& self, size_t index, const std::vector<at::Tensor>& parts,
                         const std::vector<int64_t>& devices) {
  const auto fusion = self.compiledFusion();
  const TensorView* tv = visibleOutputs(*fusion).at(index);
  return tv == nullptr || !tv->hasDeviceMesh() ? parts.at(0) : unshardTensor(parts, devices, tv);
}

}  // namespace

void bindExecutor(py::module_& module) {
  py::class_<Cache, std::shared_ptr<Cache>>(module, "FusionExecutorCache")
      .def(py::init([](std::shared_ptr<Fusion> fusion, int64_t fusion_id, bool) {
             return std::make_shared<Cache>(std::move(fusion), fusion_id);
           }),
           py::arg("fusion").none(false), py::arg("fusion_id") = 0, py::arg("auto_schedule") = true)
      .def("runner", &runner, py::pos_only())
      .def("run_all", &executeAll, py::arg("inputs"), py::arg("communicator"))
      .def("run",
           [](Cache& self, const py::object& inputs) {
             return py::reinterpret_steal<py::object>(execute(self, inputs.ptr()));
           })
      .def(
          "is_compiled",
          [](Cache& self, const py::object& inputs, int64_t) {
            return self.isCompiled(readInputs(inputs.ptr()));
          },
          py::arg("inputs"), py::arg("device") = 0)
      .def("refuse", &Cache::refuse, py::call_guard<py::gil_scoped_release>(), py::arg("reason"),
           "Tells the other ranks that this one gave up an execution before it had begun.")
      .def("fusion", [](const Cache& self) { return self.fusion(); })
      .def("stats", &stats, py::pos_only())
      .def("compiled_ir",
           [](Cache& self) {
             const py::gil_scoped_release other_threads_may_run;
             return irText(*self.compiledFusion());
           })
      .def(
          "compiled_fusion",
          [](Cache& self) { return std::shared_ptr<Fusion>(self.compiledFusion()->clone()); },
          "A copy of the program after the passes.")
      .def("plan", &planText, py::pos_only())
      .def("was_run", [](const Cache& self) { return self.lastPlan() != nullptr; })
      .def("unshard_output", &unshardOutput, py::arg("index"), py::arg("parts"),
           py::arg("devices"));

  module.def(
      "unshard_tensor",
      [](const std::vector<at::Tensor>& parts, const std::vector<int64_t>& devices,
         const TensorView& tv) { return unshardTensor(parts, devices, &tv); },
      py::arg("parts"), py::arg("devices"), py::arg("tv"),
      "The global tensor, from the parts that the devices hold.");
}

}  // namespace meshfuse::python
