// SPDX-License-Identifier: BSD-3-Clause
// Python's operators on tensors and scalars: each is a call of a registered op.
#include "bind.h"

#include <array>

namespace meshfuse::python {
namespace {

struct Operator {
  const char* method;
  const char* op;
  bool reflected = false;
};
constexpr Operator kBinary[] = {
    {"__add__", "add"},
    {"__radd__", "add", true},
    {"__sub__", "sub"},
    {"__rsub__", "sub", true},
    {"__mul__", "mul"},
    {"__rmul__", "mul", true},
    {"__truediv__", "div"},
    {"__rtruediv__", "div", true},
    {"__pow__", "pow"},
    {"__rpow__", "pow", true},
    {"__floordiv__", "floor_divide"},
    {"__rfloordiv__", "floor_divide", true},
    {"__mod__", "mod"},
    {"__rmod__", "mod", true},
    {"__lt__", "lt"},
    {"__le__", "le"},
    {"__gt__", "gt"},
    {"__ge__", "ge"},
    {"__and__", "bitwise_and"},
    {"__rand__", "bitwise_and", true},
    {"__or__", "bitwise_or"},
    {"__ror__", "bitwise_or", true},
    {"__xor__", "bitwise_xor"},
    {"__rxor__", "bitwise_xor", true},
    {"__lshift__", "bitwise_left_shift"},
    {"__rlshift__", "bitwise_left_shift", true},
    {"__rshift__", "bitwise_right_shift"},
    {"__rrshift__", "bitwise_right_shift", true},
};
constexpr Operator kUnary[] = {
    {"__neg__", "neg"}, {"__abs__", "abs"}, {"__invert__", "bitwise_not"}};

Fusion& fusionIn(py::handle object) {
  if (const TensorView* tv = tensorIn(object)) return *tv->fusion();
  return *object.cast<const ScalarHandle&>().fusion;
}

py::object notImplemented() { return py::reinterpret_borrow<py::object>(Py_NotImplemented); }

py::object call(const char* name, PyObjects operands, Fusion& fusion) {
  const OpDef* op = findOp(name);
  if (op == nullptr) return notImplemented();
  MESHFUSE_CHECK(FusionGuard::getCurFusion() == &fusion, name,
                 ": Attempting to add to a completed definition. Write the operation inside the "
                 "`with` block or the definition() of its operands.");
  return tryCallOp(fusion, *op, operands, nullptr).value_or(notImplemented());
}

py::object binary(const Operator& which, const py::object& self, const py::object& other) {
  std::array<PyObject*, 2> operands = {self.ptr(), other.ptr()};
  if (which.reflected) std::swap(operands[0], operands[1]);
  return call(which.op, operands, fusionIn(self));
}

/// Tensors compare by identity; a tensor with a number or a scalar is an operation.
py::object compare(const char* op, bool same, const py::object& self, const py::object& other) {
  if (!tensorIn(other) && !other.is_none()) return binary({nullptr, op}, self, other);
  return py::bool_((self.cast<TensorView*>() == tensorIn(other)) == same);
}

void add(const py::object& cls, const char* name, const py::cpp_function& function) {
  cls.attr(name) = function;
}

}  // namespace

void bindOperators(TensorClass& tensor, const py::object& scalar) {
  for (const py::object& cls : {py::object(tensor), scalar}) {
    for (const Operator& which : kBinary) {
      add(cls, which.method,
          py::cpp_function([&which](const py::object& self,
                                    const py::object& other) { return binary(which, self, other); },
                           py::name(which.method), py::is_method(cls), py::is_operator()));
    }
    for (const Operator& which : kUnary) {
      add(cls, which.method,
          py::cpp_function(
              [&which](const py::object& self) {
                PyObject* const operand = self.ptr();
                return call(which.op, PyObjects(&operand, 1), fusionIn(self));
              },
              py::name(which.method), py::is_method(cls)));
    }
  }
  tensor
      .def("__eq__",
           [](const py::object& a, const py::object& b) { return compare("eq", true, a, b); })
      .def("__ne__",
           [](const py::object& a, const py::object& b) { return compare("ne", false, a, b); });
  scalar.attr("__eq__") = py::cpp_function(
      [](const ScalarHandle& a, const py::object& b) {
        return py::isinstance<ScalarHandle>(b) &&
               b.cast<const ScalarHandle&>().fusion == a.fusion &&
               b.cast<const ScalarHandle&>().scalar == a.scalar;
      },
      py::name("__eq__"), py::is_method(scalar));
}

}  // namespace meshfuse::python
