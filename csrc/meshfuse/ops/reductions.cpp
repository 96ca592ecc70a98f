// SPDX-License-Identifier: BSD-3-Clause
// sum, prod, max and min over axes.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/ops/torch_types.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>

namespace meshfuse {
namespace {

using at::Tensor;

struct ReductionOp : OpDef {
  explicit ReductionOp(ReduceKind kind) : kind_(kind) {}

  OpInfo infoWith(std::string doc) const {
    return {.name = std::string(meshfuse::name(kind_)),
            .params = {tensor("arg"), attr("dims", ParamKind::IntList, Arg{}, {"dim", "axes"}),
                       attr("keepdim", ParamKind::Bool, false, {"keep_dim"}),
                       attr("dtype", ParamKind::DType, DataType::Null)},
            .doc = std::move(doc)};
  }
  ReduceKind reduceKind() const override { return kind_; }

  void validate(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    const bool scheduled = x->domain().transforms().size() > x->domain().definitionTransforms();
    MESHFUSE_CHECK(!scheduled, name(),
                   ": Reducing a tensor once it's gone under transformations is not permitted; ",
                   at(x),
                   " was split or merged. Schedule tensors after all operations are defined.");
  }

  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    MESHFUSE_CHECK(x->ndim() > 0, name(), ": Tried to reduce a 0-dim tensor, ", at(x),
                   ". Reduce a tensor with axes.");
    const std::vector<int64_t> axes = reducedAxes(call);
    FactorBuilder builder(call);
    for (int64_t axis = 0; axis < x->ndim(); ++axis) {
      const bool reduced = std::ranges::find(axes, axis) != axes.end();
      const auto factor = builder.factor(reduced ? FactorKind::Reduction : FactorKind::Parallel,
                                         std::array{axis}, "axis " + std::to_string(axis));
      if (factor || !reduced) builder.resultAxis(factor);
      if (reduced && call.flag(2)) builder.resultAxis(std::nullopt);
    }
    return builder.build();
  }

  DataType dtype(const OpCall& call) const override {
    return call.type(3) == DataType::Null ? call.tensor(0)->dtype() : call.type(3);
  }

  void evaluate(const OpCall& call, const Operands& io) const override {
    io.out() = reduce(io[0], reducedAxes(call), call.flag(2), toScalarType(dtype(call)));
  }

 protected:
  /// `x` reduced over `axes`, computed in `type`.
  virtual Tensor reduce(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim,
                        at::ScalarType type) const = 0;

 private:
  /// The axes to reduce, wrapped and checked; all of them when none are given.
  std::vector<int64_t> reducedAxes(const OpCall& call) const {
    const TensorView* x = call.tensor(0);
    const int64_t n = x->ndim();
    if (!call.has(1)) {
      std::vector<int64_t> all(static_cast<size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      return all;
    }
    MESHFUSE_CHECK(!call.ints(1).empty(), name(), ": No reduction axis specified for ", at(x),
                   ". List at least one axis, or leave the list out to reduce all.");
    return wrappedReductionAxes(name(), x, call.ints(1));
  }

  ReduceKind kind_;
};

/// Sums and products of integers and Bool are Int, so that they do not overflow early.
struct WideningReduction : ReductionOp {
  using ReductionOp::ReductionOp;
  DataType dtype(const OpCall& call) const override {
    const DataType type = ReductionOp::dtype(call);
    const bool narrow = isIntegral(type) || type == DataType::Bool;
    return call.type(3) == DataType::Null && narrow ? DataType::Int : type;
  }
};

/// The largest or smallest element; nan where there is one.
struct ExtremeOp : ReductionOp {
  using ReductionOp::ReductionOp;
  void validate(const OpCall& call) const override {
    ReductionOp::validate(call);
    MESHFUSE_CHECK(!isComplex(dtype(call)), name(), ": ", at(call.tensor(0)), " is reduced as ",
                   dtype(call), ", but complex numbers have no order. Reduce their abs or real.");
  }

 protected:
  virtual Tensor extreme(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim) const = 0;
  /// What any element replaces.
  virtual at::Scalar identity(at::ScalarType type) const = 0;

