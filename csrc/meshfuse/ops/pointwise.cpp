// SPDX-License-Identifier: BSD-3-Clause
// Type rules and broadcasting of pointwise ops, and the ops that rows of tables stand for.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/integer_division.h>
#include <meshfuse/ops/pointwise.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

namespace meshfuse {
namespace {

using at::Tensor;

/// Operand `x` in the type to compute in: 16-bit and 8-bit floats are widened first.
Tensor widened(const Tensor& x, TypeRule rule) {
  if (rule != TypeRule::Arithmetic && rule != TypeRule::Float) return x;
  const auto type = x.scalar_type();
  const bool narrow = at::isReducedFloatingType(type) || c10::isFloat8Type(type);
  return narrow ? x.to(at::kFloat) : x;
}

struct UnaryOp final : PointwiseOp {
  explicit UnaryOp(const UnaryRow& table_row) : row(table_row) {}
  OpInfo info() const override {
    return {.name = row.name,
            .params = {tensorOrScalar("arg")},
            .doc = row.doc,
            .is_view = row.is_view};
  }
  void validate(const OpCall& call) const override { checkAccepts(call, row.accepts); }
  DataType dtype(const OpCall& call) const override {
    return applyRule(row.rule, promotedType(call));
  }
  Scalar onScalars(const OpCall& call) const override {
    const auto op = scalarOpFromName(row.name);
    return op ? call.fusion().scalars().unary(*op, call.scalar(0)) : Scalar{};
  }
  void evaluate(const OpCall&, const Operands& io) const override {
    io.out() = row.compute(widened(io[0], row.rule));
  }
  const UnaryRow& row;
};

struct BinaryOp final : PointwiseOp {
  explicit BinaryOp(const BinaryRow& table_row) : row(table_row) {}
  OpInfo info() const override {
    return {
        .name = row.name, .params = {tensorOrScalar("lhs"), tensorOrScalar("rhs")}, .doc = row.doc};
  }
  void validate(const OpCall& call) const override {
    checkAccepts(call, row.accepts);
    if (row.divides) checkDivisor(call);
  }
  DataType dtype(const OpCall& call) const override {
    return applyRule(row.rule, promotedType(call));
  }
  Scalar onScalars(const OpCall& call) const override {
    ScalarPool& pool = call.fusion().scalars();
    if (row.scalars != nullptr) return row.scalars(pool, call.scalar(0), call.scalar(1));
    const auto op = scalarOpFromName(row.name);
    return op ? pool.binary(*op, call.scalar(0), call.scalar(1)) : Scalar{};
  }
  bool roundsOnce() const override { return row.rounds_once; }
  void evaluate(const OpCall& call, const Operands& io) const override {
    if (call.isNarrow()) {
      io.out() = row.compute(io[0], io[1]);
      return;
    }
    const bool two = call.isTensor(0) && call.isTensor(1);
    const Tensor lhs = operand(call, 0, io[0]), rhs = operand(call, 1, io[two ? 1 : 0]);
    if (row.divides) checkDivisor(call, lhs, rhs);
    io.out() = row.compute(lhs, rhs);
  }
  const BinaryRow& row;

