// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/creation.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/ops/empty_strided.h>

namespace meshfuse {

struct FullOp final : OpDef {
  OpInfo info() const override {
    return {.name = "full",
            .params = {attr("shape", ParamKind::ShapeList), attr("fill_value", ParamKind::Number),
                       attr("dtype", ParamKind::DType)},
            .doc =
                "A tensor of one value. shape is global, of ints and Scalars; fill_value is "
                "converted to dtype.",
            .creates = true};
  }
  FactorMap factors(const OpCall& call) const override {
    MESHFUSE_CHECK(call.type(2) != DataType::Null, "full: dtype is Null. Name a data type.");
    const DataType value = call.fusion().scalars().dtype(call.scalar(1));
    MESHFUSE_CHECK(!isComplex(value) || isComplex(call.type(2)), "full: fill_value is ", value,
                   " and dtype is ", call.type(2), ". Give a complex dtype or a real value.");
    return sizesAsFactors(call, 0);
  }
  DataType dtype(const OpCall& call) const override { return call.type(2); }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const Layout& want = call.want(0);
    io.out() = at::empty_strided(want.sizes, want.strides, optionsOfResult(call, 0));
    io.out().fill_(toAtScalar(castValue(call.value(1), call.type(2))));
  }
};
MESHFUSE_REGISTER_OP(FullOp);

}  // namespace meshfuse
