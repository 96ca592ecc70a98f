// SPDX-License-Identifier: BSD-3-Clause
// Fusion, FusionGuard, and the making of inputs.
#include "bind.h"

#include <meshfuse/ops/arith.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/math_text.h>

namespace meshfuse::python {
namespace {

using FusionPtr = std::shared_ptr<Fusion>;

/// A FusionGuard that Python holds; release() ends it early.
class GuardHandle {
 public:
  explicit GuardHandle(FusionPtr fusion) : fusion_(std::move(fusion)), guard_(fusion_.get()) {}
  void release() { guard_.reset(); }

 private:
  struct Holder : std::optional<FusionGuard> {
    explicit Holder(Fusion* fusion) : std::optional<FusionGuard>(std::in_place, fusion) {}
  };
  FusionPtr fusion_;
  Holder guard_;
};

std::vector<py::object> inputs(const FusionPtr& self) {
  std::vector<py::object> result;
  for (const Val& value : self->inputs()) result.push_back(toPython(self, value));
  return result;
}

std::vector<py::object> outputs(const FusionPtr& self) {
  std::vector<py::object> result;
  for (const FusionOutput& out : self->outputs()) result.push_back(toPython(self, out.value));
  return result;
}

/// One flag per output: its result goes into an input and is not returned.
std::vector<bool> hiddenOutputs(const Fusion& self) {
  std::vector<bool> result;
  for (const FusionOutput& out : self.outputs()) result.push_back(out.alias != nullptr);
  return result;
}

std::vector<std::shared_ptr<TensorView>> tensors(const FusionPtr& self) {
  return shareAll(self, self->allTvs());
}

std::shared_ptr<TensorView> defineTensor(const FusionPtr& self, const std::vector<int64_t>& shape,
                                         const std::variant<bool, Contiguity>& contiguity,
                                         DataType dtype, bool is_cpu,
                                         const std::vector<int64_t>& stride_order) {
  markCaller(*self);
  TensorViewBuilder builder;
  builder.shape(shape).dtype(dtype).strideOrder(stride_order);
  std::visit([&builder](const auto& flags) { builder.contiguity(flags); }, contiguity);
  TensorView* tv = builder.build(self.get());
  tv->setCpuScalar(is_cpu);
  return share(self, tv);
}

ScalarHandle constant(const FusionPtr& self, py::handle value, DataType dtype) {
  const auto number = numberIn(value);
  if (!number)
    throw py::type_error("define_scalar: the value is not a bool, int, float or complex");
  return {self, self->scalars().constant(exactValue(*number, dtype), dtype)};
}

void addOutput(const FusionPtr& self, py::handle value) {
  markCaller(*self);
  self->addOutput(valueIn(*self, value));
}

void addAliasedOutput(const FusionPtr& self, TensorView* output, TensorView* input) {
  MESHFUSE_CHECK(input->isFusionInput(), "add_output: ", at(input), ", the alias of ",
                 output->name(), ", is not an input of the definition. Alias an input.");
  markCaller(*self);
  self->aliasOutputToInput(output, input);
}

}  // namespace

void bindFusion(py::module_& module) {
  // pos_only(), where a function names no argument, keeps None from being taken for `self`.
  py::class_<Fusion, FusionPtr>(module, "Fusion")
      .def(py::init<>())
      .def("inputs", &inputs, py::pos_only())
      .def("outputs", &outputs, py::pos_only())
      .def("hidden_outputs", &hiddenOutputs, py::pos_only())
      .def("tensors", &tensors, py::pos_only())
      .def(
          "vals", [](const FusionPtr& self) { return shareAll(self, self->usedTvs()); },
          py::pos_only())
      .def(
          "exprs", [](const FusionPtr& self) { return shareAll(self, self->exprs()); },
          py::pos_only())
      .def("add_input", [](Fusion& self, py::handle value) { self.addInput(valueIn(self, value)); })
      .def("add_output", &addOutput, py::arg("output"))
      .def("add_output", &addAliasedOutput, py::arg("output"), py::arg("alias_input"))
      .def("define_tensor", &defineTensor, py::arg("shape"), py::arg("contiguity"),
           py::arg("dtype"), py::arg("is_cpu"), py::arg("stride_order"))
      .def("constant", &constant, py::arg("value"), py::arg("dtype"))
      .def(
          "symbol",
          [](const FusionPtr& self, DataType dtype) {
            return ScalarHandle{self, self->scalars().symbol(dtype)};
          },
          py::pos_only())
      .def_property(
          "uneven", [](const Fusion& self) { return self.uneven; },
          [](Fusion& self, bool uneven) {
            self.uneven = uneven;
            self.bumpVersion();
          })
      .def_property(
          "reduce_dtype", [](const Fusion& self) { return self.reduce_dtype; },
          [](Fusion& self, DataType type) {
            MESHFUSE_CHECK(type == DataType::Null || isFloating(type), "reduce_dtype: ", type,
                           " is not a floating type. Give DataType.Float or DataType.Double.");
            self.reduce_dtype = type;
            self.bumpVersion();
          })
      .def_property(
          "strict", [](const Fusion& self) { return self.strict; },
          [](Fusion& self, bool strict) {
            self.strict = strict;
            self.bumpVersion();
          })
      .def("clone", [](const Fusion& self) { return FusionPtr(self.clone()); })
      .def("ir", &irText, py::pos_only())
      .def("print_math", &mathText, py::arg("from_outputs_only") = true)
      .def("__eq__", [](const Fusion& self, const Fusion& other) { return self.sameAs(other); })
      .def("__eq__", [](const Fusion&, const py::object&) { return false; })
      .def("__hash__", [](const Fusion& self) { return std::hash<const void*>()(&self); })
      .def("__str__", [](const Fusion& self) { return mathText(self, true); });

  py::class_<GuardHandle>(module, "FusionGuard")
      .def(py::init<FusionPtr>(), py::arg("fusion").none(false))
      .def("release", &GuardHandle::release)
      .def_static("get_cur_fusion", [] {
        Fusion* fusion = FusionGuard::getCurFusion();
        return fusion == nullptr ? FusionPtr() : fusion->shared_from_this();
      });
}

}  // namespace meshfuse::python
