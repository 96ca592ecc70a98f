// SPDX-License-Identifier: BSD-3-Clause
// Local sizes and strides, global and local shapes, contiguity of inputs (semantics 2.4, 2.6, 3.1,
// 3.3).
#include <meshfuse/schedule/sharding.h>

#include <ATen/ops/empty_strided.h>

#include "device_tensors.h"
#include "expect_error.h"
#include "fusion_fixture.h"
#include "layout_rows.h"

namespace meshfuse {
namespace {

using SizesAndStrides = std::pair<Sizes, Sizes>;

class AllocationTest : public FusionTest {
 protected:
  TensorView* on(TensorView* tv, const DeviceMesh& mesh) {
    tv->setDeviceMesh(mesh);
    return tv;
  }
  static void allocate(TensorView* tv, const std::vector<int64_t>& order, bool contiguity = true) {
    std::vector<IterDomain*> ids;
    for (const int64_t i : order) ids.push_back(tv->axis(i));
    tv->setAllocationDomain(ids, contiguity);
  }
  SizesAndStrides infer(const TensorView* tv) const {
    return inferShapeOfOutput(tv, ExpressionEvaluator(*fusion));
  }
  /// [a, b] merged and cut in `d` blocks, or cyclically.
  TensorView* merged(int64_t a, int64_t b, int64_t d, bool cyclic = false) {
    TensorView* tv = on(input({a, b}), DeviceMesh::createForNumDevices(d))->merge(0);
    tv->split(0, d, cyclic)->parallelize(cyclic ? 1 : 0, kX);
    return tv;
  }
};

// ---- the table of 2.4

class AllocationRows : public LayoutRowTest {};

/// Strides count on axes longer than 1 of tensors with elements.
void expectLayout(const SizesAndStrides& actual, const LayoutRow& row) {
  EXPECT_EQ(actual.first, row.sizes);
  ASSERT_EQ(actual.second.size(), row.strides.size());
  if (std::ranges::find(row.sizes, 0) != row.sizes.end()) return;
  for (size_t i = 0; i < row.sizes.size(); ++i) {
    if (row.sizes[i] == 1) continue;
    EXPECT_EQ(actual.second[i], row.strides[i]) << "axis " << i;
  }
}

TEST_P(AllocationRows, ConstantExtents) {
  TensorView* out = makeRow(*fusion, GetParam()).out;
  const ExpressionEvaluator ee(*fusion);
  expectLayout(inferShapeOfOutput(out, ee), GetParam());  // loop alone
  alignAllocationWithLoop(out);
  expectLayout(inferShapeOfOutput(out, ee), GetParam());
}

TEST_P(AllocationRows, SymbolicExtents) {
  const Product row = makeRow(*fusion, GetParam(), true);
  ExpressionEvaluator ee(*fusion);
  Sizes a = GetParam().shape;
  const int64_t n = std::exchange(a.back(), kRowK);
  ee.bind(row.a, at::empty(a));
  ee.bind(row.b, at::empty({kRowK, n}));
  alignAllocationWithLoop(row.out);
  expectLayout(inferShapeOfOutput(row.out, ee), GetParam());
}

TEST_P(AllocationRows, GlobalAndLocalSizesAreInverse) {
  const TensorView* out = makeRow(*fusion, GetParam(), true).out;
  EXPECT_EQ(shardedSizes(out, GetParam().shape), GetParam().sizes);
  EXPECT_EQ(unshardedSizes(out, GetParam().sizes), GetParam().shape);
}

INSTANTIATE_TEST_SUITE_P(Table, AllocationRows, testing::ValuesIn(layoutRows()), rowName);

// ---- inferShapeOfOutput

TEST_F(AllocationTest, PlaceOfTheDeviceAxisIsFree) {
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{1, 0, 2, 3}, {0, 1, 2, 3}, {0, 2, 1, 3}, {0, 2, 3, 1}}) {
    TensorView* out = on(matmul(input({4, 8}), input({8, 6})), two);
    out->outerSplit(1, 2)->parallelize(1, kX);
    allocate(out, order);
    EXPECT_EQ(infer(out), SizesAndStrides({4, 3}, {3, 1})) << allocationText(out);
  }
}

TEST_F(AllocationTest, AllocationShapeIsInMemoryOrder) {
  TensorView* out = on(matmul(input({4, 8}), input({8, 6})), two);
  out->setStrideOrder(Sizes{0, 1}, "test");
  out->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_EQ(inferAllocationShape(out, ExpressionEvaluator(*fusion)), Sizes({3, 4}));
  alignAllocationWithLoop(out);
  EXPECT_EQ(inferAllocationShape(out, ExpressionEvaluator(*fusion)), Sizes({1, 3, 4}));
}

