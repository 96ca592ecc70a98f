// SPDX-License-Identifier: BSD-3-Clause
// rfactor: domains of both results, and values of the partial one on a mesh (semantics 1.5).
#include <meshfuse/ir/verifier.h>
#include <meshfuse/ops/linear.h>
#include <meshfuse/ops/matmul.h>

#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sum.h>

#include "device_tensors.h"
#include "expect_error.h"
#include "fusion_fixture.h"

namespace meshfuse {
namespace {

class RFactorTest : public FusionTest {
 protected:
  /// [i4, i6, r2, r4] of [4, 8] @ [8, 6]
  TensorView* splitProduct() {
    a = input({4, 8});
    b = input({8, 6});
    return matmul(a, b)->outerSplit(-1, 2);
  }
  void expectValid() { EXPECT_NO_THROW(verify(*fusion)); }

  TensorView *a = nullptr, *b = nullptr;
};

TEST_F(RFactorTest, MatmulBecomesPartialAndSum) {
  TensorView* out = splitProduct();
  TensorView* local = out->rfactor({-1});
  EXPECT_EQ(shortText(local->getRootDomain()), "[i4, i6, r8]");
  EXPECT_EQ(logicalText(local), "[i4, i6, i2, r4]");
  EXPECT_EQ(loopText(local), "[i4, i6, i2, r4]");
  EXPECT_EQ(logicalText(out), "[i4, i6, r2]");
  EXPECT_EQ(loopText(out), "[i4, i6, r2]");
  EXPECT_FALSE(out->hasRoot());
  EXPECT_TRUE(local->axis(2)->isRFactorProduct());
  EXPECT_FALSE(local->axis(0)->isRFactorProduct());
  EXPECT_EQ(local->ndim(), 3);
  EXPECT_EQ(out->ndim(), 2);
  expectValid();
}

TEST_F(RFactorTest, OperationsOfBothResults) {
  TensorView* out = splitProduct();
  TensorView* local = out->rfactor({-1});
  ASSERT_NE(local->definition(), nullptr);
  EXPECT_TRUE(local->definition()->is<MatmulOp>());
  EXPECT_EQ(local->definition()->inputs(), std::vector<TensorView*>({a, b}));
  EXPECT_EQ(out->definition()->op().name(), "sum");
  EXPECT_EQ(out->definition()->inputs(), std::vector<TensorView*>({local}));
  EXPECT_EQ(std::get<std::vector<int64_t>>(out->definition()->args()[1]), std::vector<int64_t>{2});
  output(out);
  EXPECT_EQ(fusion->exprs(), std::vector<Expr*>({local->definition(), out->definition()}));
}

TEST_F(RFactorTest, PartialResultIsParallelizedAlone) {
  TensorView* out = splitProduct();
  out->setDeviceMesh(two);
  TensorView* local = out->rfactor({-1});
  local->axis(-2)->parallelize(kX);
  EXPECT_EQ(loopText(local), "[i4, i6, X2, r4]");
  EXPECT_EQ(loopText(out), "[i4, i6, r2]");
  expectValid();
}

TEST_F(RFactorTest, MeshIsCopied) {
  TensorView* out = splitProduct();
  EXPECT_FALSE(out->rfactor({-1})->hasDeviceMesh());
  TensorView* meshed = splitProduct();
  meshed->setDeviceMesh(two);
  TensorView* local = meshed->rfactor({-1});
  EXPECT_EQ(local->getDeviceMesh(), two);
  EXPECT_EQ(meshed->getDeviceMesh(), two);
}

TEST_F(RFactorTest, ParallelAxesAreReplayed) {
  TensorView* out = splitProduct();
  out->setDeviceMesh(square);
  out->outerSplit(0, 2)->parallelize(0, kY)->parallelize(-2, kX);
  TensorView* local = out->rfactor({-1});
  EXPECT_EQ(loopText(local), "[Y2, i2, i6, X2, r4]");
  EXPECT_EQ(loopText(out), "[Y2, i2, i6, rX2]");
  expectValid();
}

TEST_F(RFactorTest, MeshAxisOfTheSumIsTakenFromOtherAxes) {
  TensorView* out = splitProduct();
  out->setDeviceMesh(two);
  out->outerSplit(1, 2)->parallelize(1, kX)->parallelize(-2, kX);
  TensorView* local = out->rfactor({-1});
  EXPECT_EQ(loopText(local), "[i4, i2, i3, X2, r4]");
  EXPECT_EQ(loopText(out), "[i4, X2, i3, rX2]");
  expectValid();
}

TEST_F(RFactorTest, StrideOrderIsReplayed) {
  TensorView* out = splitProduct();
  out->setStrideOrder(std::vector<int64_t>{0, 1}, "test");
  TensorView* local = out->rfactor({-1});
  EXPECT_EQ(allocationText(local), "[i6, i4, i2, r4]");
  EXPECT_EQ(allocationText(out), "[i6, i4, r2]");
  expectValid();
}

TEST_F(RFactorTest, UnevenHalfOnTheMesh) {
  TensorView* out = max(input({6, 2}), {0, 1});
  output(out);
  out->setDeviceMesh(DeviceMesh::createForNumDevices(3));
  out->outerSplit(1, 3)->parallelize(1, kX);
  expectError([&] { out->rfactor({0, 2}); },
              "axis 1 of T2 of size 2 is not divisible by 3, and a piece of it is on mesh_x.");
  EXPECT_EQ(loopText(out), "[r6, rX3, r1]");
}

TEST_F(RFactorTest, AllocationOfAPieceThatIsSplitFurther) {
  TensorView* out = splitProduct();
  out->setAllocationAsLoop();  // of r2 and r4
  out->outerSplit(-1, 2);
  TensorView* local = out->rfactor({-1});
  EXPECT_EQ(allocationText(local), "[i4, i6, i2, i2, r2]");
  expectValid();
}

TEST_F(RFactorTest, InnerHalfMayRemain) {
  TensorView* out = splitProduct();
  TensorView* local = out->rfactor({-2});
  EXPECT_EQ(logicalText(local), "[i4, i6, r2, i4]");
  EXPECT_EQ(logicalText(out), "[i4, i6, r4]");
  expectValid();
}

TEST_F(RFactorTest, ThreePieces) {
  TensorView* out = splitProduct()->outerSplit(-1, 2);
  EXPECT_EQ(loopText(out), "[i4, i6, r2, r2, r2]");
  TensorView* local = out->rfactor({-1, -2});
  EXPECT_EQ(logicalText(local), "[i4, i6, i2, r2, r2]");
  EXPECT_EQ(logicalText(out), "[i4, i6, r2]");
  expectValid();
}

TEST_F(RFactorTest, WholeReductionAxes) {
  TensorView* out = sum(input({2, 6, 4}), {0, 1});
  TensorView* local = out->rfactor({1});
  EXPECT_EQ(logicalText(local), "[i2, r6, i4]");
  EXPECT_EQ(logicalText(out), "[r2, i4]");
  EXPECT_EQ(std::get<std::vector<int64_t>>(out->definition()->args()[1]), std::vector<int64_t>{0});
  expectValid();
}

TEST_F(RFactorTest, Linear) {
  TensorView* out = linear(input({4, 8}), input({6, 8}), input({6}))->outerSplit(-1, 2);
  TensorView* local = out->rfactor({-1});
  EXPECT_TRUE(local->definition()->is<LinearOp>());
  EXPECT_EQ(local->definition()->inputs().size(), 3U);  // the bias stays on the partial result
  EXPECT_EQ(logicalText(local), "[i4, i6, i2, r4]");
  expectValid();
}

TEST_F(RFactorTest, ConsumersReadTheSum) {
  TensorView* out = splitProduct();
  TensorView* next = output(relu(out));
  TensorView* local = out->rfactor({-1});
  EXPECT_EQ(next->definition()->inputs(), std::vector<TensorView*>{out});
  EXPECT_EQ(fusion->exprs().size(), 3U);
  EXPECT_EQ(local->uses(), std::vector<Expr*>{out->definition()});
}

TEST_F(RFactorTest, Errors) {
  TensorView* out = splitProduct();
  expectError([&] { out->rfactor({0}); }, "rfactor: axis 0 of T2 is not a reduction axis");
  expectError([&] { out->rfactor({}); }, "rfactor: no axes were given for T2");
  expectError([&] { out->rfactor({-1, 3}); }, "rfactor: axis 3 of T2 is listed twice");
  expectError([&] { out->rfactor({2, 3}); }, {"rfactor: all 2 reduction axes of T2 were listed",
                                              "one must remain", "Split the reduction axis first"});
  expectError([&] { out->rfactor({4}); }, "axis 4 of T2 is out of range");
  EXPECT_EQ(loopText(out), "[i4, i6, r2, r4]");
  EXPECT_TRUE(out->definition()->is<MatmulOp>());
}

TEST_F(RFactorTest, OnlyReductionsAreFactored) {
  const std::string_view text = "is not the result of a sum, prod, max, min, matmul or linear";
  TensorView* x = input({4, 8});
  expectError([&] { x->rfactor({0}); }, {"rfactor: T0", text});
  expectError([&] { relu(x)->rfactor({0}); }, {"rfactor: T1", text});
  TensorView* whole = sum(x, {0});
  expectError([&] { whole->rfactor({0}); }, "rfactor: all 1 reduction axes of T2 were listed");
  TensorView* local = splitProduct()->rfactor({-1});
  expectError([&] { local->rfactor({-1}); }, {"rfactor: " + local->name(), text});
}

TEST_F(RFactorTest, PartialMatmulOnAMesh) {
  TensorView* out = splitProduct();
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(two);
  a->outerSplit(1, 2)->parallelize(1, kX);
  b->outerSplit(0, 2)->parallelize(0, kX);
  TensorView* local = output(out->rfactor({-1}));
  local->axis(-2)->parallelize(kX);
  FusionExecutorCache cache(fusion);
  const at::Tensor x = at::rand({4, 8}, testOptions()), w = at::rand({8, 6}, testOptions());
  const DeviceOutputs parts = runOnMesh(cache, 2, {x, w});
  for (int64_t d = 0; d < 2; ++d) {
    const at::Tensor want = at::matmul(x.narrow(1, 4 * d, 4), w.narrow(0, 4 * d, 4)).unsqueeze(-1);
    expectClose(parts[static_cast<size_t>(d)][0], want);
  }
  expectClose(at::sum(globalOutput(parts, 0, local), {2}), at::matmul(x, w));
}

TEST_F(RFactorTest, PartialLinearOnASquareMesh) {
  TensorView *x = input({4, 8}), *w = input({6, 8});
  TensorView* out = linear(x, w)->outerSplit(-1, 2);
  for (TensorView* tv : {x, w, out}) tv->setDeviceMesh(square);
  x->outerSplit(1, 2)->parallelize(1, kX)->outerSplit(0, 2)->parallelize(0, kY);
  w->outerSplit(1, 2)->parallelize(1, kX);
  out->outerSplit(0, 2)->parallelize(0, kY);
  TensorView* local = output(out->rfactor({-1}));
  local->axis(-2)->parallelize(kX);
  FusionExecutorCache cache(fusion);
  const at::Tensor gx = at::rand({4, 8}, testOptions()), gw = at::rand({6, 8}, testOptions());
  const DeviceOutputs parts = runOnMesh(cache, 4, {gx, gw});
  EXPECT_EQ(sizes(parts[3][0]), Sizes({2, 6, 1}));
  expectClose(parts[3][0].squeeze(-1),
              at::linear(gx.narrow(0, 2, 2).narrow(1, 4, 4), gw.narrow(1, 4, 4)));
  expectClose(at::sum(globalOutput(parts, 0, local), {2}), at::linear(gx, gw));
}

TEST_F(RFactorTest, PartialSumOnAMesh) {
  TensorView* x = input({2, 6, 4});
  TensorView* out = sum(x, {0, 1});
  for (TensorView* tv : {x, out}) tv->setDeviceMesh(two);
  x->parallelize(0, kX);
  TensorView* local = output(out->rfactor({1}));
  local->parallelize(0, kX);
  FusionExecutorCache cache(fusion);
  const at::Tensor g = at::rand({2, 6, 4}, testOptions());
  const DeviceOutputs parts = runOnMesh(cache, 2, {g});
  EXPECT_EQ(sizes(parts[0][0]), Sizes({1, 4}));
  expectClose(globalOutput(parts, 0, local), at::sum(g, {1}));
}

/// A partial result that is on no mesh has the kept pieces side by side.
TEST_F(RFactorTest, RunsWithoutAMesh) {
  TensorView* out = output(splitProduct());
  out->rfactor({-1});
  FusionExecutorCache cache(fusion);
  const at::Tensor x = at::rand({4, 8}, testOptions()), w = at::rand({8, 6}, testOptions());
  try {
    expectClose(cache.run({x, w})[0], at::matmul(x, w));
  } catch (const Error&) {  // a message for the user would do; a fault of the library does not
  }
}

}  // namespace
}  // namespace meshfuse
