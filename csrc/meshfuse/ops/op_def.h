// SPDX-License-Identifier: BSD-3-Clause
// What an op is: its name and parameters, its factors, and its evaluation on local tensors. Shape
// inference, checks, sharding analysis, the Python binding and the docs follow from these.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace at {
class Tensor;
}

namespace meshfuse {

enum class ParamKind : uint8_t {
  Tensor,
  OptTensor,
  TensorOrScalar,
  TensorList,
  Number,
  Int,
  Bool,
  IntList,
  BoolList,
  ShapeList,
  DType,
  String
};

struct Param {
  std::string name;
  ParamKind kind = ParamKind::Tensor;
  bool has_default = false;
  Arg default_value;
  std::vector<std::string> aliases;  // other keywords for it
};
Param tensor(std::string name);
Param optTensor(std::string name);  // default: absent
Param tensorOrScalar(std::string name);
Param attr(std::string name, ParamKind kind);  // required
Param attr(std::string name, ParamKind kind, Arg default_value,
           std::vector<std::string> aliases = {});

struct OpInfo {
  std::string name;
  std::vector<Param> params;
  std::string doc;
  bool is_view = false;  // the local result may share memory with the first tensor
  bool creates = false;  // makes tensors from scalars alone
  std::vector<std::string> results = {"out"};  // names of the results, for stubs and docs
};

/// Sizes and strides of a local tensor, in elements, in order of its logical axes.
struct Layout {
  std::vector<int64_t> sizes, strides;
  bool operator==(const Layout&) const = default;
  /// Whether the last axis is innermost and nothing lies between the elements.
  bool isRowMajor() const {
    int64_t expected = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      if (sizes[i] > 1 && strides[i] != expected) return false;
      expected *= sizes[i];
    }
    return true;
  }
};

/// A call of an op, at definition (symbolic) and at evaluation (values known).
class OpCall {
 public:
  OpCall(Fusion& fusion, const OpDef& op, std::vector<Arg> args);
  /// The call that `expr` is. Keeps no copy of the arguments: `expr` must outlive it.
  explicit OpCall(const Expr& expr);

  Fusion& fusion() const { return *fusion_; }
  const OpDef& op() const { return *op_; }
  const std::vector<Arg>& args() const { return *args_; }
  /// Tensor arguments in order of the parameters (lists flattened).
  const TensorViews& tensors() const { return tensors_; }

  bool has(size_t param) const { return !std::holds_alternative<std::monostate>(args()[param]); }
  bool isTensor(size_t param) const { return std::holds_alternative<TensorView*>(args()[param]); }
  TensorView* tensor(size_t param) const { return std::get<TensorView*>(args()[param]); }
  /// Number of axes (reductions not counted) of the tensor at `param`.
  int64_t ndim(size_t param) const { return tensor(param)->ndim(); }
  bool flag(size_t param) const { return std::get<bool>(args()[param]); }
  int64_t integer(size_t param) const { return std::get<int64_t>(args()[param]); }
  const std::string& text(size_t param) const { return std::get<std::string>(args()[param]); }
  DataType type(size_t param) const { return std::get<DataType>(args()[param]); }
  const std::vector<int64_t>& ints(size_t param) const {
    return std::get<std::vector<int64_t>>(args()[param]);
  }
  const std::vector<bool>& bools(size_t param) const {
    return std::get<std::vector<bool>>(args()[param]);
  }
  Scalar scalar(size_t param) const { return std::get<Scalar>(args()[param]); }

  // ---- at evaluation
  /// Value of the scalar argument at `param`.
  const ScalarValue& value(size_t param) const { return values_[param]; }
  /// Values of the list of integer scalars at `param`.
  const std::vector<int64_t>& integers(size_t param) const { return integers_[param]; }
  /// Places in the global tensor of the elements along `axis` of result `i` that `device` holds;
  /// for ops that ask for them (OpDef::usesPositions).
  std::vector<int64_t> positions(size_t i, int64_t axis, int64_t device) const {
    return places_->positions(i, axis, device);
  }
  /// Sizes of the whole of result `i`; for the same ops.
  const std::vector<int64_t>& globalSizes(size_t i) const { return places_->global_sizes[i]; }
  /// Where results are made when no operand says it: torch's number of the kind of device, and the
  /// device of that kind, -1 for its default.
  int8_t deviceType() const { return device_type_; }
  int8_t deviceIndex() const { return device_index_; }
  /// Layout that result `i` must have on this device. An op may compute straight into it.
  const Layout& want(size_t i) const { return *want_[i]; }
  DataType resultType(size_t i) const { return result_types_[i]; }
  /// Whether 16-bit operands are not to be widened, since the result is cast back to their type.
  bool isNarrow() const { return narrow_; }