TEST_F(AllocationTest, LogicalDeviceAxisHasSizeOne) {
  TensorView* tv = on(input({2, 5, 4}), two);
  tv->parallelize(0, kX);
  EXPECT_EQ(infer(tv).first, Sizes({1, 5, 4}));
  EXPECT_EQ(infer(tv).second[1], 4);
}

TEST_F(AllocationTest, PartialResultHasTheDeviceAxis) {
  TensorView* out = on(matmul(input({4, 8}), input({8, 6}))->outerSplit(-1, 2), two);
  TensorView* local = out->rfactor({-1});
  local->axis(-2)->parallelize(kX);
  EXPECT_EQ(infer(local).first, Sizes({4, 6, 1}));
  EXPECT_EQ(infer(local).second[0], 6);
  EXPECT_EQ(infer(local).second[1], 1);
  EXPECT_EQ(infer(out), SizesAndStrides({4, 6}, {6, 1}));
}

TEST_F(AllocationTest, ReductionOnTheMeshTakesNoPart) {
  TensorView* out = on(matmul(input({4, 8}), input({8, 6})), two);
  out->outerSplit(-1, 2)->parallelize(-2, kX);
  EXPECT_EQ(infer(out), SizesAndStrides({4, 6}, {6, 1}));
}

TEST_F(AllocationTest, BroadcastOnTheMeshStaysOne) {
  TensorView* tv = on(input({1, 6}), two);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(infer(tv).first, Sizes({1, 6}));
  EXPECT_EQ(shardedSizes(tv, Sizes{1, 6}), Sizes({1, 6}));
  EXPECT_EQ(unshardedSizes(tv, Sizes{1, 6}), Sizes({1, 6}));
}

TEST_F(AllocationTest, BroadcastMayBeMissingInTheAllocation) {
  TensorView* tv = input({4, 1, 6});
  allocate(tv, {2, 0});
  EXPECT_EQ(infer(tv).first, Sizes({4, 1, 6}));
  EXPECT_EQ(infer(tv).second[0], 1);
  EXPECT_EQ(infer(tv).second[2], 4);
}

TEST_F(AllocationTest, ExpandedAxisHasStrideZero) {
  TensorView* tv =
      addInput(TensorViewBuilder().shape({4, 6, 5}).contiguity({true, std::nullopt, true}).build());
  EXPECT_EQ(infer(tv), SizesAndStrides({4, 6, 5}, {5, 0, 1}));
}

TEST_F(AllocationTest, CutExpandedAxis) {
  TensorView* tv =
      on(addInput(TensorViewBuilder().shape({6}).contiguity({std::nullopt}).build()), two);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(infer(tv).first, Sizes({3}));
  EXPECT_EQ(shardedSizes(tv, Sizes{6}), Sizes({3}));
  EXPECT_EQ(unshardedSizes(tv, Sizes{3}), Sizes({6}));
}

TEST_F(AllocationTest, UnevenSerialHalvesKeepTheSize) {
  TensorView* out = relu(input({5}))->split(0, 2);
  out->setAllocationAsLoop();
  EXPECT_EQ(infer(out), SizesAndStrides({5}, {1}));
}

TEST_F(AllocationTest, SizesMustBeKnown) {
  TensorView* tv = input({-1, 6});
  expectError([&] { infer(tv); }, {"the size of axis 0 of T0 is not known: T0.0",
                                   "Bind the inputs that it depends on"});
}

TEST_F(AllocationTest, DeviceSplitMustBeEven) {
  TensorView* tv = on(input({-1}), two);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  expectError([&] { shardedSizes(tv, Sizes{5}); }, {"an axis of T0 of size 5 is not divisible by 2",
                                                    "DeviceMesh{0 1}", "pad the tensor"});
}

TEST_F(AllocationTest, HalvesThatAreApartNeedTwoStrides) {
  TensorView* out = relu(input({4, 6}))->split(1, 3);
  allocate(out, {0, 2, 1});
  expectError([&] { infer(out); },
              {"the allocation domain of T1 keeps the halves of a split axis (sizes 2 and 3) apart",
               "Put the outer half directly before the inner one"});
  allocate(out, {1, 0, 2});
  expectError([&] { infer(out); }, "keeps the halves of a split axis");
}

