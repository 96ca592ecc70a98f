// SPDX-License-Identifier: BSD-3-Clause
// From arguments to a checked operation and its output tensors.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

namespace meshfuse {
namespace {

void appendTensors(TensorViews& out, const std::vector<Arg>& args) {
  for (const Arg& arg : args) {
    if (const auto* tv = std::get_if<TensorView*>(&arg)) out.push_back(*tv);
    if (const auto* list = std::get_if<std::vector<TensorView*>>(&arg)) {
      for (TensorView* tv : *list) out.push_back(tv);
    }
  }
}

/// A tensor with one root axis per axis of operand `operand` of the factor map.
TensorView* makeOutput(Fusion& fusion, const FactorMap& map, size_t operand, DataType dtype) {
  TensorView* out = fusion.newTensor(dtype);
  TensorDomain& domain = out->domain();
  AxisList logical;
  for (size_t axis = 0; axis < map.numAxes(operand); ++axis) {
    Scalar extent = fusion.scalars().constant(1);
    IterType type = IterType::Broadcast;
    for (const int32_t f : map.axis(operand, axis)) {
      const Factor& factor = map.factor(f);
      extent = fusion.scalars().mul(extent, factor.extent);
      type = factor.kind == FactorKind::Reduction ? IterType::Reduction : IterType::Iteration;
    }
    logical.push_back(domain.newId(fusion, out, extent, type));
  }
  domain.setLogical(std::move(logical));
  return out;
}

/// Numbers that are defaults as scalars, and sizes as constants of one type: equal calls get equal
/// arguments, whether they come from Python, from the text form or from C++.
void unifyScalars(Fusion& fusion, const OpDef& op, std::vector<Arg>& args) {
  ScalarPool& pool = fusion.scalars();
  for (size_t i = 0; i < args.size(); ++i) {
    if (auto* list = std::get_if<std::vector<Scalar>>(&args[i])) {
      for (Scalar& s : *list) {
        if (const auto size = pool.constInt(s); size && isIntegral(pool.dtype(s))) {
          s = pool.constant(*size);
        }
      }
    }
    if (op.cachedInfo().params[i].kind != ParamKind::Number) continue;
    if (const auto* n = std::get_if<int64_t>(&args[i])) {
      args[i] = pool.constant(*n, DataType::Int);
    } else if (const auto* x = std::get_if<double>(&args[i])) {
      args[i] = pool.constant(*x, DataType::Double);
    }
  }
}

}  // namespace

OpCall::OpCall(Fusion& fusion, const OpDef& op, std::vector<Arg> args)
    : fusion_(&fusion), op_(&op), args_(std::make_shared<const std::vector<Arg>>(std::move(args))) {
  appendTensors(tensors_, *args_);
}

OpCall::OpCall(const Expr& expr)
    : fusion_(expr.output(0)->fusion()),
      op_(&expr.op()),
      args_(std::shared_ptr<void>(), &expr.args()),
      tensors_(expr.inputs()) {}

ScalarValue& OpCall::valueOf(size_t param) {
  if (values_.empty()) values_.resize(args_->size());
  return values_[param];
}

bool OpCall::bindScalar(size_t param,
                        const std::function<std::optional<ScalarValue>(Scalar)>& lookup) {
  if (const auto* s = std::get_if<Scalar>(&args()[param])) {
    const auto value = lookup(*s);
    if (value) valueOf(param) = *value;
    return value.has_value();
  }
  if (const auto* list = std::get_if<std::vector<Scalar>>(&args()[param])) {
    std::vector<int64_t> values;
    for (const Scalar s : *list) {
      const auto value = lookup(s);
      if (!value) return false;
      values.push_back(toInt(*value));
    }
    if (integers_.empty()) integers_.resize(args_->size());
    integers_[param] = std::move(values);
  }
  return true;
}

std::vector<Val> callOp(Fusion& fusion, const OpDef& op, std::vector<Arg> args) {
  MESHFUSE_ASSERT(args.size() == op.cachedInfo().params.size(), op.name(), " got ", args.size(),
                  " arguments for ", op.cachedInfo().params.size(), " parameters");
  unifyScalars(fusion, op, args);
  OpCall call(fusion, op, std::move(args));
  for (const TensorView* tv : call.tensors()) {
    MESHFUSE_CHECK(tv->fusion() == &fusion, op.name(), ": ", at(tv),
                   " belongs to another definition. Use tensors of the definition that is open.");
  }
  if (std::vector<Val> composed = op.compose(call); !composed.empty()) return composed;
  if (call.tensors().empty() && !op.cachedInfo().creates) {
    const Scalar result = op.onScalars(call);
    MESHFUSE_CHECK(result, op.name(), ": all operands are scalars, and ", op.name(),
                   " is not defined on scalars alone. Give at least one tensor.");
    return {result};
  }
  ConstraintScope constraints;
  op.validate(call);
  FactorMap map = op.factors(call);
  TensorViews outputs;
  const size_t inputs = call.tensors().size();
  for (size_t i = inputs; i < map.numOperands(); ++i) {
    outputs.push_back(makeOutput(fusion, map, i, op.resultType(call, i - inputs)));
  }
  fusion.newExpr(&op, call.args(), call.tensors(), outputs, std::move(map), constraints.take());
  op.finish(call, outputs);
  return {outputs.begin(), outputs.end()};
}

std::vector<Val> callOp(std::string_view name, std::vector<Arg> args) {
  Fusion* fusion = FusionGuard::getCurFusion();
  MESHFUSE_CHECK(fusion != nullptr, name,
                 ": no definition is open. Make a FusionGuard (Python: use "
                 "`with FusionDefinition() as fd:`) first.");
  const OpDef* op = findOp(name);
  MESHFUSE_CHECK(op != nullptr, "there is no op named ", name, ".");
  return callOp(*fusion, *op, std::move(args));
}

}  // namespace meshfuse
