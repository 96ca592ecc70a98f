// SPDX-License-Identifier: BSD-3-Clause
// Complex numbers and their parts.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/pointwise.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>

namespace meshfuse {
namespace {

using at::Tensor;

const UnaryRow kParts[] = {
    {"real", TypeRule::KeepReal, "Real part; of real numbers, the numbers themselves.",
     [](const Tensor& x) { return at::real(x); }, Accepts::Any, true},
    {"imag", TypeRule::KeepReal, "Imaginary part; real numbers have none, as in torch.",
     [](const Tensor& x) { return at::imag(x).resolve_neg(); }, Accepts::Complex, true},
};
const bool kRegistered = registerUnary(kParts);

}  // namespace

struct ComplexOp final : PointwiseOp {
  OpInfo info() const override {
    return {.name = "complex",
            .params = {tensorOrScalar("real"), tensorOrScalar("imag")},
            .doc = "real + imag * 1j: ComplexDouble if an operand is Double, else ComplexFloat."};
  }
  void validate(const OpCall& call) const override {
    for (const TensorView* tv : call.tensors()) {
      MESHFUSE_CHECK(isFloating(tv->dtype()), "complex: ", at(tv), " is ", tv->dtype(),
                     ", but the parts of a complex number are floating point. Cast it first.");
    }
    MESHFUSE_CHECK(!isComplex(promotedType(call)), "complex: the scalar beside ",
                   at(call.tensors()[0]),
                   " is a complex number. Give the two parts, as real numbers.");
  }
  DataType dtype(const OpCall& call) const override {
    return promotedType(call) == DataType::Double ? DataType::ComplexDouble
                                                  : DataType::ComplexFloat;
  }
  void evaluate(const OpCall& call, const Operands& io) const override {
    const DataType part =
        call.resultType(0) == DataType::ComplexDouble ? DataType::Double : DataType::Float;
    io.out() = at::complex(operandAs(call, io, 0, part), operandAs(call, io, 1, part));
  }
};
MESHFUSE_REGISTER_OP(ComplexOp);

}  // namespace meshfuse