TEST_F(AllocationTest, HalvesOfSizeOneMayBeApart) {
  TensorView* out = relu(input({4, 6}))->split(1, 6);
  allocate(out, {1, 0, 2});
  EXPECT_EQ(infer(out), SizesAndStrides({4, 6}, {6, 1}));
  allocate(out, {2, 0, 1});
  EXPECT_EQ(infer(out), SizesAndStrides({4, 6}, {1, 4}));
}

// ---- needsRelayout

TEST_F(AllocationTest, RelayoutComparesSizesAndStrides) {
  const at::Tensor t = at::empty({4, 6});
  EXPECT_FALSE(needsRelayout(t, {{4, 6}, {6, 1}}));
  EXPECT_TRUE(needsRelayout(t, {{4, 6}, {1, 4}}));
  EXPECT_TRUE(needsRelayout(t, {{6, 4}, {4, 1}}));
  EXPECT_TRUE(needsRelayout(t, {{4, 6, 1}, {6, 1, 1}}));
  EXPECT_FALSE(needsRelayout(at::empty_strided({4, 6}, {1, 4}), {{4, 6}, {1, 4}}));
  EXPECT_TRUE(needsRelayout(at::empty_strided({4, 6}, {12, 1}), {{4, 6}, {6, 1}}));
}

TEST_F(AllocationTest, RelayoutIgnoresStridesThatDoNotMatter) {
  EXPECT_FALSE(needsRelayout(at::empty_strided({1, 6}, {99, 1}), {{1, 6}, {6, 1}}));
  EXPECT_FALSE(needsRelayout(at::empty_strided({0, 6}, {1, 7}), {{0, 6}, {6, 1}}));
  EXPECT_FALSE(needsRelayout(at::empty(Sizes{}), {{}, {}}));
  EXPECT_TRUE(needsRelayout(at::empty({0, 6}), {{0, 5}, {5, 1}}));
}

// ---- unshardedSizes, shardedSizes

TEST_F(AllocationTest, SizesOfAllMeshAxes) {
  TensorView* tv = on(input({-1, -1, -1}), DeviceMesh::createForShape({2, 3, 4}));
  tv->outerSplit(2, 4)->parallelize(2, kX)->outerSplit(1, 3)->parallelize(1, kY);
  tv->outerSplit(0, 2)->parallelize(0, kZ);
  EXPECT_EQ(unshardedSizes(tv, Sizes{5, 6, 7}), Sizes({10, 18, 28}));
  EXPECT_EQ(shardedSizes(tv, Sizes{10, 18, 28}), Sizes({5, 6, 7}));
}

TEST_F(AllocationTest, SizesIgnoreReductions) {
  TensorView* out = on(sum(input({2, 6}), {0}), two);
  out->parallelize(0, kX);
  EXPECT_EQ(unshardedSizes(out, Sizes{6}), Sizes({6}));
  EXPECT_EQ(shardedSizes(out, Sizes{6}), Sizes({6}));
}

TEST_F(AllocationTest, SizesOfALogicalDeviceAxis) {
  TensorView* tv = on(input({2, 6}), two);
  tv->parallelize(0, kX);
  EXPECT_EQ(unshardedSizes(tv, Sizes{1, 6}), Sizes({2, 6}));
  EXPECT_EQ(shardedSizes(tv, Sizes{2, 6}), Sizes({1, 6}));
}

TEST_F(AllocationTest, OneSizePerAxis) {
  TensorView* tv = input({4, 6});
  expectError([&] { unshardedSizes(tv, Sizes{4}); },
              "unsharded_sizes: T0 has 2 axes, but 1 sizes were given");
}

// ---- merged axes (2.6)

TEST_F(AllocationTest, MergedBlocksThatAreRectangles) {
  EXPECT_EQ(shardedSizes(merged(4, 3, 2), Sizes{4, 3}), Sizes({2, 3}));
  EXPECT_EQ(shardedSizes(merged(2, 6, 4), Sizes{2, 6}), Sizes({1, 3}));
  EXPECT_EQ(shardedSizes(merged(4, 3, 4), Sizes{4, 3}), Sizes({1, 3}));
  EXPECT_EQ(shardedSizes(merged(1, 6, 2), Sizes{1, 6}), Sizes({1, 3}));
  EXPECT_EQ(infer(merged(4, 3, 2)), SizesAndStrides({2, 3}, {3, 1}));
  TensorView* aligned = merged(2, 6, 4);
  alignAllocationWithLoop(aligned);
  EXPECT_EQ(infer(aligned).first, Sizes({1, 3}));
  EXPECT_EQ(infer(aligned).second[1], 1);
}

