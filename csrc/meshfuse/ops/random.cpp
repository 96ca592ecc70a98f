// SPDX-License-Identifier: BSD-3-Clause
// Random tensors: uniform and normal of a shape, and like another tensor.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/creation.h>
#include <meshfuse/ops/philox.h>
#include <meshfuse/ops/pointwise.h>

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>

namespace meshfuse {

void checkSeed(const OpCall& call, size_t seed) {
  MESHFUSE_CHECK(call.has(seed) == call.has(seed + 1), call.op().name(),
                 ": rng_seed and rng_offset must be provided together! Only ",
                 call.has(seed) ? "rng_seed" : "rng_offset", " was given. Give both or neither.");
  if (!call.has(seed)) return;
  for (const size_t param : {seed, seed + 1}) {
    const DataType type = call.fusion().scalars().dtype(call.scalar(param));
    MESHFUSE_CHECK(isIntegral(type), call.op().name(), ": ",
                   call.op().cachedInfo().params[param].name, " is ", type, ". Give an integer.");
  }
}

namespace {

void checkType(const OpCall& call, DataType type) {
  const bool known = type == DataType::Double || type == DataType::Float ||
                     type == DataType::Half || type == DataType::BFloat16;
  MESHFUSE_CHECK(known, call.op().name(),
                 ": Random distributions only create floating point types, and ", type,
                 " is not one of Double, Float, Half and BFloat16. Name one of these.");
}

void checkBounds(double low, double high) {
  MESHFUSE_CHECK(std::isfinite(low) && std::isfinite(high) && std::isfinite(high - low),
                 "uniform: minval is ", low, " and maxval ", high, ". Give finite numbers.");
  MESHFUSE_CHECK(low <= high, "uniform: minval ", low, " is greater than maxval ", high,
                 ". Give the lower bound first.");
}

std::optional<double> constantAt(const OpCall& call, size_t param) {
  const ScalarNode& node = call.fusion().scalars().node(call.scalar(param));
  return node.op == ScalarOp::Const ? std::optional(toDouble(node.value)) : std::nullopt;
}

at::Tensor evaluateStream(const OpCall& call, const Operands& io, size_t seed, RandomStream stream,
                          const at::TensorOptions& options) {
  stream.seed = toInt(call.value(seed));
  stream.offset = toInt(call.value(seed + 1));
  const auto& local = call.want(0).sizes;
  if (std::ranges::find(local, 0) != local.end()) return at::empty(local, options);
  GlobalPlaces places{.positions = {}, .sizes = call.globalSizes(0)};
  for (size_t axis = 0; axis < places.sizes.size(); ++axis) {
    places.positions.push_back(call.positions(0, static_cast<int64_t>(axis), io.device()));
  }
  return randomTensor(stream, places, options);
}

Param seedParam(const char* name) { return attr(name, ParamKind::Number, Arg{}); }

constexpr const char* kSeedDoc =
    " rng_seed and rng_offset come together; then a value depends on them and on its place in the "
    "global tensor only. Without them they are drawn from torch's default CPU generator at every "
    "execution.";

struct DistributionOp final : OpDef {
  explicit DistributionOp(Distribution d) : distribution(d) {}
  OpInfo info() const override {
    const bool uniform = distribution == Distribution::Uniform;
    return {.name = uniform ? "uniform" : "normal",
            .params = {attr(uniform ? "minval" : "mean", ParamKind::Number),
                       attr(uniform ? "maxval" : "std", ParamKind::Number),
                       attr("shape", ParamKind::ShapeList), seedParam("rng_seed"),
                       seedParam("rng_offset"), attr("dtype", ParamKind::DType, DataType::Float)},
            .doc = (uniform ? "Random values from minval on and below maxval."
                            : "Random values of the normal distribution.") +
                   std::string(kSeedDoc),
            .creates = true};
  }
  FactorMap factors(const OpCall& call) const override {
    checkType(call, call.type(5));
    checkSeed(call, 3);
    for (const size_t param : {size_t{0}, size_t{1}}) {
      const DataType type = call.fusion().scalars().dtype(call.scalar(param));
      MESHFUSE_CHECK(!isComplex(type), call.op().name(), ": ",
                     call.op().cachedInfo().params[param].name, " is ", type,
                     ". Give a real number.");
    }
    const auto low = constantAt(call, 0), high = constantAt(call, 1);
    if (distribution == Distribution::Uniform && low && high) checkBounds(*low, *high);
    return sizesAsFactors(call, 2);
  }
  DataType dtype(const OpCall& call) const override { return call.type(5); }
  bool usesPositions() const override { return true; }
  std::vector<size_t> drawnParams() const override { return {3, 4}; }
  void evaluate(const OpCall& call, const Operands& io) const override {
    RandomStream stream{.distribution = distribution,
                        .low = toDouble(call.value(0)),
                        .high = toDouble(call.value(1))};
    if (distribution == Distribution::Uniform) checkBounds(stream.low, stream.high);
    io.out() = evaluateStream(call, io, 3, stream, optionsOfResult(call, 0));
  }
  Distribution distribution;
};

struct RandomLikeOp final : PointwiseOp {
  explicit RandomLikeOp(Distribution d) : distribution(d) {}
  OpInfo info() const override {
    const bool uniform = distribution == Distribution::Uniform;
    return {
        .name = uniform ? "rand_like" : "randn_like",
        .params = {tensor("arg"), seedParam("rng_seed"), seedParam("rng_offset")},
        .doc = (uniform ? "Random values from 0 on and below 1, of the sizes, type and sharding "
                          "of arg."
                        : "Random values of the standard normal distribution, of the sizes, "
                          "type and sharding of arg.") +
               std::string(kSeedDoc)};
  }
  FactorMap factors(const OpCall& call) const override {
    checkType(call, call.tensor(0)->dtype());
    checkSeed(call, 1);
    return PointwiseOp::factors(call);
  }
  bool usesPositions() const override { return true; }
  std::vector<size_t> drawnParams() const override { return {1, 2}; }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const RandomStream stream{.distribution = distribution};
    io.out() = evaluateStream(call, io, 1, stream, io[0].options());
  }
  Distribution distribution;
};

const bool kRegistered = [] {
  for (const Distribution d : {Distribution::Uniform, Distribution::Normal}) {
    registerOp(std::make_unique<DistributionOp>(d));
    registerOp(std::make_unique<RandomLikeOp>(d));
  }
  return true;
}();

}  // namespace
}  // namespace meshfuse
