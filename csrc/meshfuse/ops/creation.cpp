// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/creation.h>
#include <meshfuse/ops/torch_types.h>

namespace meshfuse {

FactorMap sizesAsFactors(const OpCall& call, size_t param) {
  ScalarPool& pool = call.fusion().scalars();
  const auto& shape = std::get<std::vector<Scalar>>(call.args()[param]);
  FactorBuilder builder(call);
  for (size_t i = 0; i < shape.size(); ++i) {
    MESHFUSE_CHECK(isIntegral(pool.dtype(shape[i])), call.op().name(), ": the size at index ", i,
                   ", ", toString(call.fusion(), shape[i]), ", is ", pool.dtype(shape[i]),
                   ". Sizes are integers.");
    const auto size = pool.constInt(shape[i]);
    MESHFUSE_CHECK(!size || *size >= -1, call.op().name(), ": The value ", size.value_or(0),
                   " at index ", i,
                   " was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1). Give "
                   "the global size of the axis.");
    MESHFUSE_CHECK(!size || *size >= 0, call.op().name(), ": the size at index ", i,
                   " is -1, and no operand tells which size that is. Give the global size, or that "
                   "of another tensor: x.size(0).");
    if (size == 1) {
      builder.resultAxis(std::nullopt);
      continue;
    }
    builder.resultAxis(
        builder.freshFactor(FactorKind::Parallel, shape[i], "axis " + std::to_string(i)));
  }
  return builder.build();
}

at::TensorOptions optionsOfResult(const OpCall& call, size_t i) {
  const c10::Device device(static_cast<c10::DeviceType>(call.deviceType()), call.deviceIndex());
  return at::dtype(toScalarType(call.resultType(i))).device(device);
}

}  // namespace meshfuse
