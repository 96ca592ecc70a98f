// SPDX-License-Identifier: BSD-3-Clause
// Running sums, products and extremes along one axis, which no device may have a part of.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/pointwise.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cummin.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

namespace meshfuse {
namespace {

using at::Tensor;

struct ScanRow {
  const char* name;
  const char* doc;
  bool widens;  // integers and Bool become Int
  Tensor (*scan)(const Tensor&, int64_t);
  Tensor (*combine)(const Tensor&, const Tensor&);
};

const ScanRow kScans[] = {
    {"cumsum", "Running sum along dim; of integers and Bool as Int. init is added to all.", true,
     [](const Tensor& x, int64_t dim) { return at::cumsum(x, dim); },
     [](const Tensor& a, const Tensor& b) { return at::add(a, b); }},
    {"cumprod", "Running product along dim; of integers and Bool as Int. init multiplies all.",
     true, [](const Tensor& x, int64_t dim) { return at::cumprod(x, dim); }, at::mul},
    {"cummax", "Largest element up to each place along dim, and not less than init; nan stays.",
     false, [](const Tensor& x, int64_t dim) { return std::get<0>(at::cummax(x, dim)); },
     at::maximum},
    {"cummin", "Smallest element up to each place along dim, and not more than init; nan stays.",
     false, [](const Tensor& x, int64_t dim) { return std::get<0>(at::cummin(x, dim)); },
     at::minimum},
};

struct ScanOp final : OpDef {
  explicit ScanOp(const ScanRow& row) : row_(row) {}
  OpInfo info() const override {
    return {.name = row_.name,
            .params = {tensor("arg"), attr("dim", ParamKind::Int),
                       attr("init", ParamKind::Number, Arg{})},
            .doc = row_.doc};
  }
  void validate(const OpCall& call) const override {
    if (!call.has(2)) return;
    const DataType with_init = promotedType(call);
    MESHFUSE_CHECK(with_init == call.tensor(0)->dtype() || with_init == dtype(call), name(),
                   ": init is ", call.fusion().scalars().dtype(call.scalar(2)), ", but ",
                   at(call.tensor(0)), " is ", call.tensor(0)->dtype(),
                   ", which cannot hold it. Cast the tensor first.");
  }
  FactorMap factors(const OpCall& call) const override {
    const int64_t n = call.ndim(0), scanned = axis(call);
    FactorBuilder builder(call);
    for (int64_t i = 0; i < n; ++i) {
      builder.resultAxis(builder.factor(i == scanned ? FactorKind::Blocking : FactorKind::Parallel,
                                        std::array{i}, "axis " + std::to_string(i)));
    }
    return builder.build();
  }
  DataType dtype(const OpCall& call) const override {
    const DataType type = call.tensor(0)->dtype();
    const bool narrow = isIntegral(type) || type == DataType::Bool;
    return row_.widens && narrow ? DataType::Int : type;
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const Tensor scanned = row_.scan(io[0], axis(call));
    io.out() = scanned;
    if (!call.has(2)) return;
    // On the device of the operand: a number beside a tensor of another device is no tensor there.
    const auto options = scanned.options();
    io.out() = row_.combine(scanned, at::scalar_tensor(toAtScalar(call.value(2)), options));
  }

 private:
  static int64_t axis(const OpCall& call) {
    return wrappedAxis(call.op().name(), call.tensor(0), call.integer(1));
  }

  const ScanRow& row_;
};

const bool kRegistered = [] {
  for (const ScanRow& row : kScans) registerOp(std::make_unique<ScanOp>(row));
  return true;
}();

}  // namespace
}  // namespace meshfuse
