// SPDX-License-Identifier: BSD-3-Clause
// Python objects as values of the IR, and back.
#include "bind.h"

#include <torch/csrc/autograd/python_variable.h>

namespace meshfuse::python {

TensorView* tensorIn(py::handle object) {
  return py::isinstance<TensorView>(object) ? object.cast<TensorView*>() : nullptr;
}

std::optional<int64_t> intIn(py::handle object) {
  PyObject* raw = object.ptr();
  if (PyBool_Check(raw) || !PyIndex_Check(raw) || THPVariable_Check(raw)) return std::nullopt;
  // Members of our enumerations have __index__, but are not sizes.
  if (!PyLong_Check(raw) && py::hasattr(py::type::of(object), "__members__")) return std::nullopt;
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(raw));
  int overflow = 0;
  const long long value = index ? PyLong_AsLongLongAndOverflow(index.ptr(), &overflow) : 0;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  if (!index || overflow != 0) return std::nullopt;
  return value;
}

std::optional<ScalarValue> numberIn(py::handle object) {
  PyObject* raw = object.ptr();
  if (PyBool_Check(raw)) return ScalarValue(raw == Py_True);
  if (PyFloat_Check(raw)) return ScalarValue(PyFloat_AS_DOUBLE(raw));
  if (PyComplex_Check(raw)) return ScalarValue(object.cast<std::complex<double>>());
  if (const auto value = intIn(object)) return ScalarValue(*value);
  return std::nullopt;
}

std::optional<Scalar> scalarIn(Fusion& fusion, py::handle object) {
  if (py::isinstance<ScalarHandle>(object)) {
    const auto& handle = object.cast<const ScalarHandle&>();
    MESHFUSE_CHECK(handle.fusion.get() == &fusion, "The scalar ",
                   toString(*handle.fusion, handle.scalar),
                   " belongs to another definition. Define it in the one that uses it.");
    return handle.scalar;
  }
  const auto value = numberIn(object);
  if (!value) return std::nullopt;
  return fusion.scalars().constant(*value, dtypeOf(*value));
}

bool isSequence(py::handle object) {
  PyObject* raw = object.ptr();
  if (PyList_Check(raw) || PyTuple_Check(raw)) return true;
  return PySequence_Check(raw) && !PyUnicode_Check(raw) && !PyBytes_Check(raw) &&
         !THPVariable_Check(raw);
}

py::object toPython(const std::shared_ptr<Fusion>& fusion, const Val& value) {
  if (const auto* scalar = std::get_if<Scalar>(&value)) {
    return py::cast(ScalarHandle{fusion, *scalar});
  }
  return py::cast(share(fusion, std::get<TensorView*>(value)));
}

py::object toPython(const ScalarValue& value) {
  return std::visit([](const auto& v) { return py::cast(v).template cast<py::object>(); }, value);
}

Val valueIn(Fusion& fusion, py::handle object) {
  if (TensorView* tv = tensorIn(object)) return tv;
  if (const auto scalar = scalarIn(fusion, object)) return *scalar;
  throw py::type_error("expected a TensorView or a Scalar, but got " +
                       py::repr(py::type::of(object)).cast<std::string>());
}

}  // namespace meshfuse::python
