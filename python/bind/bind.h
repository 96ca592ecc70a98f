// SPDX-License-Identifier: BSD-3-Clause
// What the files of the extension module share: handles that keep a Fusion alive, and the functions
// that add each subject to the module.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include <meshfuse/ir/fusion.h>
#include <meshfuse/ops/op_def.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Lists of a few values are Python lists, as std::vector is.
template <class T, uint32_t N>
struct pybind11::detail::type_caster<meshfuse::SmallVector<T, N>>
    : pybind11::detail::list_caster<meshfuse::SmallVector<T, N>, T> {};

namespace meshfuse::python {
namespace py = pybind11;

/// A scalar in Python: the handle and its Fusion, which it keeps alive.
struct ScalarHandle {
  std::shared_ptr<Fusion> fusion;
  Scalar scalar;
};

/// The domain of a tensor, for printing.
struct DomainHandle {
  std::shared_ptr<TensorView> tensor;
};

/// A node of the IR in Python: keeps its Fusion alive. Null stays null.
template <class T>
std::shared_ptr<T> share(const std::shared_ptr<Fusion>& fusion, T* node) {
  return node == nullptr ? nullptr : std::shared_ptr<T>(fusion, node);
}
template <class List>
auto shareAll(const std::shared_ptr<Fusion>& fusion, const List& nodes) {
  using T = std::remove_pointer_t<typename List::value_type>;
  std::vector<std::shared_ptr<T>> result;
  result.reserve(nodes.size());
  for (T* node : nodes) result.push_back(share(fusion, node));
  return result;
}
inline std::shared_ptr<Fusion> fusionOf(const TensorView& tv) {
  return tv.fusion()->shared_from_this();
}

using TensorClass = py::class_<TensorView, std::shared_ptr<TensorView>>;

// ---- values.cpp: Python objects and values of the IR
/// The tensor behind `object`, or nullptr when it is not a TensorView.
TensorView* tensorIn(py::handle object);
/// bool, int, float, complex as a value; nullopt for other types and for ints beyond 64 bits.
std::optional<ScalarValue> numberIn(py::handle object);
/// An int that is not a bool (or an object with __index__); nullopt otherwise.
std::optional<int64_t> intIn(py::handle object);
/// A Scalar of `fusion`, or a number made a constant of it. Throws Error on another Fusion's
/// scalar.
std::optional<Scalar> scalarIn(Fusion& fusion, py::handle object);
/// True for list, tuple and other sequences, not for str, bytes and tensors.
bool isSequence(py::handle object);
py::object toPython(const std::shared_ptr<Fusion>& fusion, const Val& value);
py::object toPython(const ScalarValue& value);
/// A tensor or scalar of the IR; throws TypeError otherwise.
Val valueIn(Fusion& fusion, py::handle object);

// ---- caller.cpp
/// Sets fusion.current_loc to the line of the innermost Python frame outside this package.
void markCaller(Fusion& fusion);

// ---- call.cpp: calls of registered ops with Python arguments
using PyObjects = std::span<PyObject* const>;
/// Binds the arguments to the op's parameters and calls it. `names` is a tuple of keywords for the
/// last arguments, or null. Returns no object when the arguments do not fit.
std::optional<py::object> tryCallOp(Fusion& fusion, const OpDef& op, PyObjects args,
                                    PyObject* names);
/// The same; throws TypeError in pybind11's form when the arguments do not fit.
py::object callOpOrThrow(Fusion& fusion, const OpDef& op, PyObjects args, PyObject* names);
/// "matmul(a: TensorView, b: TensorView)".
std::string signatureText(const OpInfo& info);

// ---- module.cpp
/// Runs `body`, which returns a new reference; turns C++ exceptions into Python ones.
PyObject* guarded(PyObject* (*body)(PyObject*, PyObjects, PyObject*), PyObject* self,
                  PyObjects args, PyObject* names);

void bindErrors(py::module_& module);
void bindTypes(py::module_& module);
void bindMesh(py::module_& module);
TensorClass bindIr(py::module_& module);
void bindScalar(py::module_& module);
void bindFusion(py::module_& module);
void bindSchedule(TensorClass& tensor);
void bindPropagation(py::module_& module);
void bindOps(py::module_& module);
void bindOperators(TensorClass& tensor, const py::object& scalar);
void bindExecutor(py::module_& module);
void bindCommunicator(py::module_& module);
void bindProfile(py::module_& module);
void bindText(py::module_& module);
void bindExplain(py::module_& module);

}  // namespace meshfuse::python
