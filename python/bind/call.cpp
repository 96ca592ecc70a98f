// SPDX-License-Identifier: BSD-3-Clause
// Binding of Python arguments to the parameters of a registered op. Positional arguments are taken
// greedily: one that does not fit a parameter with a default is offered to the next parameter, so
// that sum(x, DataType.Float) and both argument orders of attention work. None fits every optional
// parameter; few arguments without a tensor therefore pass over the optional tensors
// (fewWithoutTensor).
#include "bind.h"

#include <algorithm>

namespace meshfuse::python {
namespace {

template <class T, class F>
std::optional<Arg> listOf(py::handle object, F&& element) {
  if (!isSequence(object)) return std::nullopt;
  std::vector<T> result;
  for (const py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
    const std::optional<T> value = element(item);
    if (!value) return std::nullopt;
    result.push_back(*value);
  }
  return Arg(std::move(result));
}

template <class T>
std::optional<Arg> asArg(const std::optional<T>& value) {
  return value ? std::optional<Arg>(Arg(*value)) : std::nullopt;
}

std::optional<TensorView*> tensorArg(Fusion& fusion, const std::string& param, py::handle object) {
  TensorView* tv = tensorIn(object);
  if (tv == nullptr) return std::nullopt;
  MESHFUSE_CHECK(tv->fusion() == &fusion, "The tensor ", at(tv), " given for '", param,
                 "' belongs to another definition. Define it in the one that uses it.");
  return tv;
}

std::optional<bool> boolIn(py::handle object) {
  if (!PyBool_Check(object.ptr())) return std::nullopt;
  return object.ptr() == Py_True;
}

std::optional<Arg> intList(py::handle object) {
  if (const auto one = intIn(object)) return Arg(std::vector<int64_t>{*one});
  return listOf<int64_t>(object, intIn);
}

/// A number is a size or an index like those that the definition makes itself.
std::optional<Scalar> sizeIn(Fusion& fusion, py::handle object) {
  if (const auto number = intIn(object)) return fusion.scalars().constant(*number);
  return scalarIn(fusion, object);
}

std::optional<Arg> tensorOrScalar(Fusion& fusion, const std::string& param, py::handle object) {
  if (const auto tv = tensorArg(fusion, param, object)) return Arg(*tv);
  return asArg(scalarIn(fusion, object));
}

std::optional<Arg> convert(Fusion& fusion, const Param& param, py::handle object) {
  if (object.is_none()) return param.has_default ? asArg<Arg>(param.default_value) : std::nullopt;
  switch (param.kind) {
    case ParamKind::Tensor:
    case ParamKind::OptTensor:
      return asArg(tensorArg(fusion, param.name, object));
    case ParamKind::TensorOrScalar:
      return tensorOrScalar(fusion, param.name, object);
    case ParamKind::TensorList:
      return listOf<TensorView*>(
          object, [&](py::handle item) { return tensorArg(fusion, param.name, item); });
    case ParamKind::Number:
      return asArg(scalarIn(fusion, object));
    case ParamKind::Int:
      return asArg(intIn(object));
    case ParamKind::Bool:
      return asArg(boolIn(object));
    case ParamKind::IntList:
      return intList(object);
    case ParamKind::BoolList:
      return listOf<bool>(object, boolIn);
    case ParamKind::ShapeList:
      return listOf<Scalar>(object, [&](py::handle item) { return sizeIn(fusion, item); });
    case ParamKind::DType:
      return py::isinstance<DataType>(object) ? asArg<Arg>(object.cast<DataType>()) : std::nullopt;
    case ParamKind::String:
      return py::isinstance<py::str>(object) ? asArg<Arg>(object.cast<std::string>())
                                             : std::nullopt;
  }
  return std::nullopt;
}

class Binder {
 public:
  Binder(Fusion& fusion, const OpInfo& info)
      : fusion_(fusion), params_(info.params), bound_(params_.size()) {}

  bool positional(PyObjects args, size_t undrawn) {
    const bool passes_over = fewWithoutTensor(args, undrawn);
    size_t place = 0;
    for (PyObject* arg : args) {
      while (passes_over && place < params_.size() && isOptional(params_[place])) ++place;
      while (place < params_.size() && !take(place, arg)) {
        if (!params_[place].has_default) return false;
        ++place;
      }
      if (place++ == params_.size()) return false;
    }
    return true;
  }

