// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/indexing.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_renorm.h>

namespace meshfuse {
namespace {

constexpr size_t kInput = 0, kWeight = 1, kPadding = 2, kMaxNorm = 3, kNormType = 4;

}  // namespace

struct EmbeddingFwdOp final : OpDef {
  OpInfo info() const override {
    return {
        .name = "embedding_fwd",
        .params = {tensor("input"), tensor("weight"), attr("padding_idx", ParamKind::Number, Arg{}),
                   attr("max_norm", ParamKind::Number, Arg{}),
                   attr("norm_type", ParamKind::Number, Arg{}),
                   attr("scale_grad_by_freq", ParamKind::Bool, Arg{}),
                   attr("sparse", ParamKind::Bool, Arg{})},
        .doc =
            "Rows of weight [V, E] at the indices of input. With max_norm, rows that are "
            "looked up and longer are first scaled to it in weight itself. padding_idx, "
            "scale_grad_by_freq and sparse concern gradients only."};
  }
  FactorMap factors(const OpCall& call) const override {
    const TensorView* weight = call.tensor(kWeight);
    checkIndexType(call, kInput);
    MESHFUSE_CHECK(weight->ndim() == 2, "embedding_fwd: Expected weight to be 2-D, but ",
                   at(weight), " has ", weight->ndim(), " axes. Give a weight of shape [V, E].");
    // The norm of a row takes all of it.
    return einsum(call, call.has(kMaxNorm) ? "...,v!e!->...e" : "...,v!e->...e");
  }
  DataType dtype(const OpCall& call) const override { return call.tensor(kWeight)->dtype(); }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const TensorView* weight = call.tensor(kWeight);
    const int64_t rows = io[1].size(0);
    const at::Tensor input = checkedIndices(call, kInput, io[0], weight, 0, rows);
    if (call.has(kPadding)) {
      const int64_t padding = toInt(call.value(kPadding));
      MESHFUSE_CHECK(padding >= -rows && padding < rows, "embedding_fwd: padding_idx is ", padding,
                     ", but axis ", AtAxis{0}, " of ", at(weight), " has size ", rows,
                     ". Give a row of the weight.");
    }
    at::Tensor table = io[1];
    if (call.has(kMaxNorm)) {
      checkIsWhole(weight);
      const double norm = call.has(kNormType) ? toDouble(call.value(kNormType)) : 2.0;
      at::embedding_renorm_(table, input.contiguous(), toDouble(call.value(kMaxNorm)), norm);
    }
    io.out() = at::embedding(table, input);
  }

 private:
  /// Scaling a copy that was gathered would leave the weight as it is.
  static void checkIsWhole(const TensorView* weight) {
    const Expr* from = weight->definition();
    MESHFUSE_CHECK(from == nullptr || !from->op().isIdentity(), "embedding_fwd: max_norm scales ",
                   at(weight), " in place, but it is a copy of ",
                   from == nullptr ? "" : from->input(0)->name(),
                   ", which is divided over devices. Leave the weight whole on every device, or "
                   "leave max_norm out.");
  }
};
MESHFUSE_REGISTER_OP(EmbeddingFwdOp);

}  // namespace meshfuse