  Tensor reduce(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim,
                at::ScalarType type) const override {
    const auto empty = [&](int64_t axis) { return x.size(axis) == 0; };
    if (std::ranges::none_of(axes, empty)) return extreme(x.to(type), axes, keepdim);
    // A device may hold no element of an axis that is divided unevenly. (An axis that is empty on
    // the whole was refused when the program was compiled.)
    std::vector<int64_t> sizes = x.sizes().vec();
    for (const int64_t axis : axes) sizes[static_cast<size_t>(axis)] = 1;
    const Tensor none = at::full(sizes, identity(type), x.options().dtype(type));
    return keepdim ? none : extreme(none, axes, false);
  }
};

template <class T>
at::Scalar limitOf(bool largest) {
  using Limits = std::numeric_limits<T>;
  return largest ? Limits::max() : Limits::lowest();
}

at::Scalar limit(at::ScalarType type, bool largest) {
  if (type == at::kBool) return largest;
  if (type == at::kInt) return limitOf<int32_t>(largest);
  if (type == at::kLong) return limitOf<int64_t>(largest);
  if (type == at::kUInt64) return limitOf<uint64_t>(largest);
  const double infinity = std::numeric_limits<double>::infinity();
  return largest ? infinity : -infinity;
}

}  // namespace

struct SumOp final : WideningReduction {
  SumOp() : WideningReduction(ReduceKind::Sum) {}
  OpInfo info() const override {
    return infoWith(
        "Sum over the listed axes, or over all. Integers and Bool are summed as Int; dtype "
        "converts the operand first.");
  }
  Tensor reduce(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim,
                at::ScalarType type) const override {
    return at::sum(x, axes, keepdim, type);
  }
};
MESHFUSE_REGISTER_OP(SumOp);

struct ProdOp final : WideningReduction {
  ProdOp() : WideningReduction(ReduceKind::Prod) {}
  OpInfo info() const override {
    return infoWith(
        "Product over the listed axes, or over all. Integers and Bool are multiplied as Int; "
        "dtype converts the operand first.");
  }
  Tensor reduce(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim,
                at::ScalarType type) const override {
    // torch rounds 16-bit products at every step; the result is brought to its type afterwards.
    const at::ScalarType wide = at::isReducedFloatingType(type) ? at::kFloat : type;
    const Tensor operand = x.to(type);
    if (axes.size() == 1) return at::prod(operand, axes[0], keepdim, wide);
    return keepdim ? at::prod(flattened(operand, axes), -1, false, wide).reshape(kept(x, axes))
                   : at::prod(flattened(operand, axes), -1, false, wide);
  }

 private:
  /// Sizes with ones in place of the reduced axes.
  static std::vector<int64_t> kept(const Tensor& x, const std::vector<int64_t>& axes) {
    std::vector<int64_t> sizes = x.sizes().vec();
    for (const int64_t axis : axes) sizes[static_cast<size_t>(axis)] = 1;
    return sizes;
  }
  /// The reduced axes as one, the last: torch multiplies along one axis.
  static Tensor flattened(const Tensor& x, const std::vector<int64_t>& axes) {
    std::vector<int64_t> order, sizes;
    int64_t count = 1;
    for (int64_t axis = 0; axis < x.dim(); ++axis) {
      if (std::ranges::find(axes, axis) != axes.end()) continue;
      order.push_back(axis);
      sizes.push_back(x.size(axis));
    }
    for (const int64_t axis : axes) {
      order.push_back(axis);
      count *= x.size(axis);
    }
    sizes.push_back(count);
    return x.permute(order).reshape(sizes);
  }
};
MESHFUSE_REGISTER_OP(ProdOp);

struct MaxOp final : ExtremeOp {
  MaxOp() : ExtremeOp(ReduceKind::Max) {}
  OpInfo info() const override {
    return infoWith(
        "Largest element over the listed axes, or over all; nan if one is nan. dtype converts the "
        "operand first.");
  }
  Tensor extreme(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim) const override {
    return at::amax(x, axes, keepdim);
  }
  at::Scalar identity(at::ScalarType type) const override { return limit(type, false); }
};
MESHFUSE_REGISTER_OP(MaxOp);

struct MinOp final : ExtremeOp {
  MinOp() : ExtremeOp(ReduceKind::Min) {}
  OpInfo info() const override {
    return infoWith(
        "Smallest element over the listed axes, or over all; nan if one is nan. dtype converts the "
        "operand first.");
  }
  Tensor extreme(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim) const override {
    return at::amin(x, axes, keepdim);
  }
  at::Scalar identity(at::ScalarType type) const override { return limit(type, true); }
};
MESHFUSE_REGISTER_OP(MinOp);

}  // namespace meshfuse
