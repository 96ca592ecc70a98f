// SPDX-License-Identifier: BSD-3-Clause
// Variance and mean. Two passes, the second over the distances from the mean: a sum of squares
// alone would lose the digits of a small variance. Where a reduced axis is divided over devices,
// each pass is a sum over them.
#include <meshfuse/ops/compose.h>

namespace meshfuse {
namespace {

constexpr size_t kArg = 0, kDims = 1, kCorrection = 2, kKeepDim = 3;

struct Moments {
  TensorView* mean;
  TensorView* squares;  // sum of the squared distances from the mean
  Scalar count;         // number of elements, an integer
};

Moments momentsOf(const Composer& ops, TensorView* x, const std::vector<int64_t>& axes) {
  TensorView* mean = ops.mean(x, axes);
  TensorView* distance = ops("sub", {x, ops.keepAxes(mean, axes)});
  TensorView* squares = ops("sum", {ops("mul", {distance, distance}), axes});
  return {mean, squares, ops.countOf(x, axes)};
}

/// Number of elements less the correction, 0 at least, as Double.
Scalar degreesOfFreedom(const Composer& ops, Scalar count, Scalar correction) {
  ScalarPool& pool = ops.scalars();
  if (!isIntegral(pool.dtype(correction))) {
    return pool.sub(pool.cast(count, DataType::Double), correction);
  }
  const Scalar rest = pool.sub(pool.cast(count, DataType::Int), correction);
  return pool.cast(pool.binary(ScalarOp::Max, rest, pool.constant(int64_t{0}, DataType::Int)),
                   DataType::Double);
}

struct VarOp final : ComposedOp {
  explicit VarOp(bool mean) : with_mean(mean) {}
  OpInfo info() const override {
    Param dims = attr("dims", ParamKind::IntList);
    dims.aliases = {"dim", "axes"};
    OpInfo info{.name = with_mean ? "var_mean" : "var",
                .params = {tensor("arg"), dims, attr("correction", ParamKind::Number, int64_t{1}),
                           attr("keepdim", ParamKind::Bool, false, {"keep_dim"})},
                .doc = std::string("Variance ") + (with_mean ? "and mean " : "") +
                       "over the listed axes; correction is taken from the number of elements."};
    if (with_mean) info.results = {"var", "mean"};
    return info;
  }
  std::vector<Val> compose(const OpCall& call) const override {
    const Composer ops(call);
    TensorView* x = ops.operand(kArg);
    const std::vector<int64_t> axes = ops.axes(x, kDims);
    const DataType type = call.tensor(kArg)->dtype();
    const Moments moments = momentsOf(ops, x, axes);
    const Scalar divisor = degreesOfFreedom(ops, moments.count, call.scalar(kCorrection));
    std::vector<TensorView*> results = {ops("div", {moments.squares, divisor})};
    if (with_mean) results.push_back(moments.mean);
    for (TensorView*& result : results) {
      if (call.flag(kKeepDim)) result = ops.keepAxes(result, axes);
      result = ops.as(type, result);
    }
    return {results.begin(), results.end()};
  }
  bool with_mean;
};

struct WelfordOp final : ComposedOp {
  OpInfo info() const override {
    return {.name = "welford",
            .params = {tensor("arg"), attr("dims", ParamKind::IntList)},
            .doc =
                "Mean over the listed axes, sum of the squared distances from it, and number of "
                "elements (Int), one of each per element that is left.",
            .results = {"mean", "m2", "n"}};
  }
  std::vector<Val> compose(const OpCall& call) const override {
    const Composer ops(call);
    TensorView* x = ops.operand(kArg);
    const std::vector<int64_t> axes = ops.axes(x, kDims);
    const DataType type = call.tensor(kArg)->dtype();
    const Moments moments = momentsOf(ops, x, axes);
    // A number per element of the mean, made from the mean so that it is divided as the mean is.
    const Scalar yes = ops.scalars().constant(true, DataType::Bool);
    TensorView* ones = ops.as(DataType::Int, ops("logical_or", {moments.mean, yes}));
    const Scalar count = ops.scalars().cast(moments.count, DataType::Int);
    return {ops.as(type, moments.mean), ops.as(type, moments.squares), ops("mul", {ones, count})};
  }
};

const bool kRegistered = [] {
  registerOp(std::make_unique<VarOp>(false));
  registerOp(std::make_unique<VarOp>(true));
  registerOp(std::make_unique<WelfordOp>());
  return true;
}();

}  // namespace
}  // namespace meshfuse
