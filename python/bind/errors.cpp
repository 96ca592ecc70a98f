// SPDX-License-Identifier: BSD-3-Clause
// Exceptions in Python: the classes and the translation from C++.
#include "bind.h"

#include <pybind11/detail/exception_translation.h>

#include <c10/util/Exception.h>

#include <meshfuse/base/error.h>

namespace meshfuse::python {
namespace {

// Borrowed: the module owns the classes and lives as long as the interpreter.
PyObject* error_class = nullptr;
PyObject* internal_class = nullptr;
PyObject* unsupported_class = nullptr;
PyObject* peer_class = nullptr;

PyObject* newClass(py::module_& module, const char* name, const py::tuple& bases, const char* doc) {
  const std::string full = std::string("meshfuse.") + name;
  auto cls = py::reinterpret_steal<py::object>(
      PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr));
  if (!cls) throw py::error_already_set();
  module.attr(name) = cls;
  return cls.ptr();
}

py::object optionalInt(const std::optional<int64_t>& value) {
  return value ? py::object(py::int_(*value)) : py::object(py::none());
}

void raise(const Error& e) {
  py::object instance = py::handle(error_class)(e.what());
  if (!e.where().tensor.empty()) instance.attr("tensor") = e.where().tensor;
  instance.attr("axis") = optionalInt(e.where().axis);
  instance.attr("rank") = optionalInt(e.where().rank);
  PyErr_SetObject(error_class, instance.ptr());
}

void raise(const PeerError& e) {
  py::object instance = py::handle(peer_class)(e.what());
  instance.attr("rank") = e.rank();
  instance.attr("reason") = e.reason();
  PyErr_SetObject(peer_class, instance.ptr());
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): what pybind11 calls
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& e) {
    raise(e);
  } catch (const PeerError& e) {
    raise(e);
  } catch (const UnsupportedError& e) {
    PyErr_SetString(unsupported_class, e.what());
  } catch (const InternalError& e) {
    PyErr_SetString(internal_class, e.what());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  }
}

}  // namespace

PyObject* guarded(PyObject* (*body)(PyObject*, PyObjects, PyObject*), PyObject* self,
                  PyObjects args, PyObject* names) {
  try {
    return body(self, args, names);
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

void bindErrors(py::module_& module) {
  const py::handle runtime_error(PyExc_RuntimeError);
  error_class =
      newClass(module, "Error", py::make_tuple(py::handle(PyExc_ValueError), runtime_error),
               "A fault that the caller can mend. Attributes: tensor, axis, rank, each "
               "None where unknown.");
  internal_class = newClass(module, "InternalError", py::make_tuple(runtime_error),
                            "A fault of meshfuse itself; please report it.");
  unsupported_class =
      newClass(module, "UnsupportedError", py::make_tuple(py::handle(PyExc_NotImplementedError)),
               "The call controls something that meshfuse does not have, such as CUDA kernels.");
  peer_class = newClass(module, "PeerError", py::make_tuple(runtime_error),
                        "Another rank failed or is absent. Attributes: rank, reason.");
  for (const char* name : {"tensor", "axis", "rank"}) {
    py::setattr(error_class, name, py::none());
  }
  py::setattr(peer_class, "rank", py::none());
  py::setattr(peer_class, "reason", py::none());
  py::register_local_exception_translator(&translate);
}

}  // namespace meshfuse::python
