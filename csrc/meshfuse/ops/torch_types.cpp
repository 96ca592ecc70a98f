// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/ops/torch_types.h>

#include <ATen/ScalarOps.h>
#include <ATen/ops/full.h>

namespace meshfuse {

at::ScalarType toScalarType(DataType type) {
  switch (type) {
    case DataType::Double:
      return at::kDouble;
    case DataType::Float:
      return at::kFloat;
    case DataType::Half:
      return at::kHalf;
    case DataType::BFloat16:
      return at::kBFloat16;
    case DataType::Int:
    case DataType::Index:
      return at::kLong;
    case DataType::Int32:
      return at::kInt;
    case DataType::UInt64:
      return at::kUInt64;
    case DataType::Bool:
      return at::kBool;
    case DataType::ComplexFloat:
      return at::kComplexFloat;
    case DataType::ComplexDouble:
      return at::kComplexDouble;
    case DataType::Float8_e4m3fn:
      return at::kFloat8_e4m3fn;
    case DataType::Float8_e5m2:
      return at::kFloat8_e5m2;
    case DataType::Float8_e8m0fnu:
      return at::kFloat8_e8m0fnu;
    default:
      throw UnsupportedError(concat("torch has no type for ", pythonName(type),
                                    ", so no tensor of it can be computed."));
  }
}

DataType toDataType(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DataType::Double;
    case at::kFloat:
      return DataType::Float;
    case at::kHalf:
      return DataType::Half;
    case at::kBFloat16:
      return DataType::BFloat16;
    case at::kLong:
      return DataType::Int;
    case at::kInt:
      return DataType::Int32;
    case at::kUInt64:
      return DataType::UInt64;
    case at::kBool:
      return DataType::Bool;
    case at::kComplexFloat:
      return DataType::ComplexFloat;
    case at::kComplexDouble:
      return DataType::ComplexDouble;
    case at::kFloat8_e4m3fn:
      return DataType::Float8_e4m3fn;
    case at::kFloat8_e5m2:
      return DataType::Float8_e5m2;
    case at::kFloat8_e8m0fnu:
      return DataType::Float8_e8m0fnu;
    default:
      fail("tensors of torch type ", c10::toString(type),
           " are not supported. Convert the tensor to one of the types of DataType first.");
  }
}

at::Scalar toAtScalar(const ScalarValue& value) {
  return std::visit(
      [](auto x) -> at::Scalar {
        if constexpr (std::is_same_v<decltype(x), std::complex<double>>) {
          return c10::complex<double>(x.real(), x.imag());
        } else {
          return x;
        }
      },
      value);
}

at::Tensor wrappedNumber(const ScalarValue& value) {
  at::Tensor t = c10::scalar_to_tensor(toAtScalar(value));
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

at::Tensor wrappedNumber(const ScalarValue& value, c10::Device device) {
  const at::Scalar number = toAtScalar(value);  // filled in there: a copy would wait for the device
  at::Tensor t = at::full({}, number, at::dtype(number.type()).device(device));
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

const at::Tensor& Operands::operator[](size_t i) const { return slots_[in_[i]]; }
at::Tensor& Operands::out(size_t i) const { return slots_[out_[i]]; }

}  // namespace meshfuse
