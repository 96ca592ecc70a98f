// SPDX-License-Identifier: BSD-3-Clause
// Scheduling methods of tensors. Each notes the caller's line first, for messages.
#include "bind.h"

namespace meshfuse::python {
namespace {

using Tv = std::shared_ptr<TensorView>;

/// Notes the caller and gives the tensor to be scheduled.
TensorView& from(const Tv& self) {
  markCaller(*self->fusion());
  return *self;
}

template <class Factor>
Tv split(const Tv& self, int64_t axis, Factor factor, bool inner_split) {
  from(self).split(axis, factor, inner_split);
  return self;
}

Tv splitByScalar(const Tv& self, int64_t axis, const ScalarHandle& factor, bool inner_split) {
  const auto scalar = scalarIn(*self->fusion(), py::cast(factor));
  return split(self, axis, *scalar, inner_split);
}

Tv merge(const Tv& self, int64_t outer, int64_t inner) {
  from(self).merge(outer, inner);
  return self;
}

Tv reorderMap(const Tv& self, const std::unordered_map<int64_t, int64_t>& old2new) {
  from(self).reorder(old2new);
  return self;
}

Tv reorderList(const Tv& self, const std::vector<int64_t>& permutation) {
  from(self).reorder(permutation);
  return self;
}

Tv rfactor(const Tv& self, const std::vector<int64_t>& axes) {
  return share(fusionOf(*self), from(self).rfactor(axes));
}

std::vector<IterDomain*> raw(const std::vector<std::shared_ptr<IterDomain>>& ids) {
  std::vector<IterDomain*> result;
  result.reserve(ids.size());
  for (const auto& id : ids) result.push_back(id.get());
  return result;
}

template <class Flags>
void setAllocationDomain(const Tv& self, const std::vector<std::shared_ptr<IterDomain>>& ids,
                         const Flags& contiguity) {
  from(self).setAllocationDomain(raw(ids), contiguity);
}

void setLoopDomain(const Tv& self, const std::vector<std::shared_ptr<IterDomain>>& ids) {
  from(self).setLoopDomain(raw(ids));
}

}  // namespace

void bindSchedule(TensorClass& tensor) {
  tensor
      .def(
          "axis",
          [](const Tv& self, int64_t index) { return share(fusionOf(*self), self->axis(index)); },
          py::arg("index"), "Loop axis, reductions counted; negatives count from the end.")
      .def("split", &split<int64_t>, py::arg("axis"), py::arg("factor"),
           py::arg("inner_split") = true,
           "Splits a loop axis in two; `factor` is the extent of the inner half, or of the outer "
           "one when inner_split is False.")
      .def("split", &splitByScalar, py::arg("axis"), py::arg("factor"),
           py::arg("inner_split") = true)
      .def(
          "outer_split",
          [](const Tv& self, int64_t axis, int64_t n) { return split(self, axis, n, false); },
          py::arg("axis"), py::arg("factor"), "Splits a loop axis; the outer half has `factor`.")
      .def(
          "inner_split",
          [](const Tv& self, int64_t axis, int64_t n) { return split(self, axis, n, true); },
          py::arg("axis"), py::arg("factor"), "Splits a loop axis; the inner half has `factor`.")
      .def("merge", &merge, py::arg("axis_o"), py::arg("axis_i"), "Merges two loop axes.")
      .def("reorder", &reorderMap, py::arg("old2new") = py::dict(), "Moves loop axes.")
      .def("reorder", &reorderList, py::arg("permutation"))
      .def("rfactor", &rfactor, py::arg("axes"),
           "Splits a reduction in two steps; returns the new producer.")
      .def(
          "set_device_mesh",
          [](const Tv& self, const DeviceMesh& mesh) { from(self).setDeviceMesh(mesh); },
          py::arg("mesh"))
      .def("set_loop_domain", &setLoopDomain, py::arg("new_loop_domain"))
      .def("set_allocation_domain", &setAllocationDomain<bool>, py::arg("new_allocation_domain"),
           py::arg("new_contiguity"), "Sets the order of axes in memory, outermost first.")
      .def("set_allocation_domain", &setAllocationDomain<Contiguity>,
           py::arg("new_allocation_domain"), py::arg("new_contiguity"))
      .def(
          "set_allocation_as_loop", [](const Tv& self) { from(self).setAllocationAsLoop(); },
          py::pos_only(), "Stores the tensor as its loop axes say, densely.")
      .def(
          "set_stride_order",
          [](const Tv& self, const std::vector<int64_t>& order, const std::string& what) {
            from(self).setStrideOrder(order, what);
          },
          py::arg("stride_order"), py::arg("what") = "set_stride_order");
}

}  // namespace meshfuse::python
