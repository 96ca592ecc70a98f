// SPDX-License-Identifier: BSD-3-Clause
// Tensors put together, and padding.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/ops/torch_types.h>

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

namespace meshfuse {

struct CatOp final : OpDef {
  OpInfo info() const override {
    return {
        .name = "cat",
        .params = {attr("tensors", ParamKind::TensorList), attr("dim", ParamKind::Int, int64_t{0}),
                   attr("manual_padding", ParamKind::Bool, false)},
        .doc = "The tensors one after the other along dim, in their common type."};
  }
  void validate(const OpCall& call) const override {
    const auto& tensors = call.tensors();
    for (const TensorView* tv : tensors) {
      MESHFUSE_CHECK(tv->ndim() == tensors[0]->ndim(),
                     "cat: Unexpected number of dimensions: ", at(tensors[0]), " has ",
                     tensors[0]->ndim(), " axes, but ", tv->name(), " has ", tv->ndim(),
                     ". Give tensors with as many axes.");
    }
  }
  FactorMap factors(const OpCall& call) const override {
    ScalarPool& pool = call.fusion().scalars();
    const int64_t dim = dimOf(call), n = call.tensors()[0]->ndim();
    FactorBuilder builder(call);
    for (int64_t axis = 0; axis < n; ++axis) {
      const std::string label = "axis " + std::to_string(axis);
      std::vector<int64_t> axes(call.tensors().size(), axis);
      if (axis != dim) {
        builder.resultAxis(builder.factor(FactorKind::Parallel, axes, label));
        continue;
      }
      Scalar total = pool.constant(0);
      for (size_t i = 0; i < call.tensors().size(); ++i) {
        const IterDomain* id = axesWithoutReductions(call.tensors()[i])[static_cast<size_t>(axis)];
        total = pool.add(total, id->getMaybeExpandedExtent());
        std::ranges::fill(axes, -1);
        axes[i] = axis;
        builder.factor(FactorKind::Blocking, axes, label);
      }
      if (pool.constInt(total) == 1) {
        builder.resultAxis(std::nullopt);
      } else {
        builder.resultAxis(builder.freshFactor(FactorKind::Blocking, total, "result " + label));
      }
    }
    return builder.build();
  }
  DataType dtype(const OpCall& call) const override {
    DataType type = DataType::Null;
    for (const TensorView* tv : call.tensors()) type = promoteTypes(type, tv->dtype());
    return type;
  }
  Scalar onScalars(const OpCall&) const override {
    fail("cat: Attempting to concatenate empty list of tensors. Give at least one.");
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    std::vector<at::Tensor> tensors;
    tensors.reserve(io.size());
    int64_t length = -1;
    for (size_t i = 0; i < io.size(); ++i) tensors.push_back(io[i]);
    const int64_t dim = dimOf(call);
    for (int64_t axis = 0; axis < tensors[0].dim(); ++axis) {
      length = -1;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const int64_t size = tensors[i].size(axis);
        MESHFUSE_CHECK(axis == dim || length < 0 || length == size,
                       "cat: a conflict was found with 2 different sizes: axis ", AtAxis{axis},
                       " of ", at(call.tensors()[i]), " has ", size, " elements, that of ",
                       call.tensors()[0]->name(), " has ", length,
                       ". Only the axis along which they are put together may differ.");
        length = size;
      }
    }
    io.out() = at::cat(tensors, dim);
  }

 private:
  static int64_t dimOf(const OpCall& call) {
    const int64_t n = call.tensors()[0]->ndim(), dim = call.integer(1);
    MESHFUSE_CHECK(dim >= -n && dim < n, "cat: Invalid dimension to cat: axis ", AtAxis{dim},
                   " of ", at(call.tensors()[0]), ", which has ", n, " axes. Use ", -n, " to ",
                   n - 1, ".");
    return dim < 0 ? dim + n : dim;
  }
};
MESHFUSE_REGISTER_OP(CatOp);

struct PadOp final : OpDef {
  OpInfo info() const override {
    return {.name = "pad",
            .params = {tensor("arg"), attr("pad_widths", ParamKind::ShapeList),
                       attr("value", ParamKind::Number, Arg{})},
            .doc =
                "Adds elements before and after; pad_widths has two numbers per axis, the last "
                "axis first, and negative ones crop."};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* x = call.tensor(0);
    ScalarPool& pool = call.fusion().scalars();
    const auto& widths = std::get<std::vector<Scalar>>(call.args()[1]);
    const auto axes = axesWithoutReductions(x);
    MESHFUSE_CHECK(widths.size() % 2 == 0, "pad: Invalid number of padding widths: ", widths.size(),
                   " were given for ", at(x), ". Give two per axis.");
    MESHFUSE_CHECK(widths.size() <= 2 * axes.size(),
                   "pad: Number of pad widths must be at most twice the input dimension; ", at(x),
                   " has ", axes.size(), " axes, but ", widths.size(), " widths were given.");
    FactorBuilder builder(call);
    for (size_t i = 0; i < axes.size(); ++i) {
      const std::string label = "axis " + std::to_string(i);
      const std::array axis{static_cast<int64_t>(i)};
      const size_t pair = 2 * (axes.size() - 1 - i);
      const bool padded = pair < widths.size() && !(pool.constInt(widths[pair]) == 0 &&
                                                    pool.constInt(widths[pair + 1]) == 0);
      if (!padded) {
        builder.resultAxis(builder.factor(FactorKind::Parallel, axis, label));
        continue;
      }
      builder.factor(FactorKind::Blocking, axis, label);
      const Scalar extent =
          pool.add(pool.add(axes[i]->getMaybeExpandedExtent(), widths[pair]), widths[pair + 1]);
      const auto size = pool.constInt(extent);
      MESHFUSE_CHECK(!size || *size >= 0, "pad: Invalid resized domain extent ", size.value_or(0),
                     " for axis ", AtAxis{axis[0]}, " of ", at(x), ". Crop less.");
      if (size == 1) {
        builder.resultAxis(std::nullopt);
      } else {
        builder.resultAxis(builder.freshFactor(FactorKind::Blocking, extent, "result " + label));
      }
    }
    return builder.build();
  }
  void validate(const OpCall& call) const override {
    if (!call.has(2)) return;
    const DataType type = call.tensor(0)->dtype();
    const DataType value = call.fusion().scalars().dtype(call.scalar(2));
    const bool fits = value == type || (isFloating(type) && !isComplex(value)) || isComplex(type) ||
                      (isIntegral(type) && (isIntegral(value) || value == DataType::Bool));
    MESHFUSE_CHECK(fits, "pad: Tensor arg and pad value must have the same dtype. ",
                   at(call.tensor(0)), " is ", type, ", the value ", value, ".");
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const std::vector<int64_t>& widths = call.integers(1);
    for (size_t i = 0; i < widths.size(); i += 2) {
      const int64_t axis = io[0].dim() - 1 - static_cast<int64_t>(i / 2);
      const int64_t size = io[0].size(axis) + widths[i] + widths[i + 1];
      MESHFUSE_CHECK(size >= 0, "pad: Invalid resized domain extent ", size, " for axis ",
                     AtAxis{axis}, " of ", at(call.tensor(0)), " (size ", io[0].size(axis),
                     "), padded by ", widths[i], " and ", widths[i + 1], ". Crop less.");
    }
    const at::Scalar value = call.has(2) ? toAtScalar(call.value(2)) : at::Scalar(0);
    io.out() = at::constant_pad_nd(io[0], widths, value);
  }
};
MESHFUSE_REGISTER_OP(PadOp);

}  // namespace meshfuse