  /// Looks up the scalars of argument `param`; false when a value is not known (yet).
  bool bindScalar(size_t param, const std::function<std::optional<ScalarValue>(Scalar)>& lookup);

 private:
  friend class PlanBuilder;
  friend class Executor;
  /// What ops that ask for positions are told of the whole results.
  struct Places {
    std::function<std::vector<int64_t>(size_t, int64_t, int64_t)> positions;
    std::vector<std::vector<int64_t>> global_sizes;
  };
  ScalarValue& valueOf(size_t param);

  Fusion* fusion_;
  const OpDef* op_;
  std::shared_ptr<const std::vector<Arg>> args_;
  TensorViews tensors_;
  std::vector<ScalarValue> values_;  // by parameter, at evaluation; as many as are needed
  std::vector<std::vector<int64_t>> integers_;
  std::shared_ptr<const Places> places_;
  int8_t device_type_ = 0, device_index_ = -1;
  bool narrow_ = false;
  SmallVector<const Layout*, 1> want_;  // in the plan
  SmallVector<DataType, 8> result_types_;
};

/// Local tensors of one evaluation: the tensor arguments in order, and the places of the results.
class Operands {
 public:
  Operands(at::Tensor* slots, std::span<const int32_t> in, std::span<const int32_t> out,
           int64_t device)
      : slots_(slots), in_(in), out_(out), device_(device) {}
  size_t size() const { return in_.size(); }
  /// The mesh's number of the device that evaluates.
  int64_t device() const { return device_; }
  const at::Tensor& operator[](size_t i) const;
  at::Tensor& out(size_t i = 0) const;

 private:
  at::Tensor* slots_;
  std::span<const int32_t> in_, out_;
  int64_t device_;
};

struct OpDef {
  virtual ~OpDef() = default;
  /// Name, parameters, doc. Called once, at registration.
  virtual OpInfo info() const = 0;
  /// Checks of a user's call beyond those of factors(). Throws Error.
  virtual void validate(const OpCall& call) const;
  /// Loops and the axes they run over; checks of ranks and sizes known at definition.
  virtual FactorMap factors(const OpCall& call) const = 0;
  /// Computes the results of local tensors: sets every operands.out(i). Gradients are off.
  virtual void evaluate(const OpCall& call, const Operands& operands) const = 0;
  /// Element type of the results. Default: the type of the first tensor.
  virtual DataType dtype(const OpCall& call) const;
  /// Element type of result `i`, for ops whose results differ in that. Default: dtype().
  virtual DataType resultType(const OpCall& call, size_t i) const;
  /// For ops that are made of other ops: adds these to the definition and returns the results.
  /// Default: none, the op itself is added.
  virtual std::vector<Val> compose(const OpCall& call) const;
  /// Whether evaluate() asks for OpCall::positions.
  virtual bool usesPositions() const { return false; }
  /// Integer parameters that, where the call leaves them out, get a value drawn from torch's
  /// default CPU generator at every execution.
  virtual std::vector<size_t> drawnParams() const { return {}; }
  /// How partial results over a Reduction factor combine.
  virtual ReduceKind reduceKind() const { return ReduceKind::Sum; }
  /// Operands in the order in which propagation asks them. Default: most device axes first.
  virtual std::vector<int> referenceOrder(const OpCall& call) const;
  /// Value on scalars alone, for ops that have one (pointwise); absent otherwise.
  virtual Scalar onScalars(const OpCall& call) const;
  /// Last word on the new outputs, e.g. to set a memory order.
  virtual void finish(const OpCall& call, std::span<TensorView* const> outputs) const;
  /// Whether every factor is Parallel with axes kept in order, so that the output of an op with no
  /// layout of its own follows its operand's memory order.
  virtual bool isPointwise() const { return false; }
  /// The result is the operand; with another division over the mesh it is a communication.
  virtual bool isIdentity() const { return false; }
  /// The result is the operand in another data type.
  virtual bool isCast() const { return false; }
  /// Of two 16-bit tensors, torch's op computes in Float and rounds the result once; evaluate()
  /// then leaves them as they are where the call is narrow.
  virtual bool roundsOnce() const { return false; }
  /// For ops that add an operand to a sum of products: the operation without that operand, and the
  /// finished result made from it; empty for other ops.
  virtual std::vector<TensorView*> withoutAddends(const OpCall& call) const;

