// SPDX-License-Identifier: BSD-3-Clause
// ExpressionEvaluator: values of scalars, and every check of binding a tensor (semantics 3.3).
#include <meshfuse/eval/expression_evaluator.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "device_tensors.h"
#include "expect_error.h"
#include "fusion_fixture.h"

namespace meshfuse {
namespace {

class EvaluatorTest : public FusionTest {
 protected:
  TensorView* on(TensorView* tv, const DeviceMesh& mesh) {
    tv->setDeviceMesh(mesh);
    return tv;
  }
  Scalar extent(const TensorView* tv, size_t axis) {
    return tv->getLogicalDomain().at(axis)->getMaybeExpandedExtent();
  }
  ScalarPool& pool() { return fusion->scalars(); }
  /// [i0] over three devices.
  TensorView* thirds(int64_t size = -1) {
    TensorView* tv = on(input({size}), DeviceMesh::createForNumDevices(3));
    tv->outerSplit(0, 3)->parallelize(0, kX);
    return tv;
  }

  ExpressionEvaluator ee{*fusion};
};

// ---- scalars

TEST_F(EvaluatorTest, ConstantsAreKnown) {
  EXPECT_TRUE(ee.isKnown(pool().constant(4)));
  EXPECT_EQ(ee.evaluate(pool().constant(4)), 4);
  EXPECT_FALSE(ee.evaluate(Scalar{}).has_value());
}

TEST_F(EvaluatorTest, SymbolsAreKnownOnceBound) {
  const Scalar n = extent(input({-1}), 0);
  const Scalar half = pool().ceilDiv(n, pool().constant(2));
  EXPECT_FALSE(ee.isKnown(n));
  EXPECT_FALSE(ee.evaluate(half).has_value());
  ee.bind(n, int64_t{7}, "a test");
  EXPECT_EQ(ee.evaluate(n), 7);
  EXPECT_EQ(ee.evaluate(half), 4);
}

TEST_F(EvaluatorTest, OtherTypes) {
  const Scalar s = pool().symbol(DataType::Double);
  const Scalar twice = pool().binary(ScalarOp::Mul, s, pool().constant(2.0, DataType::Double));
  ee.bind(s, 1.25, "a test");
  EXPECT_EQ(std::get<double>(*ee.evaluateValue(twice)), 2.5);
  EXPECT_EQ(ee.evaluate(twice), 2);
}

TEST_F(EvaluatorTest, ConflictNamesBothSources) {
  const Scalar n = extent(input({-1}), 0);
  ee.bind(n, int64_t{7}, "the first source");
  EXPECT_NO_THROW(ee.bind(n, int64_t{7}, "another"));
  expectError([&] { ee.bind(n, int64_t{8}, "the second source"); },
              {"the second source gives T0.0 the value 8", "the first source", "7",
               "Give inputs whose sizes agree"});
  EXPECT_EQ(ee.evaluate(n), 7);
}

TEST_F(EvaluatorTest, BindingAComputedValue) {
  const Scalar n = extent(input({-1}), 0);
  const Scalar half = pool().ceilDiv(n, pool().constant(2));
  ee.bind(n, int64_t{7}, "a test");
  EXPECT_EQ(ee.evaluate(half), 4);
  expectError([&] { ee.bind(half, int64_t{3}, "a test"); },
              "gives ceilDiv(T0.0, 2) the value 3, but it was found to be 4");
}

TEST_F(EvaluatorTest, SymbolsMadeLaterAreUnderstood) {
  ee.bind(extent(input({-1}), 0), int64_t{7}, "a test");
  const Scalar later = extent(input({-1}), 0);
  EXPECT_FALSE(ee.isKnown(later));
  ee.bind(later, int64_t{3}, "a test");
  EXPECT_EQ(ee.evaluate(later), 3);
}

TEST_F(EvaluatorTest, GlobalShape) {
  TensorView* a = input({2, -1, 8});
  TensorView* out = matmul(a, input({8, 6}));
  expectError([&] { ee.globalShape(out); }, {"the size of axis 1 of T2 is not known: T0.1"});
  ee.bind(a, at::empty({2, 5, 8}));
  EXPECT_EQ(ee.globalShape(out), Sizes({2, 5, 6}));
}

// ---- rank and type

TEST_F(EvaluatorTest, NumberOfAxes) {
  TensorView* tv = input({-1, -1});
  expectError([&] { ee.bind(tv, at::empty({4}), 2); },
              {"Expected input 2, T0_g_float[iS0{i0}, iS1{i1}] (T0), to have 2 axes",
               "a tensor of 1 axes with sizes [4]"});
  expectError([&] { ee.bind(tv, at::empty({4, 1, 6})); }, "Expected tensor T0_g_float");
}

TEST_F(EvaluatorTest, ReductionsAreNoAxes) {
  TensorView* out = sum(input({4, -1}), {0});
  EXPECT_NO_THROW(ee.bind(out, at::empty({6})));
  expectError([&] { ee.bind(out, at::empty({4, 6})); }, "to have 1 axes");
}

TEST_F(EvaluatorTest, ElementTypeIsExact) {
  TensorView* tv = input({-1}, DataType::Half);
  expectError([&] { ee.bind(tv, at::empty({4}), 0); },
              {"Expected input 0, T0_g___half[",
               "to be bound to a tensor of dtype __half, but got a "
               "tensor of dtype float",
               "Convert T0"});
  EXPECT_NO_THROW(ee.bind(tv, at::empty({4}, at::kHalf)));
}

TEST_F(EvaluatorTest, IndexTakesBothIntegers) {
  TensorView* tv = input({-1}, DataType::Index);
  EXPECT_NO_THROW(ee.bind(tv, at::empty({4}, at::kLong)));
  EXPECT_NO_THROW(ee.bind(tv, at::empty({4}, at::kInt)));
  expectError([&] { ee.bind(tv, at::empty({4}, at::kFloat)); }, "but got a tensor of dtype float");
  TensorView* i64 = input({-1}, DataType::Int);
  expectError([&] { ee.bind(i64, at::empty({4}, at::kInt)); }, "of dtype int64_t, but got");
}

TEST_F(EvaluatorTest, RankIsCheckedBeforeType) {
  TensorView* tv = input({-1, -1}, DataType::Half);
  expectError([&] { ee.bind(tv, at::empty({4})); }, "to have 2 axes");
}

TEST_F(EvaluatorTest, MetaTensorsBind) {
  TensorView* tv = input({-1, 6});
  EXPECT_NO_THROW(ee.bind(tv, at::empty({4, 6}, at::device(at::kMeta))));
  EXPECT_EQ(ee.evaluate(extent(tv, 0)), 4);
}

// ---- sizes

TEST_F(EvaluatorTest, ConstantSizes) {
  TensorView* tv = input({4, 8});
  EXPECT_NO_THROW(ee.bind(tv, at::empty({4, 8})));
  expectError([&] { ee.bind(tv, at::empty({4, 6}), 1); },
              {"input 1, T0_g_float", "axis 1 of T0 is declared with global size 8",
               "expected 8, got 6", "(local size 6)"});
}

TEST_F(EvaluatorTest, SymbolOfALoopSplit) {
  TensorView* tv = thirds();
  ee.bind(tv, at::empty({5}), 0);
  EXPECT_EQ(ee.evaluate(extent(tv, 0)), 15);
  EXPECT_EQ(ee.globalShape(tv), Sizes({15}));
}

TEST_F(EvaluatorTest, ConstantOfALoopSplit) {
  TensorView* tv = thirds(12);
  EXPECT_NO_THROW(ee.bind(tv, at::empty({4})));
  expectError([&] { ee.bind(tv, at::empty({5}), 0); },
              {"axis 0 of T0 is declared with global size 12 split over 3 devices of mesh_x",
               "so its local size must be 4", "expected 12, got 15 (local size 5)"});
  expectError([&] { ee.bind(tv, at::empty({12}), 0); }, "expected 12, got 36 (local size 12)");
}

TEST_F(EvaluatorTest, SymbolsOfTwoMeshAxes) {
  TensorView* tv = on(input({-1, -1}), square);
  tv->outerSplit(1, 2)->parallelize(1, kX)->outerSplit(0, 2)->parallelize(0, kY);
  ee.bind(tv, at::empty({3, 5}));
  EXPECT_EQ(ee.globalShape(tv), Sizes({6, 10}));
  TensorView* both = on(input({-1}), square);
  both->outerSplit(0, 2)->outerSplit(1, 2)->parallelize(0, kY)->parallelize(1, kX);
  ee.bind(both, at::empty({3}));
  EXPECT_EQ(ee.globalShape(both), Sizes({12}));
}

TEST_F(EvaluatorTest, SymbolOfACyclicSplit) {
  TensorView* tv = on(input({-1}), two);
  tv->innerSplit(0, 2)->parallelize(1, kX);
  ee.bind(tv, at::empty({5}));
  EXPECT_EQ(ee.globalShape(tv), Sizes({10}));
}

TEST_F(EvaluatorTest, ConflictingSymbolNamesBothTensors) {
  TensorView* tv = thirds();
  ee.bind(tv, at::empty({5}), 0);
  EXPECT_NO_THROW(ee.bind(tv, at::empty({5}), 1));
  expectError([&] { ee.bind(tv, at::empty({4}), 1); },
              {"axis 0 of input 1, T0_g_float", "(local size 4 split over 3 devices of mesh_x)",
               "gives T0.0 the value 12", "axis 0 of input 0, T0_g_float", "15",
               "(local size 5 split over 3 devices of mesh_x)"});
}

TEST_F(EvaluatorTest, StaticOneMustBeOne) {
  TensorView* tv = input({1, 6});
  EXPECT_NO_THROW(ee.bind(tv, at::empty({1, 6})));
  expectError(
      [&] { ee.bind(tv, at::empty({5, 6}), 0); },
      {"axis 0 of T0 is declared with size 1, expected 1, got 5", "Declare the axis as -1"});
}

TEST_F(EvaluatorTest, SymbolMayBeOneOrZero) {
  TensorView* tv = input({-1, -1});
  ee.bind(tv, at::empty({1, 0}));
  EXPECT_EQ(ee.globalShape(tv), Sizes({1, 0}));
}

TEST_F(EvaluatorTest, ExpandedAxisHasStrideZero) {
  TensorView* tv =
      addInput(TensorViewBuilder().shape({4, -1}).contiguity({true, std::nullopt}).build());
  EXPECT_NO_THROW(ExpressionEvaluator(*fusion).bind(tv, at::empty({4, 1})));
  ee.bind(tv, at::empty({4, 1}).expand({4, 6}));
  EXPECT_EQ(ee.evaluate(extent(tv, 1)), 6);
  expectError([&] { ExpressionEvaluator(*fusion).bind(tv, at::empty({4, 6}), 0); },
              {"axis 1 of T0 is an expanded broadcast, so its stride must be 0, but it is 1",
               "Pass tensor.expand(...)"});
}

TEST_F(EvaluatorTest, LogicalDeviceAxisHasLocalSizeOne) {
  TensorView* tv = on(input({2, 6}), two);
  tv->parallelize(0, kX);
  EXPECT_NO_THROW(ee.bind(tv, at::empty({1, 6})));
  expectError([&] { ee.bind(tv, at::empty({2, 6}), 0); },
              {"axis 0 of T0 is on mesh_x, so each device has 1 of its", "local size 2"});
}

TEST_F(EvaluatorTest, SymbolicLogicalDeviceAxisIsAsLongAsTheMesh) {
  TensorView* tv = on(input({-1, 6}), two);
  tv->parallelize(0, kX);
  ee.bind(tv, at::empty({1, 6}));
  EXPECT_EQ(ee.globalShape(tv), Sizes({2, 6}));
}

TEST_F(EvaluatorTest, PartOfMergedAxes) {
  TensorView* tv = on(input({4, 3}), two)->merge(0);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_NO_THROW(ee.bind(tv, at::empty({2, 3})));
  expectError([&] { ee.bind(tv, at::empty({3, 3}), 0); },
              {"the local sizes [3, 3] are not what one device holds of T0, which is [2, 3]",
               "as shard_tensor gives it"});
}

// ---- contiguity: allocation_test.cpp has the rest

TEST_F(EvaluatorTest, StridesAreCheckedLast) {
  TensorView* tv = input({-1, 6});
  expectError([&] { ee.bind(tv, at::empty({5, 4}).t(), 0); }, "expected 6, got 5");
  expectError([&] { ee.bind(tv, at::empty({6, 4}).t(), 0); },
              {"stride mismatch with contiguity info: input 0, T0_g_float"});
}

TEST_F(EvaluatorTest, LocalStridesOfALoopSplit) {
  TensorView* tv = on(input({-1, -1}), two);
  tv->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_NO_THROW(ee.bind(tv, at::empty({4, 3})));
  expectError([&] { ee.bind(tv, at::empty({4, 6}).narrow(1, 0, 3)); },
              "stride mismatch with contiguity info");
}

// ---- constraints of operations

TEST_F(EvaluatorTest, OperandsMustAgree) {
  TensorView *a = input({-1, -1}), *b = input({-1, -1});
  const Expr* expr = matmul(a, b)->definition();
  ee.bind(a, at::empty({4, 8}));
  EXPECT_NO_THROW(ee.checkConstraints(expr));  // not known yet
  ee.bind(b, at::empty({7, 6}));
  expectError([&] { ee.checkConstraints(expr); },
              {"matmul: axis 1 of T0 has size 8 but axis 0 of T1 has size 7",
               "A size that turns out to be 1 does not broadcast"});
}

TEST_F(EvaluatorTest, SymbolThatIsOneDoesNotBroadcast) {
  TensorView *a = input({-1}), *b = input({-1});
  const Expr* expr = add(a, b)->definition();
  ee.bind(a, at::empty({1}));
  ee.bind(b, at::empty({5}));
  expectError([&] { ee.checkConstraints(expr); },
              {"axis 0 of T0 has size 1", "axis 0 of T1 has size 5"});
}

TEST_F(EvaluatorTest, ConstantWinsOverASymbol) {
  TensorView* symbolic = input({-1});
  TensorView* out = add(symbolic, input({5}));
  EXPECT_EQ(logicalText(out), "[i5]");
  ASSERT_EQ(out->definition()->constraints().size(), 1U);
  ee.bind(symbolic, at::empty({4}));
  expectError([&] { ee.checkConstraints(out->definition()); }, "has size 4");
}

}  // namespace
}  // namespace meshfuse