  bool named(PyObjects args, PyObject* names) {
    for (size_t i = 0; i < args.size(); ++i) {
      PyObject* key = PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i));
      const auto place = find(py::handle(key).cast<std::string_view>());
      if (!place || bound_[*place] || !take(*place, args[i])) return false;
    }
    return true;
  }

  /// All arguments, defaults filled in; nullopt when a required one is missing.
  std::optional<std::vector<Arg>> finish() {
    std::vector<Arg> args;
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!bound_[i] && !params_[i].has_default) return std::nullopt;
      if (bound_[i]) {
        args.push_back(std::move(*bound_[i]));
      } else {
        args.push_back(params_[i].default_value);
      }
    }
    return args;
  }

 private:
  static bool isOptional(const Param& param) { return param.kind == ParamKind::OptTensor; }

  /// Whether the arguments from the first optional tensor on are no tensors, and would all find
  /// their place among the other parameters; `undrawn` leaves out those that the library draws.
  bool fewWithoutTensor(PyObjects args, size_t undrawn) const {
    const auto first = std::ranges::find_if(params_, isOptional);
    const auto optional = static_cast<size_t>(std::ranges::count_if(params_, isOptional));
    const auto before = static_cast<size_t>(first - params_.begin());
    if (args.size() <= before || args.size() > undrawn - optional) return false;
    return std::ranges::none_of(args.subspan(before),
                                [](PyObject* arg) { return tensorIn(arg) != nullptr; });
  }

  bool take(size_t place, PyObject* arg) {
    bound_[place] = convert(fusion_, params_[place], arg);
    return bound_[place].has_value();
  }
  std::optional<size_t> find(std::string_view name) const {
    for (size_t i = 0; i < params_.size(); ++i) {
      const auto& aliases = params_[i].aliases;
      if (params_[i].name == name || std::ranges::find(aliases, name) != aliases.end()) return i;
    }
    return std::nullopt;
  }

  Fusion& fusion_;
  const std::vector<Param>& params_;
  std::vector<std::optional<Arg>> bound_;
};

py::object results(Fusion& fusion, const std::vector<Val>& values) {
  const auto owner = fusion.shared_from_this();
  if (values.size() == 1) return toPython(owner, values[0]);
  py::tuple tuple(values.size());
  for (size_t i = 0; i < values.size(); ++i) tuple[i] = toPython(owner, values[i]);
  return tuple;
}

std::string_view typeName(ParamKind kind) {
  switch (kind) {
    case ParamKind::Tensor:
      return "TensorView";
    case ParamKind::OptTensor:
      return "TensorView | None";
    case ParamKind::TensorOrScalar:
      return "TensorView | Scalar | complex";
    case ParamKind::TensorList:
      return "Sequence[TensorView]";
    case ParamKind::Number:
      return "Scalar | complex";
    case ParamKind::Int:
      return "int";
    case ParamKind::Bool:
      return "bool";
    case ParamKind::IntList:
      return "int | Sequence[int]";
    case ParamKind::BoolList:
      return "Sequence[bool]";
    case ParamKind::ShapeList:
      return "Sequence[int | Scalar]";
    case ParamKind::DType:
      return "DataType";
    case ParamKind::String:
      return "str";
  }
  return "object";
}

std::string reprOf(py::handle object) { return py::repr(object).cast<std::string>(); }

std::string invokedWith(PyObjects args, PyObject* names) {
  const size_t named = names == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(names));
  std::string text;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t first_named = args.size() - named;
    text += i == 0 ? "" : ", ";
    if (i == first_named) text += "kwargs: ";
    if (i >= first_named) {
      const auto key = static_cast<Py_ssize_t>(i - first_named);
      text += py::str(PyTuple_GET_ITEM(names, key)).cast<std::string>() + "=";
    }
    text += reprOf(args[i]);
  }
  return text;
}

py::object defaultValue(const Arg& arg) {
  return std::visit(
      [](const auto& value) -> py::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate> || std::is_same_v<T, Scalar> ||
                      std::is_same_v<T, TensorView*> || std::is_same_v<T, std::vector<Scalar>> ||
                      std::is_same_v<T, std::vector<TensorView*>>) {
          return py::none();
        } else {
          return py::cast(value);
        }
      },
      arg);
}