  const OpInfo& cachedInfo() const { return info_; }
  const std::string& name() const { return info_.name; }

 private:
  friend const OpDef& registerOp(std::unique_ptr<OpDef>);
  OpInfo info_;
};

/// Adds an op to the registry; throws InternalError when the name is taken.
const OpDef& registerOp(std::unique_ptr<OpDef> op);
/// The op of that name, or nullptr.
const OpDef* findOp(std::string_view name);
/// All ops, by name.
std::vector<const OpDef*> registeredOps();

/// Checks the arguments (one per parameter, defaults filled in), infers the results and adds the
/// operation to the Fusion. Calls on scalars alone give a Scalar. Throws Error.
std::vector<Val> callOp(Fusion& fusion, const OpDef& op, std::vector<Arg> args);
/// The same in the current Fusion, by name.
std::vector<Val> callOp(std::string_view name, std::vector<Arg> args);

/// An op that is a composition of others (OpDef::compose) and never stands in a program itself.
struct ComposedOp : OpDef {
  FactorMap factors(const OpCall& call) const final;
  void evaluate(const OpCall& call, const Operands& operands) const final;
};

/// Builds the factor map of a formula such as "...mk,...kn->...mn" for the tensor arguments of
/// `call`, in order; several results are separated by commas. A letter is a factor; "..." are axes
/// aligned from the right that broadcast; a letter absent from the results is a Reduction; "k!" is
/// Blocking. Axes of static size 1 map to no factor. Reduction axes are appended to the (single)
/// result in order of appearance. Throws Error when two constant extents of one factor differ.
FactorMap einsum(const OpCall& call, std::string_view formula);

/// Extents that a factor map has found equal only if sizes turn out so; collected while factors()
/// runs, and stored on the Expr.
class ConstraintScope {
 public:
  ConstraintScope();
  ~ConstraintScope();
  std::vector<Constraint> take() { return std::move(list_); }
  static void add(const Constraint& c);

 private:
  std::vector<Constraint> list_;
  ConstraintScope* outer_;
};

/// Builder under einsum(): gathers per factor the axes of operands that it runs over, checks that
/// their extents agree, and lays out the results.
class FactorBuilder {
 public:
  explicit FactorBuilder(const OpCall& call);
  /// A factor over one axis per operand (-1: not in that operand). Static size-1 axes are left out;
  /// returns nullopt when nothing else is left (the result axis is then a broadcast).
  std::optional<int32_t> factor(FactorKind kind, std::span<const int64_t> axes, std::string label);
  /// A factor of a given extent that is in no operand yet.
  int32_t freshFactor(FactorKind kind, Scalar extent, std::string label);
  /// The factors of an axis of an operand that runs over several, major first.
  void operandAxis(size_t operand, int64_t axis, const std::vector<int32_t>& factors);
  /// Begins the next result; the first one is begun already.
  void nextResult() { results_.emplace_back(); }
  /// Appends an axis to the result begun last.
  void resultAxis(std::optional<int32_t> factor);
  void resultAxis(const std::vector<int32_t>& factors);
  FactorMap build();

 private:
  using FactorList = SmallVector<int32_t, 2>;  // of one axis
  const OpCall& call_;
  std::vector<std::vector<FactorList>> operands_;
  std::vector<std::vector<FactorList>> results_{1};
  FactorMap map_;
};

}  // namespace meshfuse

/// Registers an op kind at load time.
#define MESHFUSE_REGISTER_OP(Type)                                                    \
  static const ::meshfuse::OpDef* const meshfuse_registered_##Type [[maybe_unused]] = \
      &::meshfuse::registerOp(std::make_unique<Type>())
