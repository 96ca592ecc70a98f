// SPDX-License-Identifier: BSD-3-Clause
// Fixture of tests that run on several ranks, one device each (semantics 8), and the main function
// of their programs.
#pragma once
#include <gtest/gtest.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/exec/executor.h>

#include <cstdio>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>

#include "test_device.h"

namespace meshfuse {

class MultiDeviceTest : public testing::Test {
 protected:
  MultiDeviceTest() : communicator_(&Communicator::instance()), tensor_options_(testOptions()) {}

  /// No rank starts a test before all have ended the one before.
  ~MultiDeviceTest() override {
    try {
      if (communicator_->isAvailable()) communicator_->barrier();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "at the end of a test: " << error.what();
    }
  }

  void SetUp() override {
    if (!communicator_->isAvailable()) GTEST_SKIP() << "no launcher started this test";
  }

  /// This rank's part of a global tensor.
  at::Tensor shardTensor(const at::Tensor& global, const TensorView* tv) const {
    return meshfuse::shardTensor(global, tv, communicator_->deviceId());
  }
  DeviceMesh allDevices() const { return DeviceMesh::createForNumDevices(communicator_->size()); }

  /// Checks types, sizes and values. The relative tolerance is torch.testing's for the type;
  /// `atols` has one absolute tolerance per output.
  static void validate(const std::vector<at::Tensor>& expected,
                       const std::vector<at::Tensor>& outputs, const std::vector<double>& atols) {
    ASSERT_EQ(outputs.size(), expected.size());
    ASSERT_EQ(atols.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE("output " + std::to_string(i));
      const at::Tensor &want = expected[i], &have = outputs[i];
      ASSERT_EQ(have.scalar_type(), want.scalar_type());
      ASSERT_EQ(have.sizes(), want.sizes());
      EXPECT_TRUE(at::allclose(have, want, rtol(want.scalar_type()), atols[i]))
          << "largest difference: " << have.sub(want).abs().max().item().toDouble();
    }
  }

  static double rtol(at::ScalarType type) {
    switch (type) {
      case at::kBFloat16:
        return 1.6e-2;
      case at::kHalf:
        return 1e-3;
      case at::kFloat:
        return 1.3e-6;
      case at::kDouble:
        return 1e-7;
      default:
        return 0;  // integers and Bool
    }
  }

  Communicator* communicator_;
  at::TensorOptions tensor_options_;
};

/// Rank 0 prints all; the others only what fails.
class RankFailurePrinter : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override { test_ = test.name(); }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d, %s, line %d: %s\n",
                 static_cast<int>(Communicator::instance().rank()), test_.c_str(),
                 result.line_number(), result.message());
  }
  std::string test_ = "outside of tests";
};

/// To be called by main().
inline int runMultiDeviceTests(int argc, char** argv) {
  Communicator& world = Communicator::instance();
  testing::InitGoogleTest(&argc, argv);
  if (world.rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankFailurePrinter);
  }
  const int result = RUN_ALL_TESTS();
  world.shutdown(result != 0);
  return result;
}

}  // namespace meshfuse
