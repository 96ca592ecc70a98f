// SPDX-License-Identifier: BSD-3-Clause
// Between DataType and torch's scalar types, and scalars as tensors. For .cpp files that use ATen.
#pragma once
#include <meshfuse/base/scalar.h>

#include <ATen/core/Tensor.h>

namespace meshfuse {

/// Throws UnsupportedError for types that torch does not have.
at::ScalarType toScalarType(DataType type);
/// Throws Error naming the type when meshfuse has no such type (int8, int16, ...).
DataType toDataType(at::ScalarType type);
at::Scalar toAtScalar(const ScalarValue& value);
/// A 0-dim tensor that takes part in type promotion as a Python number does.
at::Tensor wrappedNumber(const ScalarValue& value);
/// The same on another device than the CPU, for operations that want all operands on one.
at::Tensor wrappedNumber(const ScalarValue& value, c10::Device device);

}  // namespace meshfuse
