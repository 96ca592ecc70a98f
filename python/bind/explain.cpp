// SPDX-License-Identifier: BSD-3-Clause
// The facts that meshfuse.Explanation shows, as dicts.
#include "bind.h"

#include <meshfuse/plan/explain.h>

namespace meshfuse::python {
namespace {

/// A tensor axis, "partial", or None for whole.
py::object placeOf(const AxisSharding& sharding) {
  if (sharding.partial) return py::str("partial");
  if (sharding.axis < 0) return py::none();
  return py::int_(sharding.axis);
}

py::object orNone(const std::string& text) {
  return text.empty() ? py::object(py::none()) : py::object(py::str(text));
}

py::dict tensorDict(const TensorFacts& facts) {
  py::dict sharding, origins;
  for (const AxisSharding& axis : facts.sharding) {
    const py::str key{std::string(pythonName(axis.mesh_axis))};
    sharding[key] = placeOf(axis);
    if (!axis.from.empty()) origins[key] = py::make_tuple(axis.from, orNone(axis.factor));
  }
  return py::dict(py::arg("name") = facts.name, py::arg("mesh") = orNone(facts.mesh),
                  py::arg("declared") = facts.declared, py::arg("line") = orNone(facts.line),
                  py::arg("made_at") = orNone(facts.made_at),
                  py::arg("mesh_from") = orNone(facts.mesh_from), py::arg("sharding") = sharding,
                  py::arg("origins") = origins);
}

py::dict communicationDict(const CommunicationFacts& facts) {
  return py::dict(
      py::arg("kind") = facts.kind, py::arg("tensor") = facts.tensor, py::arg("op") = facts.op,
      py::arg("mesh_axis") = std::string(pythonName(facts.mesh_axis)),
      py::arg("mesh_axis_name") = orNone(facts.mesh_axis_name), py::arg("teams") = facts.teams,
      py::arg("sent") = facts.sent, py::arg("before") = placeOf(facts.before),
      py::arg("after") = placeOf(facts.after), py::arg("bytes") = facts.bytes,
      py::arg("reason") = facts.reason, py::arg("lines") = facts.lines);
}

py::dict explainFusion(
    const Fusion& fusion,
    const std::vector<std::tuple<std::string, std::vector<int64_t>, bool>>& sizes) {
  std::vector<KnownSize> known;
  known.reserve(sizes.size());
  for (const auto& [name, values, is_shape] : sizes) known.push_back({name, values, is_shape});
  const ExplanationFacts facts = [&] {
    const py::gil_scoped_release other_threads_may_run;
    return explain(fusion, known);
  }();
  py::list tensors, communications;
  for (const TensorFacts& tensor : facts.tensors) tensors.append(tensorDict(tensor));
  for (const CommunicationFacts& c : facts.communications) {
    communications.append(communicationDict(c));
  }
  return py::dict(py::arg("tensors") = tensors, py::arg("communications") = communications);
}

}  // namespace

void bindExplain(py::module_& module) {
  module.def("explain", &explainFusion, py::arg("fusion"), py::arg("sizes"),
             "Facts of tensors and communications; sizes are (name, sizes, is_shape).");
}

}  // namespace meshfuse::python
