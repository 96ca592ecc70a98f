// SPDX-License-Identifier: BSD-3-Clause
// The analysis of device splits and of memory order (semantics 2.2 to 2.4, 5.1).
#include <meshfuse/passes/pass.h>
#include <meshfuse/schedule/sharding.h>

#include "expect_error.h"
#include "fusion_fixture.h"
#include "layout_rows.h"

namespace meshfuse {
namespace {

class ShardingTest : public FusionTest {
 protected:
  TensorView* on(TensorView* tv, const DeviceMesh& mesh) {
    tv->setDeviceMesh(mesh);
    return tv;
  }
  /// [i4, i6, r8] on two devices.
  TensorView* product() { return on(matmul(input({4, 8}), input({8, 6})), two); }
  Scalar number(int64_t n) { return fusion->scalars().constant(n); }
  /// Loop axes as an allocation domain, in the given order.
  static void allocate(TensorView* tv, const std::vector<int64_t>& order, bool contiguity = true) {
    std::vector<IterDomain*> ids;
    for (const int64_t i : order) ids.push_back(tv->axis(i));
    tv->setAllocationDomain(ids, contiguity);
  }
};

// ---- shardedAxis, isSharded, getShardedLogicalAxis

TEST_F(ShardingTest, NothingIsSharded) {
  TensorView* tv = on(input({4, 6}), two);
  EXPECT_FALSE(isSharded(tv));
  EXPECT_FALSE(shardedAxis(tv, kX).has_value());
  EXPECT_FALSE(reducedAxis(tv, kX).has_value());
  EXPECT_EQ(getShardedLogicalAxis(tv, kX), -1);
}

TEST_F(ShardingTest, LogicalAxisItself) {
  TensorView* tv = on(input({4, 2}), two);
  tv->parallelize(1, kX);
  const auto axis = shardedAxis(tv, kX);
  ASSERT_TRUE(axis.has_value());
  EXPECT_EQ(axis->logical, 1);
  EXPECT_TRUE(axis->path.empty());
  EXPECT_FALSE(axis->through_merge);
  EXPECT_EQ(axis->id, tv->axis(1)->index());
}

TEST_F(ShardingTest, OuterSplitPath) {
  TensorView* tv = on(input({4, 6}), two);
  tv->outerSplit(1, 2)->parallelize(1, kX);
  const auto axis = shardedAxis(tv, kX);
  ASSERT_TRUE(axis.has_value());
  EXPECT_EQ(axis->logical, 1);
  ASSERT_EQ(axis->path.size(), 1U);
  EXPECT_EQ(axis->path[0],
            (PathStep{.outer_half = true, .inner_split = false, .factor = number(2)}));
}

TEST_F(ShardingTest, CyclicPath) {
  TensorView* tv = on(input({6}), two);
  tv->innerSplit(0, 2)->parallelize(1, kX);
  ASSERT_EQ(shardedAxis(tv, kX)->path.size(), 1U);
  EXPECT_EQ(shardedAxis(tv, kX)->path[0],
            (PathStep{.outer_half = false, .inner_split = true, .factor = number(2)}));
}

TEST_F(ShardingTest, NestedPathRunsDownwards) {
  TensorView* tv = on(input({12}), two);
  tv->outerSplit(0, 3)->outerSplit(1, 2)->parallelize(1, kX);
  const auto axis = shardedAxis(tv, kX);
  ASSERT_EQ(axis->path.size(), 2U);
  EXPECT_EQ(axis->path[0],
            (PathStep{.outer_half = false, .inner_split = false, .factor = number(3)}));
  EXPECT_EQ(axis->path[1],
            (PathStep{.outer_half = true, .inner_split = false, .factor = number(2)}));
}

TEST_F(ShardingTest, ThroughAMerge) {
  TensorView* tv = on(input({5, 4, 3}), two);
  tv->merge(1)->outerSplit(1, 2)->parallelize(1, kX);
  const auto axis = shardedAxis(tv, kX);
  ASSERT_TRUE(axis.has_value());
  EXPECT_TRUE(axis->through_merge);
  EXPECT_EQ(axis->logical, 1);  // the outer operand of the merge
  EXPECT_EQ(getShardedLogicalAxis(tv, kX), 1);
}

TEST_F(ShardingTest, EveryMeshAxisByItself) {
  TensorView* tv = on(input({4, 6}), square);
  tv->outerSplit(1, 2)->parallelize(1, kX)->outerSplit(0, 2)->parallelize(0, kY);
  EXPECT_EQ(getShardedLogicalAxis(tv, kX), 1);
  EXPECT_EQ(getShardedLogicalAxis(tv, kY), 0);
  EXPECT_EQ(getShardedLogicalAxis(tv, kZ), -1);
}

TEST_F(ShardingTest, LogicalAxisIsCountedWithoutReductions) {
  TensorView* out = on(sum(input({4, 6}), {0}), DeviceMesh::createForNumDevices(6));
  out->parallelize(1, kX);
  EXPECT_EQ(loopText(out), "[r4, X6]");
  EXPECT_EQ(getShardedLogicalAxis(out, kX), 0);
}

TEST_F(ShardingTest, ReductionOnTheMeshIsNotSharded) {
  TensorView* out = on(sum(input({2, 6}), {0}), two);
  out->parallelize(0, kX);
  EXPECT_FALSE(isSharded(out));
  EXPECT_FALSE(shardedAxis(out, kX).has_value());
  EXPECT_EQ(getShardedLogicalAxis(out, kX), -1);
  EXPECT_EQ(reducedAxis(out, kX), out->axis(0)->index());
}

TEST_F(ShardingTest, StaysShardedWhenAnotherAxisIsSplit) {
  TensorView* tv = addInput(makeSymbolicTensor(3));
  tv->parallelize(2, kX);
  tv->split(0, 4);
  EXPECT_TRUE(isSharded(tv));
  EXPECT_EQ(getShardedLogicalAxis(tv, kX), 2);
}

TEST_F(ShardingTest, TwoAxesOnOneMeshAxisThrow) {
  TensorView* tv = input({2, 2});
  tv->domain().parallelize(0, kX);
  tv->domain().parallelize(1, kX);
  const std::string_view text =
      "Found multiple loop IterDomains with the same parallel type (mesh_x) in T0";
  expectError([&] { isSharded(tv); }, {text, "Use each mesh axis for one axis"});
  expectError([&] { getShardedLogicalAxis(tv, kX); }, text);
}

TEST_F(ShardingTest, AllocationMayBeAsked) {
  TensorView* tv = on(input({4, 6}), two);
  tv->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_FALSE(shardedAxis(tv, kX, DomainKind::Allocation).has_value());
  alignAllocationWithLoop(tv);
  ASSERT_TRUE(shardedAxis(tv, kX, DomainKind::Allocation).has_value());
  EXPECT_EQ(shardedAxis(tv, kX, DomainKind::Allocation)->id, shardedAxis(tv, kX)->id);
}

TEST_F(ShardingTest, AxesThatLeadToDevices) {
  TensorView* tv = on(input({4, 12}), two);
  tv->outerSplit(1, 3)->outerSplit(2, 2)->parallelize(2, kX);
  const auto leads = leadsToDevice(tv->domain());
  std::string text;
  for (const IterDomain* id : tv->domain().ids()) {
    text += shortText(id) + (leads[static_cast<size_t>(id->index())] ? "+ " : "- ");
  }
  EXPECT_EQ(text, "i4- i12+ i3- i4+ X2+ i2- ");
}

// ---- hasTrivialAllocationDomain

TEST_F(ShardingTest, NoAllocationIsTrivial) {
  TensorView* tv = on(input({4, 6}), two);
  tv->outerSplit(1, 2)->parallelize(1, kX)->reorder(std::vector<int64_t>{1, 0, 2});
  EXPECT_TRUE(hasTrivialAllocationDomain(tv));
}

TEST_F(ShardingTest, DeviceSplitInPlaceIsTrivial) {
  TensorView* out = matmul(input({2, 5, 8}), input({8, 6}));
  out->setDeviceMesh(two);
  out->outerSplit(-2, 2)->parallelize(-3, kX);
  out->setAllocationAsLoop();
  EXPECT_EQ(allocationText(out), "[i2, i5, X2, i3, r8]");
  EXPECT_TRUE(hasTrivialAllocationDomain(out));
}

TEST_F(ShardingTest, PlaceOfTheDeviceAxisIsFree) {
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{1, 0, 2, 3}, {0, 1, 2, 3}, {0, 2, 1, 3}, {0, 2, 3, 1}}) {
    TensorView* out = product();
    out->outerSplit(1, 2)->parallelize(1, kX);
    allocate(out, order);
    EXPECT_TRUE(hasTrivialAllocationDomain(out)) << allocationText(out);
  }
}

