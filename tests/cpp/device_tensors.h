// SPDX-License-Identifier: BSD-3-Clause
// Tensors of the devices of a simulated mesh: sharding inputs, running, comparing.
#pragma once
#include <gtest/gtest.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/exec/executor.h>

#include <numeric>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include "test_device.h"

namespace meshfuse {

using Sizes = std::vector<int64_t>;
using DeviceOutputs = std::vector<std::vector<at::Tensor>>;  // [device][output]

/// 0, 1, 2, ... in the given sizes.
inline at::Tensor numbers(const Sizes& sizes, at::ScalarType type = at::kFloat) {
  const int64_t n = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  return at::arange(n, testOptions(type)).reshape(sizes);
}

inline Sizes strides(const at::Tensor& t) { return t.strides().vec(); }
inline Sizes sizes(const at::Tensor& t) { return t.sizes().vec(); }

/// Same sizes, type and values, up to rounding.
inline void expectClose(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(sizes(actual), sizes(expected));
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::allclose(actual, expected, 1e-5, 1e-6));
}

inline void expectEqual(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(sizes(actual), sizes(expected));
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(actual, expected));
}

/// Inputs of every device: parts of `global` as the inputs of `fusion` are sharded.
inline std::vector<std::vector<InputValue>> shardInputs(const Fusion& fusion, int64_t devices,
                                                        const std::vector<at::Tensor>& global) {
  std::vector<std::vector<InputValue>> all;
  for (int64_t d = 0; d < devices; ++d) {
    std::vector<InputValue>& mine = all.emplace_back();
    for (size_t i = 0; i < global.size(); ++i) {
      const auto* tv = std::get<TensorView*>(fusion.inputs().at(i));
      mine.emplace_back(tv->hasDeviceMesh() ? shardTensor(global[i], tv, d) : global[i]);
    }
  }
  return all;
}

/// Runs a program on a simulated mesh.
inline DeviceOutputs runOnMesh(FusionExecutorCache& cache, int64_t devices,
                               const std::vector<at::Tensor>& global) {
  const auto mesh = makeSimulatedCommunicator(devices);
  return cache.runAll(shardInputs(*cache.fusion(), devices, global), *mesh);
}

/// The global tensor of output `i`, whose shards `tv` describes.
inline at::Tensor globalOutput(const DeviceOutputs& outputs, size_t i, const TensorView* tv) {
  std::vector<at::Tensor> parts;
  Sizes devices;
  for (const auto& list : outputs) {
    parts.push_back(list.at(i));
    devices.push_back(static_cast<int64_t>(devices.size()));
  }
  return unshardTensor(parts, devices, tv);
}

}  // namespace meshfuse
