// SPDX-License-Identifier: BSD-3-Clause
// Tensors, their axes and operations in Python.
#include "bind.h"

#include <meshfuse/ir/printer.h>
#include <meshfuse/text/ir_text.h>

namespace meshfuse::python {
namespace {

using Tv = std::shared_ptr<TensorView>;

std::vector<ScalarHandle> shape(const Tv& self) {
  std::vector<ScalarHandle> sizes;
  for (IterDomain* id : self->getLogicalDomain()) {
    if (!id->isReduction()) sizes.push_back({fusionOf(*self), id->getMaybeExpandedExtent()});
  }
  return sizes;
}

ScalarHandle size(const Tv& self, int64_t dim) {
  const auto sizes = shape(self);
  const auto n = static_cast<int64_t>(sizes.size());
  const int64_t place = dim < 0 ? dim + n : dim;
  MESHFUSE_CHECK(place >= 0 && place < n, "size: Tried to access out of boundary index ",
                 AtAxis{dim}, " of ", at(self.get()), ". total index: ", n, ".");
  return sizes[static_cast<size_t>(place)];
}

std::string domainString(const DomainHandle& self) { return domainText(self.tensor.get()); }

std::string scalarString(const ScalarHandle& self) { return extentText(*self.fusion, self.scalar); }

ScalarHandle extent(const std::shared_ptr<IterDomain>& self) {
  return {fusionOf(*self->tensor()), self->extent()};
}

void parallelizeNamed(IterDomain& self, const std::string& name) {
  const DeviceMesh& mesh = self.tensor()->getDeviceMesh();
  const auto type = mesh.axisNamed(name);
  MESHFUSE_CHECK(type.has_value(), "parallelize: ", mesh.toString(), " of ", at(self.tensor()),
                 " has no axis named '", name,
                 "'. Set a mesh whose names=(...) hold that name first, or use ParallelType.");
  markCaller(*self.tensor()->fusion());
  self.parallelize(*type);
}

std::shared_ptr<Fusion> fusionOfExpr(const Expr& expr) {
  return fusionOf(expr.outputs().empty() ? *expr.inputs().at(0) : *expr.outputs()[0]);
}

/// The split or merge that made an axis.
struct AxisTransform {
  std::shared_ptr<Fusion> fusion;
  TensorView* tensor;
  Transform transform;