std::string defaultText(const Arg& arg) {
  if (const auto* type = std::get_if<DataType>(&arg)) {
    return "DataType." + std::string(pythonName(*type));
  }
  return reprOf(defaultValue(arg));
}

/// Body of every op function: the first argument is the Fusion or None for the current one.
PyObject* opBody(PyObject* self, PyObjects args, PyObject* names) {
  const auto& op = *static_cast<const OpDef*>(PyCapsule_GetPointer(self, nullptr));
  if (args.empty()) throw py::type_error(op.name() + "(): the definition is missing");
  auto* fusion = py::handle(args[0]).is_none() ? FusionGuard::getCurFusion()
                                               : py::handle(args[0]).cast<Fusion*>();
  MESHFUSE_CHECK(fusion != nullptr, op.name(), ": an op must be called from an initialized ",
                 "definition. Call it inside `with FusionDefinition() as fd:`.");
  return callOpOrThrow(*fusion, op, args.subspan(1), names).release().ptr();
}

PyObject* opEntry(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  return guarded(opBody, self, PyObjects(args, static_cast<size_t>(n + named)), names);
}

py::object makeFunction(const OpDef& op) {
  // Lives as long as the process, as the registry does.
  auto* method = new PyMethodDef{op.name().c_str(),
                                 // NOLINTNEXTLINE(bugprone-casting-through-void): METH_FASTCALL
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(opEntry)),
                                 METH_FASTCALL | METH_KEYWORDS, op.cachedInfo().doc.c_str()};
  const py::capsule self(&op, [](void*) {});
  return py::reinterpret_steal<py::object>(PyCFunction_NewEx(method, self.ptr(), nullptr));
}

py::dict describe(const OpDef& op) {
  py::list params;
  for (const Param& p : op.cachedInfo().params) {
    params.append(py::make_tuple(p.name, typeName(p.kind), p.has_default,
                                 defaultValue(p.default_value), p.aliases));
  }
  return py::dict(py::arg("name") = op.name(), py::arg("doc") = op.cachedInfo().doc,
                  py::arg("signature") = signatureText(op.cachedInfo()), py::arg("params") = params,
                  py::arg("results") = op.cachedInfo().results, py::arg("call") = makeFunction(op));
}

}  // namespace

std::string signatureText(const OpInfo& info) {
  std::string text = info.name + "(";
  for (const Param& p : info.params) {
    text += (&p == info.params.data() ? "" : ", ") + p.name + ": " + std::string(typeName(p.kind));
    if (p.has_default) text += " = " + defaultText(p.default_value);
  }
  return text + ")";
}

std::optional<py::object> tryCallOp(Fusion& fusion, const OpDef& op, PyObjects args,
                                    PyObject* names) {
  const size_t named = names == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(names));
  Binder binder(fusion, op.cachedInfo());
  const size_t undrawn = op.cachedInfo().params.size() - op.drawnParams().size();
  if (!binder.positional(args.first(args.size() - named), undrawn)) return std::nullopt;
  if (!binder.named(args.last(named), names)) return std::nullopt;
  auto bound = binder.finish();
  if (!bound) return std::nullopt;
  markCaller(fusion);
  return results(fusion, callOp(fusion, op, std::move(*bound)));
}

py::object callOpOrThrow(Fusion& fusion, const OpDef& op, PyObjects args, PyObject* names) {
  if (auto result = tryCallOp(fusion, op, args, names)) return std::move(*result);
  throw py::type_error(op.name() +
                       "(): incompatible function arguments. The following argument types are "
                       "supported:\n    1. " +
                       signatureText(op.cachedInfo()) +
                       "\n\nInvoked with: " + invokedWith(args, names));
}

void bindOps(py::module_& module) {
  module.def(
      "registered_ops",
      [] {
        py::list ops;
        for (const OpDef* op : registeredOps()) ops.append(describe(*op));
        return ops;
      },
      "Of every op: name, doc, signature, params (name, type, has a default, default, other "
      "names), "
      "names of results, and the function to call. The function's first argument is a Fusion, or "
      "None for the current one.");
}

}  // namespace meshfuse::python
