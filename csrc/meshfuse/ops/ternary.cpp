// SPDX-License-Identifier: BSD-3-Clause
// Elementwise functions of three and four operands, any of them a tensor or a scalar.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/pointwise.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

namespace meshfuse {
namespace {

using at::Tensor;

/// Ops that compute in the type of their result.
struct MixedOp : PointwiseOp {
  DataType dtype(const OpCall& call) const override {
    return applyRule(TypeRule::Arithmetic, promotedType(call));
  }
  Tensor operand(const OpCall& call, const Operands& io, size_t param) const {
    return operandAs(call, io, param, call.resultType(0));
  }
};

}  // namespace

struct WhereOp final : PointwiseOp {
  OpInfo info() const override {
    return {.name = "where",
            .params = {tensorOrScalar("cond"), tensorOrScalar("x"), tensorOrScalar("y")},
            .doc = "x where cond (Bool) holds, elsewhere y. Keeps 16-bit types."};
  }
  void validate(const OpCall& call) const override {
    const DataType type =
        call.isTensor(0) ? call.tensor(0)->dtype() : call.fusion().scalars().dtype(call.scalar(0));
    const TensorView* named = call.tensors()[0];
    MESHFUSE_CHECK(type == DataType::Bool, "where: Condition should be of DataType Bool, but ",
                   call.isTensor(0) ? "" : "the scalar beside ", at(named), " is ", type,
                   ". Compare it with 0 first, or cast it.");
  }
  DataType dtype(const OpCall& call) const override { return promotedType(call, 1); }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const DataType type = call.resultType(0);
    io.out() = at::where(operandAs(call, io, 0, DataType::Bool), operandAs(call, io, 1, type),
                         operandAs(call, io, 2, type));
  }
};
MESHFUSE_REGISTER_OP(WhereOp);

struct LerpOp final : MixedOp {
  OpInfo info() const override {
    return {.name = "lerp",
            .params = {tensorOrScalar("start"), tensorOrScalar("end"), tensorOrScalar("weight")},
            .doc = "start + weight * (end - start)."};
  }
  void validate(const OpCall& call) const override {
    const DataType type = promotedType(call);
    MESHFUSE_CHECK(isFloating(type) || isComplex(type), "lerp: ", at(call.tensors()[0]), " is ",
                   call.tensors()[0]->dtype(),
                   ", and no operand is floating point. Cast one of them first.");
  }
  Scalar onScalars(const OpCall& call) const override {
    ScalarPool& pool = call.fusion().scalars();
    const Scalar way = pool.sub(call.scalar(1), call.scalar(0));
    return pool.add(call.scalar(0), pool.mul(call.scalar(2), way));
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const Tensor start = operand(call, io, 0), end = operand(call, io, 1);
    io.out() = call.isTensor(2) ? at::lerp(start, end, operand(call, io, 2))
                                : at::lerp(start, end, toAtScalar(call.value(2)));
  }
};
MESHFUSE_REGISTER_OP(LerpOp);

struct AddcmulOp final : MixedOp {
  OpInfo info() const override {
    return {.name = "addcmul",
            .params = {tensorOrScalar("a"), tensorOrScalar("b"), tensorOrScalar("c"),
                       tensorOrScalar("alpha")},
            .doc = "a + alpha * b * c."};
  }
  Scalar onScalars(const OpCall& call) const override {
    ScalarPool& pool = call.fusion().scalars();
    const Scalar scaled = pool.mul(call.scalar(3), call.scalar(1));
    return pool.add(call.scalar(0), pool.mul(scaled, call.scalar(2)));
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const Tensor a = operand(call, io, 0), b = operand(call, io, 1), c = operand(call, io, 2);
    io.out() = call.isTensor(3) ? at::add(a, operand(call, io, 3) * b * c)
                                : at::addcmul(a, b, c, toAtScalar(call.value(3)));
  }
};
MESHFUSE_REGISTER_OP(AddcmulOp);

struct AlphaOp : MixedOp {
  AlphaOp(const char* op_name, const char* op_doc, bool adds)
      : op_name_(op_name), op_doc_(op_doc), adds_(adds) {}
  OpInfo info() const override {
    return {.name = op_name_,
            .params = {tensorOrScalar("a"), tensorOrScalar("b"), tensorOrScalar("alpha")},
            .doc = op_doc_};
  }
  Scalar onScalars(const OpCall& call) const override {
    ScalarPool& pool = call.fusion().scalars();
    const Scalar scaled = pool.mul(call.scalar(2), call.scalar(1));
    return pool.binary(adds_ ? ScalarOp::Add : ScalarOp::Sub, call.scalar(0), scaled);
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const Tensor a = operand(call, io, 0);
    Tensor b = operand(call, io, 1);
    at::Scalar alpha = 1;
    if (call.isTensor(2)) {
      b = operand(call, io, 2) * b;
    } else {
      alpha = toAtScalar(call.value(2));
    }
    io.out() = adds_ ? at::add(a, b, alpha) : at::sub(a, b, alpha);
  }

 private:
  const char *op_name_, *op_doc_;
  bool adds_;
};
struct AddAlphaOp final : AlphaOp {
  AddAlphaOp() : AlphaOp("add_alpha", "a + alpha * b.", true) {}
};
struct SubAlphaOp final : AlphaOp {
  SubAlphaOp() : AlphaOp("sub_alpha", "a - alpha * b.", false) {}
};
MESHFUSE_REGISTER_OP(AddAlphaOp);
MESHFUSE_REGISTER_OP(SubAlphaOp);

}  // namespace meshfuse