 private:
  Tensor operand(const OpCall& call, size_t param, const Tensor& tensor) const {
    if (call.isTensor(param)) return widened(tensor, row.rule);
    const ScalarValue& number = call.value(param);
    return row.one_device && !tensor.is_cpu() ? wrappedNumber(number, tensor.device())
                                              : wrappedNumber(number);
  }
};

int category(DataType t) {  // Bool < integers < floats < complex
  if (isComplex(t)) return 3;
  if (isFloating(t)) return 2;
  return isIntegral(t) ? 1 : 0;
}

bool takes(Accepts accepts, DataType type, bool is_tensor) {
  switch (accepts) {
    case Accepts::Any:
      return true;
    case Accepts::Complex:
      return isComplex(type);
    case Accepts::Integers:
    case Accepts::IntegersAndBool:
      return isIntegral(type) || type == DataType::Bool;
    case Accepts::FloatOrDouble:
      return type == DataType::Float || type == DataType::Double ||
             (!is_tensor && !isComplex(type));
  }
  return true;
}

std::string_view text(Accepts accepts) {
  switch (accepts) {
    case Accepts::Complex:
      return "complex numbers";
    case Accepts::Integers:
      return "integers";
    case Accepts::IntegersAndBool:
      return "integers and Bool";
    default:
      return "Float and Double";
  }
}

}  // namespace

void checkAccepts(const OpCall& call, Accepts accepts) {
  if (accepts == Accepts::Any) return;
  for (const Arg& arg : call.args()) {
    const auto* tv = std::get_if<TensorView*>(&arg);
    const auto* s = std::get_if<Scalar>(&arg);
    if (tv != nullptr) {
      MESHFUSE_CHECK(takes(accepts, (*tv)->dtype(), true), call.op().name(), ": ", at(*tv), " is ",
                     (*tv)->dtype(), ", but ", call.op().name(), " takes ", text(accepts),
                     ". Cast it first.");
    } else if (s != nullptr) {
      const DataType type = call.fusion().scalars().dtype(*s);
      MESHFUSE_CHECK(takes(accepts, type, false), call.op().name(), ": the scalar beside ",
                     at(call.tensors()[0]), " is ", type, ", but ", call.op().name(), " takes ",
                     text(accepts), ". Cast it first.");
    }
  }
  MESHFUSE_CHECK(accepts != Accepts::Integers || promotedType(call) != DataType::Bool,
                 call.op().name(), ": ", at(call.tensors()[0]), " is bool, and so is every operand",
                 ", but ", call.op().name(), " takes integers. Cast one of them first.");
}

DataType promotedType(const OpCall& call) { return promotedType(call, 0); }

DataType promotedType(const OpCall& call, size_t first) {
  DataType tensors = DataType::Null, scalars = DataType::Null;
  for (size_t i = first; i < call.args().size(); ++i) {
    const Arg& arg = call.args()[i];
    if (const auto* tv = std::get_if<TensorView*>(&arg)) {
      tensors = promoteTypes(tensors, (*tv)->dtype());
    } else if (const auto* s = std::get_if<Scalar>(&arg)) {
      scalars = promoteTypes(scalars, call.fusion().scalars().dtype(*s));
    }
  }
  const bool no_tensor = tensors == DataType::Null;
  if (scalars == DataType::Null || (!no_tensor && category(scalars) <= category(tensors))) {
    return tensors;
  }
  switch (category(scalars)) {
    case 3:
      return tensors == DataType::Double ? DataType::ComplexDouble : DataType::ComplexFloat;
    case 2:
      return DataType::Float;
    case 1:
      return DataType::Int;
    default:
      return DataType::Bool;
  }
}

DataType applyRule(TypeRule rule, DataType promoted) {
  switch (rule) {
    case TypeRule::Compare:
      return DataType::Bool;
    case TypeRule::Keep:
      return promoted;
    case TypeRule::KeepReal:
      if (!isComplex(promoted)) return promoted;
      return promoted == DataType::ComplexFloat ? DataType::Float : DataType::Double;
    case TypeRule::Float:
      if (!isFloating(promoted) && !isComplex(promoted)) return DataType::Float;
      [[fallthrough]];
    default:
      return isReducedFloating(promoted) ? DataType::Float : promoted;
  }
}

FactorMap PointwiseOp::factors(const OpCall& call) const {
  std::string formula;
  for (size_t i = 0; i < call.tensors().size(); ++i) formula += i == 0 ? "..." : ",...";
  return einsum(call, formula + "->...");
}

bool registerUnary(std::span<const UnaryRow> rows) {
  for (const UnaryRow& row : rows) registerOp(std::make_unique<UnaryOp>(row));
  return true;
}

bool registerBinary(std::span<const BinaryRow> rows) {
  for (const BinaryRow& row : rows) registerOp(std::make_unique<BinaryOp>(row));
  return true;
}

Tensor operandAs(const OpCall& call, const Operands& operands, size_t param, DataType type) {
  const at::ScalarType to = toScalarType(type);
  if (!call.isTensor(param)) {
    const auto options = operands[0].options().dtype(to);
    return at::full({}, toAtScalar(call.value(param)), options);
  }
  size_t place = 0;
  for (size_t i = 0; i < param; ++i) place += call.isTensor(i) ? 1 : 0;
  return operands[place].to(to);
}

}  // namespace meshfuse
