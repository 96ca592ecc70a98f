// SPDX-License-Identifier: BSD-3-Clause
// The op of docs/add_an_op.md, compiled from the page.
#include <gtest/gtest.h>
#include <meshfuse/base/error.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/exec/executor.h>
#include <meshfuse/ops/arith.h>
#include <meshfuse/ops/op_def.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>

namespace meshfuse {
namespace {

class AddAnOp : public testing::Test {
 protected:
  TensorView* input(DataType dtype = DataType::Float) {
    TensorView* x = makeSymbolicTensor(2, dtype);
    fusion->addInput(x);
    return x;
  }
  static TensorView* squareSum(TensorView* x) {
    return std::get<TensorView*>(callOp("square_sum", {x})[0]);
  }

  std::shared_ptr<Fusion> fusion = std::make_shared<Fusion>();
  FusionGuard guard{fusion.get()};
  at::Tensor data = at::randn({4, 6});
  at::Tensor expected = at::sum(at::square(data), -1);
};

TEST_F(AddAnOp, EqualsAten) {
  TensorView* y = squareSum(input());
  fusion->addOutput(y);
  EXPECT_EQ(y->ndim(), 1);
  EXPECT_TRUE(y->axis(-1)->isReduction());
  const auto outputs = FusionExecutorCache(fusion).run({data});
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_TRUE(at::allclose(outputs[0], expected));
}

TEST_F(AddAnOp, DividedRowsAreSummedWhereTheyAre) {
  TensorView* x = input();
  fusion->addOutput(squareSum(x));
  x->setDeviceMesh(DeviceMesh::createForNumDevices(2));
  x->outerSplit(0, 2)->axis(0)->parallelize(ParallelType::DIDx);
  const auto communicator = makeSimulatedCommunicator(2);
  const std::vector<std::vector<InputValue>> inputs = {{data.slice(0, 0, 2)},
                                                       {data.slice(0, 2, 4)}};
  const auto outputs = FusionExecutorCache(fusion).runAll(inputs, *communicator);
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_TRUE(at::allclose(outputs[0].at(0), expected.slice(0, 0, 2)));
  EXPECT_TRUE(at::allclose(outputs[1].at(0), expected.slice(0, 2, 4)));
}

TEST_F(AddAnOp, EachDeviceSquaresItsOneElementBeforeTheSum) {
  TensorView* x = input();
  TensorView* turned = transpose(x, 0, 1);  // its last axis, one element for each device
  fusion->addOutput(squareSum(turned));
  x->setDeviceMesh(DeviceMesh::createForNumDevices(4));
  x->parallelize(0, ParallelType::DIDx);
  const auto communicator = makeSimulatedCommunicator(4);
  std::vector<std::vector<InputValue>> inputs;
  for (int64_t device = 0; device < 4; ++device) {
    inputs.push_back({data.slice(0, device, device + 1)});
  }
  const auto outputs = FusionExecutorCache(fusion).runAll(inputs, *communicator);
  ASSERT_EQ(outputs.size(), 4U);
  for (const auto& out : outputs) {
    EXPECT_TRUE(at::allclose(out.at(0), data.square().sum(0)));
  }
}

TEST_F(AddAnOp, IntegersAreRefused) {
  TensorView* x = input(DataType::Int);
  try {
    squareSum(x);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "square_sum: T0 is int64_t. Cast it to a floating point type first.");
  }
}

}  // namespace
}  // namespace meshfuse
