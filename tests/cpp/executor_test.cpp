// SPDX-License-Identifier: BSD-3-Clause
// FusionExecutorCache: the seed program on simulated meshes, layouts of results, cached plans.
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>

#include "device_tensors.h"
#include "executor_fixture.h"
#include "expect_error.h"

namespace meshfuse {
namespace {

// ---- the seed program: a matmul whose output is cut by a DID loop split

struct Seed {
  TensorView *x, *w, *out;
};

/// [2, 8, 12] @ [12, 6 d], column-parallel over d devices.
Seed makeSeed(Fusion& fusion, int64_t d, bool symbolic = false) {
  const auto size = [&](int64_t n) { return symbolic ? -1 : n; };
  Seed seed{.x = makeContigConcreteTensor({size(2), size(8), size(12)}),
            .w = makeContigConcreteTensor({size(12), size(6 * d)}),
            .out = nullptr};
  seed.out = matmul(seed.x, seed.w);
  fusion.addInput(seed.x);
  fusion.addInput(seed.w);
  fusion.addOutput(seed.out);
  for (TensorView* tv : {seed.x, seed.w, seed.out}) {
    tv->setDeviceMesh(DeviceMesh::createForNumDevices(d));
  }
  seed.w->outerSplit(-1, d)->axis(-2)->parallelize(kX);
  seed.out->outerSplit(-2, d)->axis(-3)->parallelize(kX);
  return seed;
}

class SeedProgram : public ExecutorTest, public testing::WithParamInterface<int64_t> {};

TEST_P(SeedProgram, EveryDeviceHasItsColumns) {
  const int64_t d = GetParam();
  const Seed seed = makeSeed(*fusion, d);
  const at::Tensor x = at::rand({2, 8, 12}, testOptions()),
                   w = at::rand({12, 6 * d}, testOptions());
  const DeviceOutputs outputs = runOnMesh(cache(), d, {x, w});
  const at::Tensor want = at::matmul(x, w);
  ASSERT_EQ(outputs.size(), static_cast<size_t>(d));
  for (int64_t device = 0; device < d; ++device) {
    const at::Tensor& mine = outputs[static_cast<size_t>(device)].at(0);
    expectClose(mine, shardTensor(want, seed.out, device));
    EXPECT_EQ(strides(mine), Sizes({48, 6, 1}));
  }
  expectClose(globalOutput(outputs, 0, seed.out), want);
  EXPECT_EQ(cache().stats().relayouts, 0);
  EXPECT_EQ(cache().stats().compiles, 1);
}

TEST_P(SeedProgram, AllocationAsLoopChangesNothing) {
  const int64_t d = GetParam();
  const Seed seed = makeSeed(*fusion, d);
  for (TensorView* tv : {seed.x, seed.w, seed.out}) tv->setAllocationAsLoop();
  const at::Tensor x = at::rand({2, 8, 12}, testOptions()),
                   w = at::rand({12, 6 * d}, testOptions());
  const DeviceOutputs outputs = runOnMesh(cache(), d, {x, w});
  expectClose(globalOutput(outputs, 0, seed.out), at::matmul(x, w));
  EXPECT_EQ(strides(outputs[0][0]), Sizes({48, 6, 1}));
  EXPECT_EQ(cache().stats().relayouts, 0);
}

TEST_P(SeedProgram, SymbolicSizesRunAgainWithoutRebuilding) {
  const int64_t d = GetParam();
  const Seed seed = makeSeed(*fusion, d, true);
  for (const Sizes& s :
       {Sizes{2, 8, 12, 6}, Sizes{1, 3, 5, 2}, Sizes{2, 8, 12, 6}, Sizes{0, 3, 5, 2}}) {
    const at::Tensor x = at::rand({s[0], s[1], s[2]}, testOptions()),
                     w = at::rand({s[2], s[3] * d}, testOptions());
    const DeviceOutputs outputs = runOnMesh(cache(), d, {x, w});
    expectClose(globalOutput(outputs, 0, seed.out), at::matmul(x, w));
  }
  EXPECT_EQ(cache().stats().compiles, 3);
  EXPECT_EQ(cache().stats().runs, 4);
}

TEST_P(SeedProgram, PropagationFindsTheOutput) {
  const int64_t d = GetParam();
  TensorView* x = input({4, 8});
  TensorView* w = input({8, 3 * d});
  output(relu(matmul(x, w)));
  w->setDeviceMesh(DeviceMesh::createForNumDevices(d));
  w->outerSplit(1, d)->parallelize(1, kX);
  const at::Tensor gx = at::rand({4, 8}, testOptions()), gw = at::rand({8, 3 * d}, testOptions());
  const auto mesh = makeSimulatedCommunicator(d);
  std::vector<std::vector<InputValue>> inputs;
  for (int64_t device = 0; device < d; ++device) inputs.push_back({gx, shardTensor(gw, w, device)});
  const DeviceOutputs outputs = cache().runAll(inputs, *mesh);
  const at::Tensor want = at::relu(at::matmul(gx, gw));
  for (int64_t device = 0; device < d; ++device) {
    expectClose(outputs[static_cast<size_t>(device)][0],
                want.narrow(1, 3 * device, 3).contiguous());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SeedProgram, testing::Values(1, 2, 3, 4, 8));

// ---- layouts

TEST_F(ExecutorTest, ColumnMajorResultNeedsNoCopy) {
  TensorView *a = input({4, 8}), *b = input({8, 6});
  TensorView* out = output(matmul(a, b));
  out->setStrideOrder(std::vector<int64_t>{0, 1}, "test");
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(two);
  b->outerSplit(1, 2)->parallelize(1, kX);
  out->outerSplit(1, 2)->parallelize(1, kX);
  const at::Tensor ga = at::rand({4, 8}, testOptions()), gb = at::rand({8, 6}, testOptions());
  const DeviceOutputs outputs = runOnMesh(cache(), 2, {ga, gb});
  expectClose(globalOutput(outputs, 0, out), at::matmul(ga, gb));
  for (const auto& device : outputs) EXPECT_EQ(strides(device[0]), Sizes({1, 4}));
  EXPECT_EQ(cache().stats().relayouts, 0);
}

TEST_F(ExecutorTest, EveryStrideOrderOfABatchedProduct) {
  const at::Tensor ga = at::rand({5, 4, 8}, testOptions()), gb = at::rand({8, 6}, testOptions());
  Sizes order = {0, 1, 2};
  do {
    auto program = std::make_shared<Fusion>();
    const FusionGuard active(program.get());
    TensorView *a = makeContigConcreteTensor({5, 4, 8}), *b = makeContigConcreteTensor({8, 6});
    program->addInput(a);
    program->addInput(b);
    TensorView* out = matmul(a, b);
    program->addOutput(out);
    out->setStrideOrder(order, "test");
    for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(two);
    b->outerSplit(1, 2)->parallelize(1, kX);
    out->outerSplit(2, 2)->parallelize(2, kX);
    FusionExecutorCache executor(program);
    const DeviceOutputs outputs = runOnMesh(executor, 2, {ga, gb});
    expectClose(globalOutput(outputs, 0, out), at::matmul(ga, gb));
    const Sizes local = {5, 4, 3};
    Sizes want(3);
    for (size_t i = 0; i < 3; ++i) {
      want[i] = 1;
      for (size_t k = 0; k < 3; ++k) want[i] *= order[k] < order[i] ? local[k] : 1;
    }
    EXPECT_EQ(strides(outputs[1][0]), want) << order[0] << order[1] << order[2];
  } while (std::ranges::next_permutation(order).found);
}

TEST_F(ExecutorTest, LinearHonoursAStrideOrder) {
  TensorView *x = input({4, 8}), *w = input({6, 8}), *bias = input({6});
  TensorView* out = output(linear(x, w, bias));
  out->setStrideOrder(std::vector<int64_t>{0, 1}, "test");
  const at::Tensor gx = at::rand({4, 8}, testOptions()), gw = at::rand({6, 8}, testOptions()),
                   gb = at::rand({6}, testOptions());
  const at::Tensor result = run({gx, gw, gb});
  expectClose(result, at::linear(gx, gw, gb));
  EXPECT_EQ(strides(result), Sizes({1, 4}));
}

TEST_F(ExecutorTest, MovedAxesAreCopiedOnce) {
  TensorView* out = output(permute(input({4, 6}), {1, 0}));
  const at::Tensor x = numbers({4, 6});
  const at::Tensor result = run({x});
  expectEqual(result, x.t());
  EXPECT_EQ(strides(result), Sizes({4, 1}));
  EXPECT_EQ(cache().stats().relayouts, 1);
  EXPECT_FALSE(out->hasAllocation());
}

TEST_F(ExecutorTest, CyclicAndNestedCuts) {
  for (const bool cyclic : {true, false}) {
    auto program = std::make_shared<Fusion>();
    const FusionGuard active(program.get());
    TensorView *a = makeContigConcreteTensor({4, 8}), *b = makeContigConcreteTensor({8, 12});
    program->addInput(a);
    program->addInput(b);
    TensorView* out = matmul(a, b);
    program->addOutput(out);
    for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(two);
    for (TensorView* tv : {b, out}) {
      if (cyclic) tv->innerSplit(1, 2)->parallelize(2, kX);
      if (!cyclic) tv->outerSplit(1, 2)->outerSplit(2, 2)->parallelize(2, kX);
    }
    FusionExecutorCache executor(program);
    const at::Tensor ga = at::rand({4, 8}, testOptions()), gb = at::rand({8, 12}, testOptions());
    const DeviceOutputs outputs = runOnMesh(executor, 2, {ga, gb});
    expectClose(globalOutput(outputs, 0, out), at::matmul(ga, gb));
    EXPECT_EQ(executor.stats().relayouts, 0);
  }
}

TEST_F(ExecutorTest, SquareMesh) {
  TensorView *a = input({4, 8}), *b = input({8, 6});
  TensorView* out = output(matmul(a, b));
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(square);
  a->outerSplit(0, 2)->parallelize(0, kY);
  b->outerSplit(1, 2)->parallelize(1, kX);
  out->outerSplit(1, 2)->parallelize(1, kX)->outerSplit(0, 2)->parallelize(0, kY);
  const at::Tensor ga = at::rand({4, 8}, testOptions()), gb = at::rand({8, 6}, testOptions());
  const DeviceOutputs outputs = runOnMesh(cache(), 4, {ga, gb});
  EXPECT_EQ(sizes(outputs[3][0]), Sizes({2, 3}));
  expectClose(globalOutput(outputs, 0, out), at::matmul(ga, gb));
}

TEST_F(ExecutorTest, DeviceAxisThatIsLogical) {
  TensorView *x = input({5, 3, 8}), *w = input({2, 6, 8}), *bias = input({2, 6});
  TensorView* out = output(linear(x, w, bias));
  for (TensorView* tv : {x, w, bias, out}) tv->setDeviceMesh(two);
  for (TensorView* tv : {w, bias, out}) tv->parallelize(0, kX);
  const at::Tensor gx = at::rand({5, 3, 8}, testOptions()), gw = at::rand({2, 6, 8}, testOptions()),
                   gb = at::rand({2, 6}, testOptions());
  const DeviceOutputs outputs = runOnMesh(cache(), 2, {gx, gw, gb});
  for (int64_t d = 0; d < 2; ++d) {
    expectClose(outputs[static_cast<size_t>(d)][0],
                at::linear(gx, gw.select(0, d), gb.select(0, d)).unsqueeze(0));
  }
}

TEST_F(ExecutorTest, UnevenSerialSplitInTheAllocation) {
  TensorView* out = output(relu(input({5})))->split(0, 2);
  out->setAllocationAsLoop();
  expectEqual(run({numbers({5})}), numbers({5}));
}

// ---- plans

TEST_F(ExecutorTest, PlanIsFoundAgain) {
  output(relu(input({-1, 6})));
  const at::Tensor x = at::rand({4, 6}, testOptions());
  EXPECT_FALSE(cache().isCompiled(std::vector<InputValue>{x}));
  EXPECT_EQ(cache().lastPlan(), nullptr);
  run({x});
  EXPECT_TRUE(cache().isCompiled(std::vector<InputValue>{at::rand({4, 6}, testOptions())}));
  EXPECT_FALSE(cache().isCompiled(std::vector<InputValue>{at::rand({5, 6}, testOptions())}));
  const auto plan = cache().lastPlan();
  run({at::rand({4, 6}, testOptions())});
  EXPECT_EQ(cache().lastPlan(), plan);
  EXPECT_EQ(cache().stats().compiles, 1);
  EXPECT_EQ(cache().stats().runs, 2);
}

TEST_F(ExecutorTest, SizesStridesAndTypesMakePlans) {
  output(relu(addInput(makeSymbolicTensor(2))));
  run({at::rand({4, 6}, testOptions())});
  run({at::rand({5, 6}, testOptions())});
  run({at::rand({6, 4}, testOptions()).t()});
  EXPECT_EQ(cache().stats().compiles, 3);
  run({at::rand({5, 6}, testOptions())});
  run({at::rand({6, 4}, testOptions()).t()});
  EXPECT_EQ(cache().stats().compiles, 3);
}

TEST_F(ExecutorTest, ChangedProgramIsCompiledAgain) {
  TensorView* x = input({-1});
  output(relu(x));
  run({at::rand({4}, testOptions())});
  output(call("exp", {x}));
  EXPECT_FALSE(cache().isCompiled(std::vector<InputValue>{at::rand({4}, testOptions())}));
  EXPECT_EQ(cache().run({at::rand({4}, testOptions())}).size(), 2U);
  EXPECT_EQ(cache().stats().compiles, 2);
}

TEST_F(ExecutorTest, ChangedContiguityIsNoticed) {
  TensorView* x = addInput(makeSymbolicTensor(2));
  output(relu(x));
  const at::Tensor strided = at::rand({4, 12}, testOptions()).narrow(1, 0, 6);
  EXPECT_NO_THROW(run({strided}));
  x->setContiguity(Contiguity{true, true});
  expectError([&] { run({strided}); }, "stride mismatch with contiguity info");
}

TEST_F(ExecutorTest, UsersProgramStaysAsItWas) {
  const Seed seed = makeSeed(*fusion, 2);
  seed.out->reorder(std::vector<int64_t>{1, 2, 0, 3, 4});
  const std::string before = loopText(seed.out);
  runOnMesh(cache(), 2, {at::rand({2, 8, 12}, testOptions()), at::rand({12, 12}, testOptions())});
  EXPECT_EQ(loopText(seed.out), before);
  EXPECT_FALSE(seed.out->hasAllocation());
  const auto compiled = cache().compiledFusion();
  EXPECT_EQ(loopText(compiled->tensor(seed.out->id())), "[X2, i2, i8, i6, r12]");
  EXPECT_EQ(allocationText(compiled->tensor(seed.out->id())), "[i2, i8, X2, i6, r12]");
}

TEST_F(ExecutorTest, OldPlansAreDropped) {
  output(relu(input({-1})));
  constexpr auto kMax = static_cast<int64_t>(FusionExecutorCache::kMaxPlans);
  for (int64_t n = 1; n <= kMax; ++n) run({at::rand({n}, testOptions())});
  const auto isCompiled = [&](int64_t n) {
    return cache().isCompiled(std::vector<InputValue>{at::rand({n}, testOptions())});
  };
  EXPECT_TRUE(isCompiled(1));  // and used last now
  run({at::rand({kMax + 1}, testOptions())});
  EXPECT_TRUE(isCompiled(1));
  EXPECT_FALSE(isCompiled(2));
  EXPECT_TRUE(isCompiled(3));
  EXPECT_TRUE(isCompiled(kMax + 1));
  EXPECT_EQ(cache().stats().compiles, kMax + 1);
  run({at::rand({2}, testOptions())});
  EXPECT_EQ(cache().stats().compiles, kMax + 2);
  EXPECT_TRUE(isCompiled(2));
}

TEST_F(ExecutorTest, AnotherTeamIsAnotherPlan) {
  output(relu(input({-1})));
  const at::Tensor x = at::rand({4}, testOptions());
  run({x});
  runOnMesh(cache(), 2, {x});
  runOnMesh(cache(), 2, {x});
  EXPECT_EQ(cache().stats().compiles, 2);
}

}  // namespace
}  // namespace meshfuse
