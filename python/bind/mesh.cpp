// SPDX-License-Identifier: BSD-3-Clause
// DeviceMesh in Python, and a device's part of a global tensor.
#include "bind.h"

#include <meshfuse/comm/communicator.h>
#include <meshfuse/eval/allocation.h>

namespace meshfuse::python {
namespace {

using Names = std::vector<std::string>;

std::string wrongDevices(const py::object& devices) {
  return "DeviceMesh: expected a sequence of ints or a tensor of ints, but got " +
         py::repr(devices).cast<std::string>();
}

/// From a tensor, another array or nested lists of ids; its shape is the mesh's.
DeviceMesh fromArray(const py::object& devices, const Names& names) {
  try {
    const py::object array =
        isSequence(devices) ? py::module_::import("torch").attr("tensor")(devices) : devices;
    const auto ids = array.attr("flatten")().attr("tolist")().cast<std::vector<int64_t>>();
    return DeviceMesh(ids, array.attr("shape").cast<std::vector<int64_t>>(), names);
  } catch (const py::cast_error&) {  // NOLINT(bugprone-empty-catch): not ints, told below
  } catch (const py::error_already_set& e) {
    // Lists of strings or of several lengths, of which torch makes no tensor.
    if (e.matches(PyExc_ValueError)) fail(wrongDevices(devices), ". Give lists of equal lengths.");
    if (!e.matches(PyExc_AttributeError)) throw;  // else not an array
  }
  throw py::type_error(wrongDevices(devices));
}

/// True stands for no device.
void refuseBools(const py::object& devices) {
  if (!PyList_Check(devices.ptr()) && !PyTuple_Check(devices.ptr())) return;
  for (const py::handle item : devices) {
    if (!PyBool_Check(item.ptr())) continue;
    throw py::type_error(wrongDevices(devices));
  }
}

DeviceMesh fromPython(const py::object& devices, const Names& names) {
  refuseBools(devices);
  try {
    return DeviceMesh(devices.cast<std::vector<int64_t>>(), {}, names);
  } catch (const py::cast_error&) {
    return fromArray(devices, names);
  }
}

py::tuple shape(const DeviceMesh& self) {
  return py::cast(std::vector<int64_t>(self.shape().begin(), self.shape().end()));
}

py::object indexOf(const DeviceMesh& self, int64_t device) {
  if (!self.has(device)) return py::none();
  return py::tuple(py::cast(self.multiDimensionalIndexOf(device)));
}

size_t hash(const DeviceMesh& self) {
  return static_cast<size_t>(
      py::hash(py::make_tuple(py::tuple(py::cast(self.vector())), shape(self))));
}

/// The first call may wait for another thread, which may need the interpreter.
int64_t ownDevice() {
  const py::gil_scoped_release release;
  return Communicator::instance().deviceId();
}

at::Tensor shard1D(const DeviceMesh& self, const at::Tensor& tensor, int64_t axis,
                   std::optional<int64_t> device) {
  const int64_t id = device ? *device : ownDevice();
  return shardTensor1D(tensor, axis, self, id);
}

at::Tensor shard(const at::Tensor& tensor, const TensorView& tv, std::optional<int64_t> device) {
  return shardTensor(tensor, &tv, device ? *device : ownDevice());
}

}  // namespace

void bindMesh(py::module_& module) {
  // pos_only(), where a function names no argument, keeps None from being taken for `self`.
  py::class_<DeviceMesh>(module, "DeviceMesh")
      .def(py::init(&fromPython), py::arg("devices"), py::arg("names") = Names())
      .def_property_readonly("size", [](const DeviceMesh& self) { return self.size(); })
      .def_property_readonly("shape", &shape)
      .def_property_readonly("rank", &DeviceMesh::rank)
      .def_property_readonly("devices", &DeviceMesh::vector)
      .def_property_readonly(
          "names", [](const DeviceMesh& self) { return py::tuple(py::cast(self.names())); })
      .def("shard_tensor", &shard1D, py::arg("tensor"), py::arg("axis"),
           py::arg("device_id") = py::none(),
           "The block of `axis` that a device holds, of even blocks over the flattened mesh.")
      .def("index_of", &indexOf, py::arg("device"), "Coordinates of a device, or None.")
      .def("slice_of", &DeviceMesh::getSlice, py::arg("device"), py::arg("parallel_type"),
           "Devices that differ from `device` only along that mesh axis.")
      .def("__eq__", [](const DeviceMesh& self, const DeviceMesh& o) { return self == o; })
      .def("__eq__", [](const DeviceMesh&, const py::object&) { return false; })
      .def("__hash__", &hash, py::pos_only())
      // Serves copy.deepcopy, too.
      .def(py::pickle(
          [](const DeviceMesh& self) {
            return py::make_tuple(self.vector(), shape(self), self.names());
          },
          [](const py::tuple& state) {
            return DeviceMesh(state[0].cast<std::vector<int64_t>>(),
                              state[1].cast<std::vector<int64_t>>(), state[2].cast<Names>());
          }))
      .def("__repr__", &DeviceMesh::toString, py::pos_only())
      .def("__str__", &DeviceMesh::toString, py::pos_only());

  module.def("shard_tensor", &shard, py::arg("tensor"), py::arg("tv"),
             py::arg("device") = py::none(),
             "A device's part of a global tensor, as `tv` is sharded.");
}

}  // namespace meshfuse::python