  std::vector<std::shared_ptr<IterDomain>> axes(const int32_t (&list)[2]) const {
    std::vector<std::shared_ptr<IterDomain>> result;
    for (const int32_t i : list) {
      if (i >= 0) result.push_back(share(fusion, tensor->domain().id(i)));
    }
    return result;
  }
  auto inputs() const { return axes(transform.in); }
  auto outputs() const { return axes(transform.out); }
};
struct AxisSplit : AxisTransform {};
struct AxisMerge : AxisTransform {};

std::string transformText(const AxisTransform& self) {
  const auto list = [](const std::vector<std::shared_ptr<IterDomain>>& axes) {
    std::string text;
    for (const auto& id : axes) text += (text.empty() ? "" : ", ") + toString(id.get());
    return text;
  };
  const bool split = self.transform.kind == Transform::Split;
  return (split ? "Split: " : "Merge: ") + list(self.inputs()) + " -> " + list(self.outputs());
}

py::object axisDefinition(const std::shared_ptr<IterDomain>& self) {
  TensorView* tensor = self->tensor();
  const Transform* transform = tensor->domain().definition(self->index());
  if (transform == nullptr) return py::none();
  const AxisTransform made{fusionOf(*tensor), tensor, *transform};
  if (transform->kind == Transform::Split) return py::cast(AxisSplit{made});
  return py::cast(AxisMerge{made});
}

std::shared_ptr<IterDomain> axisAt(const std::vector<std::shared_ptr<IterDomain>>& axes, size_t i) {
  if (i >= axes.size()) {
    throw py::index_error("index " + std::to_string(i) + " is out of range: there are " +
                          std::to_string(axes.size()) + " axes.");
  }
  return axes[i];
}

template <class T>
void bindTransform(py::module_& module, const char* name) {
  py::class_<T>(module, name)
      .def("inputs", [](const T& self) { return self.inputs(); })
      .def("outputs", [](const T& self) { return self.outputs(); })
      .def("input", [](const T& self, size_t i) { return axisAt(self.inputs(), i); })
      .def("output", [](const T& self, size_t i) { return axisAt(self.outputs(), i); })
      .def("__str__", [](const T& self) { return transformText(self); })
      .def("__repr__", [](const T& self) { return transformText(self); });
}

TensorView* operandAt(const std::vector<TensorView*>& list, size_t i) {
  if (i >= list.size()) {
    throw py::index_error("index " + std::to_string(i) + " is out of range: there are " +
                          std::to_string(list.size()) + " tensors.");
  }
  return list[i];
}

}  // namespace

TensorClass bindIr(py::module_& module) {
  // pos_only(), where a function names no argument, keeps None from being taken for `self`.
  TensorClass tensor(module, "TensorView");
  tensor.def_property_readonly("ndim", &TensorView::ndim)
      .def_property_readonly("index", &TensorView::id)
      .def_property_readonly("name", &TensorView::name)
      .def("dtype", &TensorView::dtype, py::pos_only())
      .def("shape", &shape, py::pos_only())
      .def("size", &size, py::arg("dim"))
      .def(
          "domain", [](const Tv& self) { return DomainHandle{self}; }, py::pos_only())
      .def(
          "get_logical_domain",
          [](const Tv& self) { return shareAll(fusionOf(*self), self->getLogicalDomain()); },
          py::pos_only())
      .def(
          "get_loop_domain",
          [](const Tv& self) { return shareAll(fusionOf(*self), self->getLoopDomain()); },
          py::pos_only())
      .def(
          "get_root_domain",
          [](const Tv& self) { return shareAll(fusionOf(*self), self->getRootDomain()); },
          py::pos_only())
      .def(
          "get_allocation_domain",
          [](const Tv& self) { return shareAll(fusionOf(*self), self->getAllocationDomain()); },
          py::pos_only())
      .def("get_contiguity", &TensorView::getContiguity, py::pos_only())
      .def("has_root", &TensorView::hasRoot, py::pos_only())
      .def("has_allocation", &TensorView::hasAllocation, py::pos_only())
      .def("has_reduction", &TensorView::hasReduction, py::pos_only())
      .def("has_device_mesh", &TensorView::hasDeviceMesh, py::pos_only())
      .def("get_device_mesh", &TensorView::getDeviceMesh, py::pos_only(),
           py::return_value_policy::copy)
      .def("is_symbolic", [](const TensorView&) { return true; })
      .def("is_tensor", [](const TensorView&) { return true; })
      .def("is_cpu_scalar", &TensorView::isCpuScalar, py::pos_only())
      .def("is_fusion_input", &TensorView::isFusionInput, py::pos_only())
      .def("is_fusion_output", &TensorView::isFusionOutput, py::pos_only())
      .def(
          "definition", [](const Tv& self) { return share(fusionOf(*self), self->definition()); },
          py::pos_only())
      .def(
          "uses", [](const Tv& self) { return shareAll(fusionOf(*self), self->uses()); },
          py::pos_only())
      .def("fusion", [](const TensorView& self) { return fusionOf(self); })
      .def("__hash__", [](const TensorView& self) { return std::hash<const void*>()(&self); })
      .def("__str__", [](const TensorView& self) { return toString(&self); })
      .def("__repr__", [](const TensorView& self) { return toString(&self); });

  py::class_<DomainHandle>(module, "TensorDomain")
      .def("__str__", &domainString, py::pos_only())
      .def("__repr__", &domainString, py::pos_only());

  py::class_<IterDomain, std::shared_ptr<IterDomain>>(module, "IterDomain")
      .def("extent", &extent, py::pos_only())
      .def("is_reduction", &IterDomain::isReduction, py::pos_only())
      .def("is_broadcast", &IterDomain::isBroadcast, py::pos_only())
      .def("is_device_dim", &IterDomain::isDeviceDim, py::pos_only())
      .def("get_parallel_type", &IterDomain::getParallelType, py::pos_only())
      .def("definition", &axisDefinition, py::pos_only(),
           "The Split or Merge that made the axis, or None.")
      .def(
          "parallelize",
          [](IterDomain& self, ParallelType type) {
            markCaller(*self.tensor()->fusion());
            self.parallelize(type);
          },
          py::arg("parallel_type"))
      .def("parallelize", &parallelizeNamed, py::arg("mesh_axis"))
      .def("__hash__", [](const IterDomain& self) { return std::hash<const void*>()(&self); })
      .def("__eq__", [](const IterDomain& self, const IterDomain& o) { return &self == &o; })
      .def("__eq__", [](const IterDomain&, const py::object&) { return false; })
      .def("__str__", [](const IterDomain& self) { return toString(&self); })
      .def("__repr__", [](const IterDomain& self) { return toString(&self); });

  bindTransform<AxisSplit>(module, "Split");
  bindTransform<AxisMerge>(module, "Merge");

  py::class_<Expr, std::shared_ptr<Expr>>(module, "Expr")
      .def_property_readonly("op", [](const Expr& self) { return self.op().name(); })
      .def("input", [](const Expr& self,
                       size_t i) { return share(fusionOfExpr(self), operandAt(self.inputs(), i)); })
      .def("output",
           [](const Expr& self, size_t i) {
             return share(fusionOfExpr(self), operandAt(self.outputs(), i));
           })
      .def("inputs", [](const Expr& self) { return shareAll(fusionOfExpr(self), self.inputs()); })
      .def("outputs", [](const Expr& self) { return shareAll(fusionOfExpr(self), self.outputs()); })
      .def("__hash__", [](const Expr& self) { return std::hash<const void*>()(&self); })
      .def("__eq__", [](const Expr& self, const Expr& o) { return &self == &o; })
      .def("__eq__", [](const Expr&, const py::object&) { return false; })
      .def("__str__", [](const Expr& self) { return toString(&self); })
      .def("__repr__", [](const Expr& self) { return toString(&self); });
  return tensor;
}

void bindScalar(py::module_& module) {
  py::class_<ScalarHandle>(module, "Scalar")
      .def("dtype",
           [](const ScalarHandle& self) { return self.fusion->scalars().dtype(self.scalar); })
      .def("is_symbolic",
           [](const ScalarHandle& self) { return !self.fusion->scalars().isConst(self.scalar); })
      .def("is_tensor", [](const ScalarHandle&) { return false; })
      .def("definition", [](const ScalarHandle&) { return py::none(); })
      .def("uses", [](const ScalarHandle&) { return py::list(); })
      .def("__hash__",
           [](const ScalarHandle& self) {
             return std::hash<const void*>()(self.fusion.get()) ^
                    static_cast<size_t>(self.scalar.id);
           })
      .def("__str__", &scalarString)
      .def("__repr__", &scalarString);
}

}  // namespace meshfuse::python