TEST_F(ShardingTest, OtherOrdersAreNotTrivial) {
  TensorView* out = product();
  out->setStrideOrder(std::vector<int64_t>{0, 1}, "test");
  EXPECT_FALSE(hasTrivialAllocationDomain(out));
  out->outerSplit(1, 2)->parallelize(1, kX);
  out->setAllocationAsLoop();
  EXPECT_FALSE(hasTrivialAllocationDomain(out));
}

TEST_F(ShardingTest, BroadcastsAndReductionsMayStandAnywhere) {
  TensorView* out = sum(input({4, 6, 1, 5}), {1});
  EXPECT_EQ(loopText(out), "[i4, r6, b1, i5]");
  allocate(out, {2, 0, 3, 1});
  EXPECT_TRUE(hasTrivialAllocationDomain(out));
  allocate(out, {1, 3, 2, 0});
  EXPECT_FALSE(hasTrivialAllocationDomain(out));
}

TEST_F(ShardingTest, MissingBroadcastIsTrivial) {
  TensorView* tv = input({4, 1, 6});
  allocate(tv, {0, 2});
  EXPECT_TRUE(hasTrivialAllocationDomain(tv));
}

TEST_F(ShardingTest, SerialHalvesInOrderAreTrivial) {
  TensorView* tv = input({4, 6})->split(1, 3);
  allocate(tv, {0, 1, 2});
  EXPECT_TRUE(hasTrivialAllocationDomain(tv));
  allocate(tv, {0, 2, 1});
  EXPECT_FALSE(hasTrivialAllocationDomain(tv));
  allocate(tv, {1, 0, 2});
  EXPECT_FALSE(hasTrivialAllocationDomain(tv));
}

