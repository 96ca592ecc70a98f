// SPDX-License-Identifier: BSD-3-Clause
// The recorder of profiles in Python; the classes that users see are in meshfuse/profile.py.
#include "bind.h"

#include <meshfuse/exec/profile.h>

namespace meshfuse::python {

void bindProfile(py::module_& module) {
  py::class_<StepProfile>(module, "StepProfile")
      .def_readonly("name", &StepProfile::name)
      .def_property_readonly("kind",
                             [](const StepProfile& self) { return std::string(name(self.kind)); })
      .def_readonly("start_ms", &StepProfile::start_ms)
      .def_readonly("time_ms", &StepProfile::time_ms)
      .def_readonly("host_ms", &StepProfile::host_ms)
      .def_readonly("device_ms", &StepProfile::device_ms)
      .def_readonly("input_bytes", &StepProfile::input_bytes)
      .def_readonly("output_bytes", &StepProfile::output_bytes);

  py::class_<RunProfile>(module, "RunProfile")
      .def_readonly("fusion_id", &RunProfile::fusion_id)
      .def_readonly("device", &RunProfile::device)
      .def_readonly("start_ns", &RunProfile::start_ns)
      .def_readonly("compile_ms", &RunProfile::compile_ms)
      .def_readonly("steps_ms", &RunProfile::steps_ms)
      .def_readonly("host_ms", &RunProfile::host_ms)
      .def_readonly("input_bytes", &RunProfile::input_bytes)
      .def_readonly("output_bytes", &RunProfile::output_bytes)
      .def_readonly("steps", &RunProfile::steps);

  py::class_<ProfileRecorder>(module, "ProfileRecorder")
      .def(py::init<>())
      .def("start", &ProfileRecorder::start)
      .def("stop", &ProfileRecorder::stop);
}

}  // namespace meshfuse::python