TEST_F(AllocationTest, MergedBlocksThatAreNone) {
  TensorView* tv = merged(3, 4, 2);
  for (const auto& f :
       {std::function([&] { shardedSizes(tv, Sizes{3, 4}); }), std::function([&] { infer(tv); })}) {
    expectError(f, {"NonRectangularShard: one device holds 6 elements of the merged axes of T0 of "
                    "sizes 3 and 4",
                    "Split one of the axes instead"});
  }
  try {
    shardedSizes(tv, Sizes{3, 4});
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("NonRectangularShard"), 0U);
  }
}

TEST_F(AllocationTest, MergedCyclic) {
  EXPECT_EQ(shardedSizes(merged(3, 4, 2, true), Sizes{3, 4}), Sizes({3, 2}));
  EXPECT_EQ(shardedSizes(merged(4, 1, 2, true), Sizes{4, 1}), Sizes({2, 1}));
  EXPECT_EQ(shardedSizes(merged(1, 6, 2, true), Sizes{1, 6}), Sizes({1, 3}));
  TensorView* tv = merged(2, 3, 2, true);
  expectError([&] { shardedSizes(tv, Sizes{2, 3}); }, "NonRectangularShard");
}

TEST_F(AllocationTest, MergedThenTwoMeshAxes) {
  TensorView* tv = on(input({4, 6}), square)->merge(0);
  tv->outerSplit(0, 2)->outerSplit(1, 2)->parallelize(0, kY)->parallelize(1, kX);
  EXPECT_EQ(shardedSizes(tv, Sizes{4, 6}), Sizes({1, 6}));
}

TEST_F(AllocationTest, MergedGlobalSizesAreTheDeclaredOnes) {
  EXPECT_EQ(unshardedSizes(merged(4, 3, 2), Sizes{2, 3}), Sizes({4, 3}));
  EXPECT_EQ(unshardedSizes(merged(2, 6, 4), Sizes{1, 3}), Sizes({2, 6}));
}

TEST_F(AllocationTest, MergedGlobalSizesMustBeDeclared) {
  TensorView* tv = on(input({-1, -1}), two)->merge(0);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  expectError([&] { unshardedSizes(tv, Sizes{1, 3}); },
              {"axis 0 of T0 is merged with another one and divided over devices",
               "Declare its size as a number"});
  TensorView* inner = on(input({2, -1}), two)->merge(0);
  inner->outerSplit(0, 2)->parallelize(0, kX);
  expectError([&] { unshardedSizes(inner, Sizes{1, 3}); }, "axis 1 of T1 is merged");
}

/// Whole rows of the inner axis: the outer extent follows from them, semantics 2.6.
TEST_F(AllocationTest, MergedWholeRowsNeedNoDeclaredOuterSize) {
  TensorView* tv = on(input({-1, 3}), two)->merge(0);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(unshardedSizes(tv, Sizes{2, 3}), Sizes({4, 3}));
}

// ---- checkContiguity

const std::string_view kMismatch = "stride mismatch with contiguity info";

TEST_F(AllocationTest, ContiguousInput) {
  TensorView* tv = input({4, 6});
  EXPECT_NO_THROW(checkContiguity(tv, at::empty({4, 6}), 0));
  expectError(
      [&] { checkContiguity(tv, at::empty({6, 4}).t(), 3); },
      {kMismatch, "input 3, T0_g_float[iS0{4}, iS1{6}] (T0)", "sizes [4, 6] and strides [1, 4]",
       "allocation axis 1 is declared contiguous, so its stride must be 1, but it is 4",
       "Pass tensor.contiguous(), or declare contiguity=False."});
  expectError([&] { checkContiguity(tv, at::empty({4, 12}).narrow(1, 0, 6), -1); },
              {kMismatch, ": tensor T0", "allocation axis 0", "must be 6, but it is 12"});
}

TEST_F(AllocationTest, AxesThatDoNotCount) {
  EXPECT_NO_THROW(checkContiguity(input({4, -1, 6}), at::empty_strided({4, 1, 6}, {6, 77, 1}), 0));
  EXPECT_NO_THROW(checkContiguity(input({4, 1, 6}), at::empty_strided({4, 1, 6}, {6, 77, 1}), 0));
  EXPECT_NO_THROW(checkContiguity(input({-1, 6}), at::empty_strided({0, 6}, {1, 9}), 0));
  TensorView* expanded =
      addInput(TensorViewBuilder().shape({4, 6, 5}).contiguity({true, std::nullopt, true}).build());
  EXPECT_NO_THROW(checkContiguity(expanded, at::empty({4, 1, 5}).expand({4, 6, 5}), 0));
}