TEST_F(ShardingTest, StreamPieceIsDroppedStreamAxisIsNot) {
  TensorView* tv = input({4, 6});
  tv->outerSplit(1, 2)->parallelize(1, ParallelType::Stream);
  allocate(tv, {1, 0, 2});
  EXPECT_TRUE(hasTrivialAllocationDomain(tv));
  TensorView* whole = input({4, 6});
  whole->parallelize(1, ParallelType::Stream);
  allocate(whole, {1, 0});
  EXPECT_FALSE(hasTrivialAllocationDomain(whole));
}

TEST_F(ShardingTest, LogicalDeviceAxisIsDropped) {
  TensorView* tv = on(input({4, 2, 6}), two);
  tv->parallelize(1, kX);
  allocate(tv, {1, 0, 2});
  EXPECT_TRUE(hasTrivialAllocationDomain(tv));
}

TEST_F(ShardingTest, MergedAllocationIsNotTrivial) {
  TensorView* tv = input({4, 6})->merge(0);
  allocate(tv, {0});
  EXPECT_FALSE(hasTrivialAllocationDomain(tv));
}

// ---- canonicalLayout

std::string canonicalText(const TensorView* tv) {
  const auto layout = canonicalLayout(tv);
  if (!layout) return "none";
  std::string text;
  for (const CanonicalAxis& axis : *layout) {
    text += (text.empty() ? "" : ", ") + shortText(tv->domain().id(axis.id));
    text += !axis.contiguity ? " n" : *axis.contiguity ? " t" : " f";
  }
  return text;
}

TEST_F(ShardingTest, CanonicalWithoutSplits) {
  EXPECT_EQ(canonicalText(product()), "i4 t, i6 t, r8 n");
  TensorView* out = product();
  out->setStrideOrder(std::vector<int64_t>{0, 1}, "test");
  EXPECT_EQ(canonicalText(out), "i6 t, i4 t, r8 n");
  EXPECT_EQ(canonicalText(addInput(makeSymbolicTensor({4, 1}))), "i4 f, b1 n");
}

TEST_F(ShardingTest, CanonicalIgnoresTheLoopAlone) {
  TensorView* out = product();
  out->outerSplit(1, 2)->parallelize(1, kX)->reorder(std::vector<int64_t>{1, 0, 2, 3});
  EXPECT_EQ(canonicalText(out), "i4 t, i6 t, r8 n");
}

