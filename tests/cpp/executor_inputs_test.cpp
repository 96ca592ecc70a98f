// SPDX-License-Identifier: BSD-3-Clause
// FusionExecutorCache: memory of results, aliases, scalar inputs, errors, devices outside a mesh.
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>

#include "device_tensors.h"
#include "executor_fixture.h"
#include "expect_error.h"

namespace meshfuse {
namespace {

using ExecutorMemory = ExecutorTest;
using ExecutorInputs = ExecutorTest;

bool shareMemory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().data() == b.storage().data();
}

// ---- memory of results

TEST_F(ExecutorMemory, ResultsNeverShareMemoryWithInputs) {
  TensorView* x = input({4, 6});
  output(set(x));
  output(permute(x, {1, 0}));
  output(broadcast(x, {false, true, false}));
  output(castOp(DataType::Float, x));
  output(set(set(x)));
  output(relu(x));
  const at::Tensor in = numbers({4, 6});
  const auto outputs = cache().run({in});
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_FALSE(shareMemory(outputs[i], in)) << i;
    for (size_t k = 0; k < i; ++k)
      EXPECT_FALSE(shareMemory(outputs[i], outputs[k])) << i << ", " << k;
  }
  expectEqual(outputs[0], in);
  expectEqual(outputs[1], in.t());
  expectEqual(outputs[4], in);
}

TEST_F(ExecutorMemory, ResultsShareNoMemoryWithEachOther) {
  TensorView* y = relu(input({4, 6}));
  output(y);
  output(set(y));
  output(y);
  output(broadcast(y, {true, false, false}));
  const auto outputs = cache().run({numbers({4, 6})});
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      EXPECT_FALSE(shareMemory(outputs[i], outputs[k])) << i << ", " << k;
  }
  expectEqual(outputs[2], numbers({4, 6}));
}

TEST_F(ExecutorMemory, InputAsOutputIsReturnedAsItIs) {
  output(input({4}));
  const at::Tensor in = numbers({4});
  EXPECT_TRUE(run({in}).is_same(in));
}

TEST_F(ExecutorMemory, EveryDeviceHasMemoryOfItsOwn) {
  TensorView* x = input({4});
  output(set(x));
  const at::Tensor in = numbers({4});
  const DeviceOutputs outputs = runOnMesh(cache(), 3, {in});
  EXPECT_FALSE(shareMemory(outputs[0][0], outputs[1][0]));
  EXPECT_FALSE(shareMemory(outputs[1][0], outputs[2][0]));
  EXPECT_FALSE(shareMemory(outputs[0][0], in));
}

TEST_F(ExecutorMemory, SecondRunLeavesTheFirstResultAlone) {
  output(relu(input({4})));
  const at::Tensor first = run({numbers({4})});
  run({at::rand({4})});
  expectEqual(first, numbers({4}));
}

TEST_F(ExecutorMemory, ResultsDoNotRequireGrad) {
  output(relu(input({4})));
  EXPECT_FALSE(run({at::rand({4}).set_requires_grad(true)}).requires_grad());
}

// ---- aliases

TEST_F(ExecutorMemory, AliasWritesIntoTheInput) {
  TensorView *a = input({4}), *b = input({4});
  fusion->aliasOutputToInput(add(a, b), b);
  const at::Tensor x = numbers({4}), y = numbers({4});
  const void* memory = y.data_ptr();
  EXPECT_TRUE(cache().run({x, y}).empty());
  expectEqual(y, at::mul(numbers({4}), 2));
  EXPECT_EQ(y.data_ptr(), memory);
  expectEqual(x, numbers({4}));
}

TEST_F(ExecutorMemory, AliasMayBeAnOutputToo) {
  TensorView* a = input({4});
  TensorView* sum_of = add(a, a);
  output(sum_of);
  fusion->aliasOutputToInput(sum_of, a);
  const at::Tensor x = numbers({4});
  const at::Tensor result = run({x});
  expectEqual(result, at::mul(numbers({4}), 2));
  expectEqual(x, result);
  EXPECT_FALSE(shareMemory(x, result));
}

TEST_F(ExecutorMemory, AliasIsWrittenAfterAllReads) {
  TensorView *a = input({4}), *b = input({4});
  fusion->aliasOutputToInput(add(a, b), a);
  output(set(a));  // the value before
  const at::Tensor x = numbers({4});
  expectEqual(run({x, numbers({4})}), numbers({4}));
  expectEqual(x, at::mul(numbers({4}), 2));
}

TEST_F(ExecutorMemory, AliasesMaySwap) {
  TensorView *a = input({4}), *b = input({4});
  fusion->aliasOutputToInput(set(a), b);
  fusion->aliasOutputToInput(set(b), a);
  const at::Tensor x = numbers({4}), y = at::mul(numbers({4}), 10);
  cache().run({x, y});
  expectEqual(y, numbers({4}));
  expectEqual(x, at::mul(numbers({4}), 10));
}

