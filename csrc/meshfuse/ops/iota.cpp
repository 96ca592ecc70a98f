// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/creation.h>

#include <cmath>

#include <ATen/ops/empty.h>

namespace meshfuse {
namespace {

constexpr size_t kLength = 0, kStart = 1, kStep = 2, kType = 3;

bool isFinite(const ScalarValue& value) {
  const auto* number = std::get_if<double>(&value);
  return number == nullptr || std::isfinite(*number);
}

void checkValue(size_t param, const ScalarValue& value) {
  MESHFUSE_CHECK(isFinite(value), "iota: length, start, step must be finite numbers. ",
                 param == kStart ? "start" : "step", " is ", toString(value), ".");
  MESHFUSE_CHECK(param != kStep || toDouble(value) != 0,
                 "iota: step value must not equal zero. Use full for a tensor of one value.");
}

void checkLength(const OpCall& call) {
  const ScalarPool& pool = call.fusion().scalars();
  const Scalar length = call.scalar(kLength);
  const ScalarNode& node = pool.node(length);
  MESHFUSE_CHECK(node.op != ScalarOp::Const || isFinite(node.value),
                 "iota: length, start, step must be finite numbers. length is ",
                 toString(node.value), ".");
  MESHFUSE_CHECK(isIntegral(node.dtype), "iota: length must be integer, but it is ", node.dtype,
                 ". Give an int or an integer Scalar.");
  MESHFUSE_CHECK(pool.constInt(length).value_or(0) >= 0, "iota: length is ",
                 pool.constInt(length).value_or(0), ". Give 0 or more.");
}

/// One argument of the sequence: its kind is that of the result.
void checkArgument(const OpCall& call, size_t param, const char* name) {
  if (!call.has(param)) return;
  const ScalarNode& node = call.fusion().scalars().node(call.scalar(param));
  const DataType type = call.type(kType);
  const bool alike = isFloating(type) ? isFloating(node.dtype) : isIntegral(node.dtype);
  MESHFUSE_CHECK(alike, "iota: ", name, " dtype does not match specified dtype argument: it is ",
                 node.dtype, " and the result is ", type,
                 ". Give integers for integer types and floats for floating types.");
  if (node.op == ScalarOp::Const) checkValue(param, node.value);
}

/// Start + position * step for every position, in type T.
template <class T>
at::Tensor sequence(const std::vector<int64_t>& positions, T start, T step, at::ScalarType type) {
  at::Tensor out = at::empty({static_cast<int64_t>(positions.size())}, at::dtype(type));
  T* const values = out.mutable_data_ptr<T>();
  for (size_t i = 0; i < positions.size(); ++i) {
    if constexpr (std::is_same_v<T, int64_t>) {  // wraps around, as torch.arange does
      values[i] =
          static_cast<int64_t>(static_cast<uint64_t>(positions[i]) * static_cast<uint64_t>(step) +
                               static_cast<uint64_t>(start));
    } else {
      values[i] = start + static_cast<T>(positions[i]) * step;
    }
  }
  return out;
}

}  // namespace

struct IotaOp final : OpDef {
  OpInfo info() const override {
    return {.name = "iota",
            .params = {attr("length", ParamKind::Number), attr("start", ParamKind::Number, Arg{}),
                       attr("step", ParamKind::Number, Arg{}),
                       attr("dtype", ParamKind::DType, DataType::Int)},
            .doc =
                "start + i * step for i = 0 ... length - 1; start is 0 and step is 1 by default. "
                "Divided over devices, each one has the elements of its part.",
            .creates = true};
  }
  FactorMap factors(const OpCall& call) const override {
    const DataType type = call.type(kType);
    MESHFUSE_CHECK(isIntegral(type) || isFloating(type), "iota: dtype is ", type,
                   ". Use an integer or a floating type.");
    checkLength(call);
    checkArgument(call, kStart, "start");
    checkArgument(call, kStep, "step");
    ScalarPool& pool = call.fusion().scalars();
    const Scalar length = call.scalar(kLength);
    const auto size = pool.constInt(length);
    FactorBuilder builder(call);
    if (size == 1) {
      builder.resultAxis(std::nullopt);
    } else {
      builder.resultAxis(builder.freshFactor(FactorKind::Parallel,
                                             size ? pool.constant(*size) : length, "axis 0"));
    }
    return builder.build();
  }
  DataType dtype(const OpCall& call) const override { return call.type(kType); }
  bool usesPositions() const override { return true; }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const auto value = [&](size_t param, int64_t otherwise) {
      if (!call.has(param)) return ScalarValue(otherwise);
      checkValue(param, call.value(param));
      return call.value(param);
    };
    const ScalarValue start = value(kStart, 0), step = value(kStep, 1);
    const std::vector<int64_t> positions = call.positions(0, 0, io.device());
    const at::Tensor line =
        isFloating(call.type(kType))
            ? sequence<double>(positions, toDouble(start), toDouble(step), at::kDouble)
            : sequence<int64_t>(positions, toInt(start), toInt(step), at::kLong);
    io.out() = line.to(optionsOfResult(call, 0));
  }
};
MESHFUSE_REGISTER_OP(IotaOp);

}  // namespace meshfuse