TEST_F(ShardingTest, CanonicalDropsTheOuterDeviceHalfAnywhere) {
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{1, 0, 2, 3}, {0, 1, 2, 3}, {0, 2, 1, 3}, {0, 2, 3, 1}}) {
    TensorView* out = product();
    out->outerSplit(1, 2)->parallelize(1, kX);
    allocate(out, order);
    EXPECT_EQ(canonicalText(out), "i4 t, i6 t, r8 n") << allocationText(out);
  }
  TensorView* swapped = product();
  swapped->outerSplit(1, 2)->parallelize(1, kX);
  allocate(swapped, {1, 2, 0, 3});
  EXPECT_EQ(canonicalText(swapped), "i6 t, i4 t, r8 n");
}

TEST_F(ShardingTest, CanonicalDropsTheInnerDeviceHalf) {
  TensorView* out = product();
  out->innerSplit(1, 2)->parallelize(2, kX);
  allocate(out, {2, 1, 0, 3});
  EXPECT_EQ(canonicalText(out), "i6 t, i4 t, r8 n");
}

TEST_F(ShardingTest, CanonicalOfTwoDeviceHalves) {
  TensorView* tv = on(input({3, 4}), square);
  tv->outerSplit(1, 2)->parallelize(1, kY)->parallelize(2, kX);
  allocate(tv, {2, 0, 1});
  EXPECT_EQ(logicalText(tv), "[i3, i4]");
  ASSERT_TRUE(canonicalLayout(tv).has_value());
  EXPECT_EQ(canonicalLayout(tv)->size(), 2U);
}

TEST_F(ShardingTest, CanonicalOfAStreamPiece) {
  TensorView* tv = input({4, 6});
  tv->outerSplit(1, 2)->parallelize(1, ParallelType::Stream);
  allocate(tv, {1, 0, 2});
  EXPECT_EQ(canonicalText(tv), "i4 t, i6 t");
}

TEST_F(ShardingTest, CanonicalJoinsSerialHalves) {
  TensorView* tv = input({4, 6})->split(1, 3);
  allocate(tv, {1, 2, 0});
  EXPECT_EQ(canonicalText(tv), "i6 t, i4 t");
  tv->setContiguity(Contiguity{true, false, true});
  EXPECT_EQ(canonicalText(tv), "i6 f, i4 t");
}

TEST_F(ShardingTest, CanonicalOfNestedSplits) {
  TensorView* tv = on(input({4, 12}), two);
  tv->outerSplit(1, 2)->outerSplit(2, 2)->parallelize(2, kX);
  allocate(tv, {2, 1, 3, 0});
  EXPECT_EQ(canonicalText(tv), "i12 t, i4 t");
}

TEST_F(ShardingTest, CanonicalOfBroadcastHalves) {
  TensorView* tv = input({4, 1})->split(1, 2);
  allocate(tv, {1, 2, 0});
  EXPECT_EQ(canonicalText(tv), "b1 n, i4 t");
}

TEST_F(ShardingTest, NoCanonicalLayout) {
  TensorView* swapped = input({4, 6})->split(1, 3);
  allocate(swapped, {0, 2, 1});
  EXPECT_EQ(canonicalText(swapped), "none");
  allocate(swapped, {1, 0, 2});
  EXPECT_EQ(canonicalText(swapped), "none");
  allocate(swapped, {0, 1, 2});
  swapped->setContiguity(Contiguity{true, false, true});  // a gap between the outer halves
  EXPECT_EQ(canonicalText(swapped), "none");
  TensorView* merged = input({4, 6})->merge(0);
  allocate(merged, {0});
  EXPECT_EQ(canonicalText(merged), "none");
  TensorView* cut = on(input({4, 6}), two)->merge(0);
  cut->outerSplit(0, 2)->parallelize(0, kX);
  allocate(cut, {0, 1});
  EXPECT_EQ(canonicalText(cut), "none");
}

// ---- alignAllocationWithLoop

TEST_F(ShardingTest, AlignIsIdempotent) {
  TensorView* out = product();
  out->setStrideOrder(std::vector<int64_t>{0, 1}, "test");
  out->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_TRUE(alignAllocationWithLoop(out));
  EXPECT_EQ(allocationText(out), "[X2, i3, i4, r8]");
  EXPECT_FALSE(alignAllocationWithLoop(out));
  EXPECT_EQ(allocationText(out), "[X2, i3, i4, r8]");
}

