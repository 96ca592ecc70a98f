// SPDX-License-Identifier: BSD-3-Clause
// layer_norm and rms_norm over the trailing axes. Where one of these is divided over devices, the
// sums are added up over them, and everything else stays where it is.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/compose.h>
#include <meshfuse/ops/fused.h>

#include <algorithm>
#include <limits>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

namespace meshfuse {
namespace {

constexpr size_t kInput = 0, kShape = 1, kWeight = 2;

/// The trailing axes that argument kShape lists the sizes of.
std::vector<int64_t> normalizedAxes(const OpCall& call) {
  const std::string& op = call.op().name();
  const TensorView* x = call.tensor(kInput);
  const ScalarPool& pool = call.fusion().scalars();
  const auto& shape = std::get<std::vector<Scalar>>(call.args()[kShape]);
  const auto count = static_cast<int64_t>(shape.size());
  MESHFUSE_CHECK(count > 0 && count <= x->ndim(), op, ": normalized_shape has ", count,
                 " sizes, and ", at(x), " has ", x->ndim(),
                 " axes. List the sizes of the last axes, one at least.");
  const auto logical = x->domain().withoutReductions(x->domain().logical());
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis = x->ndim() - count + i;
    const IterDomain* id = x->domain().id(logical[static_cast<size_t>(axis)]);
    const auto have = pool.constInt(id->getMaybeExpandedExtent());
    const auto said = pool.constInt(shape[static_cast<size_t>(i)]);
    MESHFUSE_CHECK(!have || !said || have == said, op, ": normalized_shape says ", said.value_or(0),
                   " for axis ", AtAxis{axis}, " of ", at(x), ", whose size is ", have.value_or(0),
                   ". List the sizes of the last axes.");
    axes.push_back(axis);
  }
  return axes;
}

/// Parameter `param` must have the normalized axes.
void checkParameter(const OpCall& call, size_t param, size_t axes) {
  if (!call.has(param)) return;
  const TensorView* tv = call.tensor(param);
  MESHFUSE_CHECK(tv->ndim() == static_cast<int64_t>(axes), call.op().name(), ": ",
                 call.op().cachedInfo().params[param].name, " ", at(tv), " has ", tv->ndim(),
                 " axes, and normalized_shape ", axes, ". Give one of the normalized shape.");
}

/// Factors of the input and of the tensors that have the normalized axes alone.
FactorMap normFactors(const OpCall& call) {
  const TensorView* x = call.tensor(kInput);
  MESHFUSE_CHECK(isFloating(x->dtype()), call.op().name(), ": ", at(x), " is ", x->dtype(),
                 ". Cast it to a floating point type first.");
  const std::vector<int64_t> normalized = normalizedAxes(call);
  for (size_t p = kWeight; p < call.args().size(); ++p) {
    if (call.isTensor(p)) checkParameter(call, p, normalized.size());
  }
  FactorBuilder builder(call);
  for (int64_t axis = 0; axis < x->ndim(); ++axis) {
    const int64_t place = axis - normalized.front();
    std::vector<int64_t> axes(call.tensors().size(), std::max<int64_t>(place, -1));
    axes[0] = axis;
    builder.resultAxis(builder.factor(place < 0 ? FactorKind::Parallel : FactorKind::Blocking, axes,
                                      "axis " + std::to_string(axis)));
  }
  return builder.build();
}

/// `out` after `op` with the parameter, where there is one.
TensorView* withParameter(const OpCall& call, TensorView* out, std::string_view op, size_t param) {
  return call.has(param) ? Composer(call)(op, {out, call.tensor(param)}) : out;
}

/// Local sizes of the normalized axes, which are whole here.
std::vector<int64_t> normalizedSizes(const OpCall& call, const at::Tensor& x) {
  const std::vector<int64_t>& said = call.integers(kShape);
  const auto count = static_cast<std::ptrdiff_t>(said.size());
  std::vector<int64_t> sizes(x.sizes().end() - count, x.sizes().end());
  MESHFUSE_CHECK(sizes == said, call.op().name(), ": normalized_shape says ",
                 c10::IntArrayRef(said), ", but ", at(call.tensor(kInput)), " has sizes ",
                 x.sizes(), ". List the sizes of the last axes.");
  return sizes;
}

/// The operand of parameter `param`, in the input's type.
std::optional<at::Tensor> parameterOf(const OpCall& call, const Operands& io, size_t param) {
  if (!call.has(param)) return std::nullopt;
  const size_t place = param == 3 && call.has(kWeight) ? 2 : 1;
  return io[place].to(io[kInput].scalar_type());
}

struct LayerNormOp final : FusedOp {
  OpInfo info() const override {
    return {
        .name = "layer_norm",
        .params = {tensor("x"), attr("normalized_shape", ParamKind::ShapeList), optTensor("weight"),
                   optTensor("bias"), attr("eps", ParamKind::Number, 1e-5)},
        .doc =
            "(x - mean) / sqrt(variance + eps) * weight + bias, mean and variance over the "
            "last axes, whose sizes normalized_shape lists."};
  }
  FactorMap factors(const OpCall& call) const override { return normFactors(call); }
  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = at::layer_norm(io[kInput], normalizedSizes(call, io[kInput]),
                              parameterOf(call, io, kWeight), parameterOf(call, io, 3),
                              toDouble(call.value(4)));
  }
  std::vector<TensorView*> pieces(const OpCall& call) const override {
    const Composer ops(call);
    // A view, since what is scheduled already cannot be summed.
    TensorView* x = ops("set", {ops.operand(kInput)});
    const std::vector<int64_t> axes = normalizedAxes(call);
    TensorView* distance = ops("sub", {x, ops.keepAxes(ops.mean(x, axes), axes)});
    TensorView* variance = ops.mean(ops("mul", {distance, distance}), axes);
    TensorView* scale = ops("rsqrt", {ops("add", {variance, call.scalar(4)})});
    TensorView* out = ops("mul", {distance, ops.keepAxes(scale, axes)});
    out = withParameter(call, out, "mul", kWeight);
    out = withParameter(call, out, "add", 3);
    return {ops.as(call.tensor(kInput)->dtype(), out)};
  }
};
MESHFUSE_REGISTER_OP(LayerNormOp);