TEST_F(ExecutorMemory, AliasOnAMesh) {
  TensorView* a = input({4});
  a->setDeviceMesh(two);
  a->outerSplit(0, 2)->parallelize(0, kX);
  fusion->aliasOutputToInput(add(a, a), a);
  const auto inputs = shardInputs(*fusion, 2, {numbers({4})});
  const auto mesh = makeSimulatedCommunicator(2);
  EXPECT_TRUE(cache().runAll(inputs, *mesh)[1].empty());
  expectEqual(std::get<at::Tensor>(inputs[1][0]), at::mul(numbers({4}).narrow(0, 2, 2), 2));
}

/// On a simulated mesh devices may be given one and the same tensor.
TEST_F(ExecutorMemory, AliasOfAnInputThatDevicesShare) {
  TensorView *a = input({4}), *b = input({4});
  fusion->aliasOutputToInput(add(a, b), a);
  output(set(a));
  const at::Tensor x = numbers({4}), y = numbers({4});
  const std::vector<std::vector<InputValue>> inputs = {{x, y}, {x, y}};
  const auto mesh = makeSimulatedCommunicator(2);
  const DeviceOutputs outputs = cache().runAll(inputs, *mesh);
  expectEqual(outputs[0][0], numbers({4}));
  expectEqual(outputs[1][0], numbers({4}));
  expectEqual(x, at::mul(numbers({4}), 2));
}

/// The first result of two is the old value of the input that the second one replaces.
TEST_F(ExecutorMemory, ViewsOfAnAliasedInputKeepTheOldValue) {
  TensorView* a = input({2, 3});
  output(permute(a, {1, 0}));
  fusion->aliasOutputToInput(add(a, a), a);
  output(broadcast(a, {true, false, false}));
  const at::Tensor x = numbers({2, 3});
  const auto outputs = cache().run({x});
  expectEqual(outputs[0], numbers({2, 3}).t());
  expectEqual(outputs[1], numbers({1, 2, 3}));
  expectEqual(x, at::mul(numbers({2, 3}), 2));
}

TEST_F(ExecutorMemory, TwoAliasesOfOneResult) {
  TensorView *a = input({4}), *b = input({4});
  TensorView* total = add(a, b);
  fusion->aliasOutputToInput(total, a);
  fusion->aliasOutputToInput(set(total), b);
  const at::Tensor x = numbers({4}), y = numbers({4});
  cache().run({x, y});
  expectEqual(x, at::mul(numbers({4}), 2));
  expectEqual(y, x);
  EXPECT_FALSE(shareMemory(x, y));
}

// ---- scalar inputs

TEST_F(ExecutorInputs, ScalarInputsAreReadAtEveryRun) {
  TensorView* x = input({4});
  const Scalar s = fusion->scalars().symbol(DataType::Double);
  fusion->addInput(s);
  const Scalar twice = fusion->scalars().mul(s, fusion->scalars().constant(2.0, DataType::Double));
  output(call("mul", {x, twice}));
  for (const double value : {0.5, 3.0, -1.0}) {
    expectClose(run({numbers({4}), ScalarValue(value)}), at::mul(numbers({4}), 2 * value));
  }
  EXPECT_EQ(cache().stats().compiles, 1);
}

TEST_F(ExecutorInputs, ScalarOutputs) {
  const Scalar s = fusion->scalars().symbol(DataType::Int);
  TensorView* x = input({-1});
  fusion->addInput(s);
  fusion->addOutput(
      fusion->scalars().add(s, fusion->scalars().constant(ScalarValue(int64_t{1}), DataType::Int)));
  fusion->addOutput(x->axis(0)->extent());
  const auto outputs = cache().run({numbers({5}), ScalarValue(int64_t{41})});
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].item().toLong(), 42);
  EXPECT_EQ(outputs[1].item().toLong(), 5);
}

TEST_F(ExecutorInputs, ScalarsAreConvertedOrRefused) {
  TensorView* x = input({4});
  const Scalar s = fusion->scalars().symbol(DataType::Double);
  fusion->addInput(s);
  output(call("mul", {x, s}));
  expectClose(run({numbers({4}), ScalarValue(int64_t{3})}), at::mul(numbers({4}), 3));
  expectError([&] { run({numbers({4}), ScalarValue(std::complex<double>(1, 1))}); },
              "is not compatible with the expected data type: double");
}

// ---- errors

