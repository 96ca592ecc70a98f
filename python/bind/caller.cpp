// SPDX-License-Identifier: BSD-3-Clause
// The user's line: the innermost Python frame outside this package.
#include "bind.h"

namespace meshfuse::python {
namespace {

/// Folder of the package, found at the first call.
std::string_view packageDir() {
  static std::string dir;
  if (dir.empty()) {
    const auto path = py::module_::import("meshfuse").attr("__path__");
    dir = py::str(py::list(path)[0]).cast<std::string>() + "/";
  }
  return dir;
}

std::string_view fileOf(PyCodeObject* code) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(code->co_filename, &length);
  if (text == nullptr) throw py::error_already_set();
  return {text, static_cast<size_t>(length)};
}

}  // namespace

void markCaller(Fusion& fusion) {
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    auto* code = PyFrame_GetCode(raw);
    const auto owner = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(code));
    const std::string_view file = fileOf(code);
    if (!file.starts_with(packageDir())) {
      fusion.current_loc = {fusion.internFile(std::string(file)), PyFrame_GetLineNumber(raw)};
      return;
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
}

}  // namespace meshfuse::python