struct RmsNormOp final : FusedOp {
  OpInfo info() const override {
    return {.name = "rms_norm",
            .params = {tensor("x"), attr("normalized_shape", ParamKind::ShapeList),
                       optTensor("weight"), attr("eps", ParamKind::Number, Arg{})},
            .doc =
                "x / sqrt(mean(x * x) + eps) * weight, the mean over the last axes, whose sizes "
                "normalized_shape lists; eps is by default the distance of 1 from the next number "
                "of the type that is computed in, Float or Double."};
  }
  FactorMap factors(const OpCall& call) const override { return normFactors(call); }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const at::Tensor& x = io[kInput];
    const double eps = call.has(3) ? toDouble(call.value(3)) : epsilonOf(call.tensor(kInput));
    io.out() = at::rms_norm(x, normalizedSizes(call, x), parameterOf(call, io, kWeight), eps);
  }
  std::vector<TensorView*> pieces(const OpCall& call) const override {
    const Composer ops(call);
    TensorView* x = ops.operand(kInput);
    const std::vector<int64_t> axes = normalizedAxes(call);
    const Scalar eps = call.has(3) ? call.scalar(3) : ops.number(epsilonOf(x));
    TensorView* squares = ops.mean(ops("mul", {x, x}), axes);
    TensorView* scale = ops("rsqrt", {ops("add", {squares, eps})});
    TensorView* out = ops("mul", {x, ops.keepAxes(scale, axes)});
    return {ops.as(call.tensor(kInput)->dtype(), withParameter(call, out, "mul", kWeight))};
  }

 private:
  static double epsilonOf(const TensorView* x) {
    return x->dtype() == DataType::Double ? std::numeric_limits<double>::epsilon()
                                          : std::numeric_limits<float>::epsilon();
  }
};
MESHFUSE_REGISTER_OP(RmsNormOp);

}  // namespace
}  // namespace meshfuse