TEST_F(ShardingTest, AlignAfterAllocationAsLoopChangesNothing) {
  TensorView* out = product();
  out->outerSplit(1, 2)->parallelize(1, kX);
  out->setAllocationAsLoop();
  EXPECT_FALSE(alignAllocationWithLoop(out));
}

TEST_F(ShardingTest, AlignLeavesUnshardedTensorsAlone) {
  TensorView* tv = on(input({4, 6}), two)->split(1, 3);
  EXPECT_FALSE(alignAllocationWithLoop(tv));
  EXPECT_FALSE(tv->hasAllocation());
  TensorView* reduced = product();
  reduced->outerSplit(-1, 2)->parallelize(-2, kX);
  EXPECT_FALSE(alignAllocationWithLoop(reduced));
}

TEST_F(ShardingTest, AlignSplitsContiguity) {
  TensorView* dense = on(input({6}), two);
  dense->outerSplit(0, 2)->parallelize(0, kX);
  alignAllocationWithLoop(dense);
  EXPECT_EQ(dense->getContiguity(), Contiguity({true, true}));
  TensorView* strided = on(addInput(makeConcreteTensor({6})), two);
  strided->outerSplit(0, 2)->parallelize(0, kX);
  alignAllocationWithLoop(strided);
  EXPECT_EQ(strided->getContiguity(), Contiguity({true, false}));
  TensorView* broadcast = on(input({1}), two);
  broadcast->outerSplit(0, 2)->parallelize(0, kX);
  alignAllocationWithLoop(broadcast);
  EXPECT_EQ(allocationText(broadcast), "[bX1, b1]");
  EXPECT_EQ(broadcast->getContiguity(), Contiguity({std::nullopt, std::nullopt}));
}

TEST_F(ShardingTest, AlignMergedNeighbours) {
  TensorView* tv = on(input({5, 4, 3}), two)->merge(1);
  tv->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_TRUE(alignAllocationWithLoop(tv));
  EXPECT_EQ(allocationText(tv), "[i5, X2, i6]");
  EXPECT_EQ(tv->getContiguity(), Contiguity({true, true, true}));
  EXPECT_FALSE(alignAllocationWithLoop(tv));
}

TEST_F(ShardingTest, AlignRefusesMergesOfAxesThatAreApart) {
  const std::string_view text = "Merging of discontiguous dimensions: a merged axis of T";
  TensorView* apart = on(input({4, 5, 6}), two)->merge(0, 2);
  apart->outerSplit(0, 2)->parallelize(0, kX);
  expectError([&] { alignAllocationWithLoop(apart); },
              {text, "not neighbours in memory", "Merge axes that are next to each other"});
  TensorView* column_major =
      on(addInput(TensorViewBuilder().shape({4, 3}).strideOrder({0, 1}).build()), two);
  column_major->merge(0)->outerSplit(0, 2)->parallelize(0, kX);
  expectError([&] { alignAllocationWithLoop(column_major); }, text);
}

// ---- the table of 2.4

class ShardingRows : public LayoutRowTest {};

TEST_P(ShardingRows, AllocationFollowsTheLoop) {
  TensorView* out = makeRow(*fusion, GetParam()).out;
  EXPECT_TRUE(alignAllocationWithLoop(out));
  EXPECT_EQ(allocationText(out), GetParam().allocation);
  EXPECT_EQ(hasTrivialAllocationDomain(out), GetParam().trivial);
}

TEST_P(ShardingRows, AllocationAsLoopIsTheSame) {
  TensorView* out = makeRow(*fusion, GetParam()).out;
  for (int i = 0; i < 2; ++i) {
    out->setAllocationAsLoop();
    EXPECT_EQ(allocationText(out), GetParam().allocation);
  }
  EXPECT_FALSE(alignAllocationWithLoop(out));
}

TEST_P(ShardingRows, FinalizedTwice) {
  const Product row = makeRow(*fusion, GetParam());
  output(row.out);
  EXPECT_TRUE(runPass(*fusion, "finalize-allocation"));
  EXPECT_EQ(allocationText(row.out), GetParam().allocation);
  EXPECT_FALSE(runPass(*fusion, "finalize-allocation"));
  EXPECT_EQ(allocationText(row.out), GetParam().allocation);
}

INSTANTIATE_TEST_SUITE_P(Table, ShardingRows, testing::ValuesIn(layoutRows()), rowName);

}  // namespace
}  // namespace meshfuse