TEST_F(ExecutorInputs, NumberAndKindOfInputs) {
  TensorView* x = input({4});
  const Scalar s = fusion->scalars().symbol(DataType::Double);
  fusion->addInput(s);
  output(call("mul", {x, s}));
  expectError([&] { run({numbers({4})}); }, "execute: expected 2 inputs, but 1 were given");
  expectError([&] { run({ScalarValue(1.0), ScalarValue(1.0)}); },
              {"Expected input 0, T0_g_float[iS0{4}], to be an at::Tensor but got scalar 1"});
  expectError([&] { run({numbers({4}), numbers({4})}); },
              {"Expected input 1, ", "to be a scalar but got float tensor of rank 1"});
  expectError([&] { run({at::Tensor(), ScalarValue(1.0)}); }, "but got an undefined one");
}

TEST_F(ExecutorInputs, MeshBeyondTheCommunicator) {
  TensorView* x = input({4});
  x->setDeviceMesh(two);
  output(relu(x));
  expectError([&] { run({numbers({4})}); },
              {"execute: DeviceMesh{0 1} needs device 1, but the communicator has 1 devices"});
}

TEST_F(ExecutorInputs, DevicesMustAgree) {
  TensorView* x = input({-1});
  x->setDeviceMesh(two);
  x->outerSplit(0, 2)->parallelize(0, kX);
  output(relu(x));
  const auto mesh = makeSimulatedCommunicator(2);
  const auto runWith = [&](int64_t a, int64_t b) {
    const std::vector<std::vector<InputValue>> inputs = {{at::rand({a})}, {at::rand({b})}};
    return cache().runAll(inputs, *mesh);
  };
  EXPECT_NO_THROW(runWith(3, 3));
  expectError([&] { runWith(3, 4); }, {"gives T0.0 the value 8", "6", "on device 1"});
  const std::vector<std::vector<InputValue>> one = {{at::rand({3})}};
  expectError([&] { cache().runAll(one, *mesh); },
              "execute: 1 lists of inputs were given for 2 devices");
}

TEST_F(ExecutorInputs, RunNeedsASingleDevice) {
  output(relu(input({4})));
  const auto mesh = makeSimulatedCommunicator(2);
  const CommunicatorGuard active(mesh.get());
  expectError([&] { run({at::rand({4})}); },
              "execute: inside simulate(2) there is no single device");
}

TEST_F(ExecutorInputs, SizesThatDisagreeNameTheOperation) {
  TensorView* a = input({-1, -1});
  output(matmul(a, input({-1, -1})));
  expectError(
      [&] { run({at::rand({4, 8}), at::rand({7, 6})}); },
      {"matmul: axis 1 of T0 has size 8 but axis 0 of T1 has size 7", "while compiling T2"});
}

TEST_F(ExecutorInputs, CudaSchedulesAreRefused) {
  output(relu(input({4})))->parallelize(0, ParallelType::TIDx);
  expectError<UnsupportedError>([&] { run({at::rand({4})}); },
                                {"execute: axis 0 of T1 is on block_x", "use mesh_x"});
}

TEST_F(ExecutorInputs, MessageTooFewAxes) {
  output(relu(input({-1, 6})));
  expectError([&] { run({at::rand({6})}); }, "to have 2 axes, but got a tensor of 1 axes");
}

// ---- devices outside a mesh

TEST_F(ExecutorInputs, DeviceOutsideTheMeshReturnsNothing) {
  TensorView* x = input({4, 6});
  x->setDeviceMesh(two);
  x->outerSplit(1, 2)->parallelize(1, kX);
  output(relu(x));
  TensorView* whole = input({-1, 3});
  whole->setDeviceMesh(two);
  output(relu(whole));
  const DeviceOutputs outputs = runOnMesh(cache(), 3, {numbers({4, 6}), numbers({2, 3})});
  EXPECT_EQ(sizes(outputs[1][0]), Sizes({4, 3}));
  EXPECT_EQ(sizes(outputs[2][0]), Sizes({4, 0}));
  EXPECT_EQ(sizes(outputs[2][1]), Sizes({0, 3}));
}

TEST_F(ExecutorInputs, InputsOfADeviceOutsideTheMeshAreIgnored) {
  TensorView* x = input({4});
  x->setDeviceMesh(DeviceMesh({1}));
  output(relu(x));
  const auto mesh = makeSimulatedCommunicator(2);
  for (const at::Tensor& anything : {at::empty({0}), at::rand({7, 7}), at::empty({4}, at::kLong)}) {
    const std::vector<std::vector<InputValue>> inputs = {{anything}, {numbers({4})}};
    const DeviceOutputs outputs = cache().runAll(inputs, *mesh);
    expectEqual(outputs[1][0], numbers({4}));
    EXPECT_EQ(sizes(outputs[0][0]), Sizes({0}));
  }
}

}  // namespace
}  // namespace meshfuse