TEST_F(AllocationTest, EveryAxisHasItsOwnFlag) {
  TensorView* tv = addInput(TensorViewBuilder().shape({4, 6}).contiguity({true, false}).build());
  EXPECT_NO_THROW(checkContiguity(tv, at::empty_strided({4, 6}, {12, 2}), 0));
  expectError([&] { checkContiguity(tv, at::empty_strided({4, 6}, {13, 2}), 0); },
              {kMismatch, "must be 12, but it is 13"});
  TensorView* other = addInput(TensorViewBuilder().shape({4, 6}).contiguity({false, true}).build());
  EXPECT_NO_THROW(checkContiguity(other, at::empty_strided({4, 6}, {13, 1}), 0));
  expectError([&] { checkContiguity(other, at::empty_strided({4, 6}, {12, 2}), 0); }, kMismatch);
}

TEST_F(AllocationTest, ColumnMajorInput) {
  TensorView* tv =
      addInput(TensorViewBuilder().shape({4, 6}).contiguity(true).strideOrder({0, 1}).build());
  EXPECT_NO_THROW(checkContiguity(tv, at::empty({6, 4}).t(), 0));
  expectError([&] { checkContiguity(tv, at::empty({4, 6}), 0); }, kMismatch);
}

TEST_F(AllocationTest, LocalPartIsCheckedWithLocalSizes) {
  for (const bool align : {false, true}) {
    TensorView* tv = on(input({-1, -1}), two);
    tv->outerSplit(1, 2)->parallelize(1, kX);
    if (align) alignAllocationWithLoop(tv);
    EXPECT_NO_THROW(checkContiguity(tv, at::empty({4, 3}), 0));
    const at::Tensor view = at::empty({4, 6}).narrow(1, 0, 3);
    expectError([&] { checkContiguity(tv, view, 0); }, {kMismatch, "must be 3, but it is 6"});
  }
}

TEST_F(AllocationTest, LocalViewFitsWhenNotContiguous) {
  for (const bool align : {false, true}) {
    TensorView* tv = on(addInput(makeSymbolicTensor(2)), two);
    tv->outerSplit(1, 2)->parallelize(1, kX);
    if (align) alignAllocationWithLoop(tv);
    EXPECT_NO_THROW(checkContiguity(tv, at::empty({4, 6}).narrow(1, 0, 3), 0));
    EXPECT_NO_THROW(checkContiguity(tv, at::empty_strided({4, 3}, {2, 9}), 0));
  }
}

TEST_F(AllocationTest, CyclicViewFitsWhenNotContiguous) {
  TensorView* tv = on(addInput(makeSymbolicTensor(2)), two);
  tv->innerSplit(1, 2)->parallelize(2, kX);
  const at::Tensor view = at::empty_strided({4, 3}, {6, 2});  // every other column
  EXPECT_NO_THROW(checkContiguity(tv, view, 0));
  alignAllocationWithLoop(tv);
  EXPECT_NO_THROW(checkContiguity(tv, view, 0));
}

TEST_F(AllocationTest, SwappedHalvesOfAnInput) {
  TensorView* tv = input({6})->split(0, 2);
  allocate(tv, {1, 0}, true);
  expectError([&] { checkContiguity(tv, at::empty({6}), 0); }, kMismatch);
  allocate(tv, {1, 0}, false);
  EXPECT_NO_THROW(checkContiguity(tv, at::empty({6}), 0));
}

TEST_F(AllocationTest, MergedAxesMustBeDense) {
  TensorView* tv = on(addInput(makeConcreteTensor({4, 3})), two)->merge(0);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  alignAllocationWithLoop(tv);
  EXPECT_NO_THROW(checkContiguity(tv, at::empty({2, 3}), 0));
  EXPECT_NO_THROW(checkContiguity(tv, at::empty_strided({2, 3}, {6, 2}), 0));
  expectError([&] { checkContiguity(tv, at::empty_strided({2, 3}, {7, 2}), 0); },
              {"Merging of discontiguous dimensions: input 0, T0", "sizes 2 and 3",
               "strides are 7 and 2", "Pass a contiguous tensor."});
}

}  // namespace
}  // namespace meshfuse
