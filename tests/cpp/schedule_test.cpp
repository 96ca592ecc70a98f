// SPDX-License-Identifier: BSD-3-Clause
// The scheduling methods of TensorView, with every error (semantics 1.4).
#include <meshfuse/ir/verifier.h>

#include "expect_error.h"
#include "fusion_fixture.h"

namespace meshfuse {
namespace {

using OldToNew = std::unordered_map<int64_t, int64_t>;
using Order = std::vector<int64_t>;

class ScheduleTest : public FusionTest {
 protected:
  /// [i4, i6, r8]
  TensorView* product() { return matmul(input({4, 8}), input({8, 6})); }
  TensorView* meshed(const std::vector<int64_t>& shape) {
    TensorView* tv = input(shape);
    tv->setDeviceMesh(two);
    return tv;
  }
};

TEST_F(ScheduleTest, ExampleOfThreeAxes) {
  TensorView* t = input({2, 1024, 12});
  EXPECT_EQ(t->split(-1, 3, false), t);
  EXPECT_EQ(loopText(t), "[i2, i1024, i3, i4]");
  EXPECT_EQ(shortText(t->axis(-2)), "i3");
  t->split(0, 2);
  EXPECT_EQ(loopText(t), "[i1, i2, i1024, i3, i4]");
  EXPECT_EQ(logicalText(t), "[i2, i1024, i12]");
  EXPECT_EQ(t->nDims(), 5);
  EXPECT_EQ(t->ndim(), 3);
}

TEST_F(ScheduleTest, NegativeAxesCountReductions) {
  TensorView* out = product();
  EXPECT_EQ(shortText(out->axis(-1)), "r8");
  EXPECT_EQ(shortText(out->axis(-2)), "i6");
  out->outerSplit(-2, 2);
  EXPECT_EQ(loopText(out), "[i4, i2, i3, r8]");
  EXPECT_EQ(shortText(out->axis(-3)), "i2");
  EXPECT_EQ(out->axis(-4), out->axis(0));
}

TEST_F(ScheduleTest, AxisOutOfRange) {
  TensorView* out = product();
  expectError([&] { out->axis(3); },
              {"axis: axis 3 of T2 is out of range", "3 axes, reductions counted", "Use -3 to 2."});
  expectError([&] { out->axis(-4); }, "axis: axis -4 of T2 is out of range");
  expectError([&] { out->split(3, 2); }, "split: axis 3 of T2 is out of range");
  expectError([&] { out->merge(0, 3); }, "merge: axis 3 of T2 is out of range");
  expectError([&] { out->reorder(OldToNew{{-4, 0}}); }, "reorder: axis -4 of T2 is out of range");
  expectError([&] { out->reorder(OldToNew{{0, 3}}); }, "reorder: axis 3 of T2 is out of range");
  expectError([&] { out->parallelize(3, kX); }, "parallelize: axis 3 of T2 is out of range");
}

TEST_F(ScheduleTest, ErrorsKnowTensorAndAxis) {
  TensorView* tv = input({4});
  try {
    tv->split(-2, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where().tensor, "T0");
    EXPECT_EQ(error.where().axis, -2);
  }
}

TEST_F(ScheduleTest, NoAxesNoSchedule) {
  TensorView* scalar = input({});
  expectError([&] { scalar->axis(0); }, "axis: T0 is a 0-dim tensor");
  expectError([&] { scalar->split(0, 2); }, "split: T0 is a 0-dim tensor");
  expectError([&] { scalar->merge(0); }, "merge: T0 is a 0-dim tensor");
  expectError([&] { scalar->parallelize(0, kX); }, "parallelize: T0 is a 0-dim tensor");
}

TEST_F(ScheduleTest, SplitByEitherHalf) {
  EXPECT_EQ(loopText(input({12})->split(0, 4)), "[i3, i4]");
  EXPECT_EQ(loopText(input({12})->split(0, 4, false)), "[i4, i3]");
  EXPECT_EQ(loopText(input({12})->innerSplit(0, 4)), "[i3, i4]");
  EXPECT_EQ(loopText(input({12})->outerSplit(0, 4)), "[i4, i3]");
  EXPECT_EQ(loopText(input({10})->split(0, 4)), "[i3, i4]");
  EXPECT_EQ(loopText(input({10})->split(0, 4, false)), "[i4, i3]");
}

TEST_F(ScheduleTest, SplitOfASymbol) {
  EXPECT_EQ(loopText(input({-1})->outerSplit(0, 2)), "[i2, iceilDiv(T0.0, 2)]");
  TensorView* by_scalar = input({12});
  by_scalar->split(0, fusion->scalars().constant(3), false);
  EXPECT_EQ(loopText(by_scalar), "[i3, i4]");
}

TEST_F(ScheduleTest, SplitOfAReduction) {
  EXPECT_EQ(loopText(product()->outerSplit(-1, 2)), "[i4, i6, r2, r4]");
}

TEST_F(ScheduleTest, SplitOfBroadcasts) {
  EXPECT_EQ(loopText(input({1})->outerSplit(0, 2)), "[b1, b1]");
  const auto expanded = [&] {
    return addInput(TensorViewBuilder().shape({6}).contiguity({std::nullopt}).build());
  };
  EXPECT_EQ(loopText(expanded()->outerSplit(0, 2)), "[b2, b1 exp 3]");
  EXPECT_EQ(loopText(expanded()->innerSplit(0, 2)), "[b1 exp 3, b2]");
}

TEST_F(ScheduleTest, SplitErrors) {
  TensorView* tv = input({12});
  const std::string_view invalid =
      "split: Invalid factor for split. Factor must be greater than 0.";
  expectError([&] { tv->split(0, 0); }, {invalid, "Axis 0 of T0 was to be split by 0"});
  expectError([&] { tv->split(0, -3, false); }, {invalid, "by -3"});
  expectError([&] { tv->split(0, fusion->scalars().constant(0)); }, invalid);
  tv->outerSplit(0, 2)->axis(0)->parallelize(kX);
  expectError([&] { tv->split(0, 2); },
              {"split: Splitting an axis of non-Serial parallel type is not supported",
               "Axis 0 of T0 is on mesh_x", "Parallelize after the split"});
  tv->axis(1)->parallelize(ParallelType::Stream);
  expectError([&] { tv->split(1, 2); }, "is on stream");
  EXPECT_EQ(tv->nDims(), 2);
}

TEST_F(ScheduleTest, Merge) {
  EXPECT_EQ(loopText(input({2, 3, 5})->merge(0)), "[i6, i5]");
  EXPECT_EQ(loopText(input({2, 3, 5})->merge(1)), "[i2, i15]");
  EXPECT_EQ(loopText(input({2, 3, 5})->merge(0, 2)), "[i10, i3]");
  EXPECT_EQ(loopText(input({2, 3, 5})->merge(-1, -3)), "[i10, i3]");
}

TEST_F(ScheduleTest, MergeTakesTheFirstAsOuter) {
  TensorView* tv = input({2, 3, 5})->merge(2, 0);
  EXPECT_EQ(loopText(tv), "[i10, i3]");
  const Transform& t = tv->domain().transforms()[0];
  EXPECT_EQ(shortText(tv->domain().id(t.in[0])), "i5");
  EXPECT_EQ(shortText(tv->domain().id(t.in[1])), "i2");
}

TEST_F(ScheduleTest, MergeErrors) {
  TensorView* out = product();
  expectError([&] { out->merge(1, -2); }, "merge: axis 1 of T2 cannot be merged with itself");
  expectError([&] { out->merge(1); }, {"merge: axes 1 and 2 of T2 are a reduction and an axis"});
  TensorView* tv = input({4, 6});
  expectError([&] { tv->merge(1); }, "merge: axis 2 of T3 is out of range");
  tv->axis(1)->parallelize(ParallelType::Stream);
  expectError([&] { tv->merge(0); },
              {"merge: axis 1 of T3 is on stream", "Merge before parallelizing"});
  expectError([&] { tv->merge(1, 0); }, "merge: axis 1 of T3 is on stream");
}

TEST_F(ScheduleTest, LastAxisHasNoNextOneToMergeWith) {
  TensorView* tv = input({2, 3, 5});
  expectError([&] { tv->merge(-1); }, {"merge: axis", "is out of range"});
  EXPECT_EQ(loopText(tv), "[i2, i3, i5]");
  EXPECT_EQ(loopText(tv->merge(-2)), "[i2, i15]");
}

TEST_F(ScheduleTest, ReorderByMap) {
  EXPECT_EQ(loopText(input({2, 3, 5, 7})->reorder(OldToNew{{0, 2}})), "[i3, i5, i2, i7]");
  EXPECT_EQ(loopText(input({2, 3, 5, 7})->reorder(OldToNew{{-1, 0}})), "[i7, i2, i3, i5]");
  EXPECT_EQ(loopText(input({2, 3, 5, 7})->reorder(OldToNew{{0, -1}, {3, 0}})), "[i7, i3, i5, i2]");
  EXPECT_EQ(loopText(input({2, 3})->reorder(OldToNew{})), "[i2, i3]");
}

TEST_F(ScheduleTest, ReorderByPermutation) {
  // permutation[old] = new
  EXPECT_EQ(loopText(input({2, 3, 5})->reorder(Order{2, 0, 1})), "[i3, i5, i2]");
  EXPECT_EQ(loopText(input({2, 3, 5})->reorder(Order{-1, 0, 1})), "[i3, i5, i2]");
}

TEST_F(ScheduleTest, ReorderKeepsLogicalAndAllocation) {
  TensorView* tv = input({2, 3})->reorder(Order{1, 0});
  EXPECT_EQ(logicalText(tv), "[i2, i3]");
  EXPECT_EQ(allocationText(tv), "[i2, i3]");
}

TEST_F(ScheduleTest, ReorderErrors) {
  TensorView* tv = input({2, 3, 5});
  expectError([&] { tv->reorder(OldToNew{{0, 1}, {2, 1}}); },
              "reorder: two axes of T0 are to move to place 1");
  expectError([&] { tv->reorder(OldToNew{{0, 1}, {2, -2}}); }, "are to move to place");
  expectError([&] { tv->reorder(OldToNew{{0, 1}, {-3, 2}}); },
              {"reorder: axis", "is listed twice"});
  expectError([&] { tv->reorder(Order{1, 0}); },
              "reorder: 2 places were given for the 3 loop axes of T0");
  expectError([&] { tv->reorder(Order{0, 0, 1}); }, "are to move to place 0");
  EXPECT_EQ(loopText(tv), "[i2, i3, i5]");
}

TEST_F(ScheduleTest, ParallelizeByAxisAndByIndex) {
  TensorView* tv = meshed({2, 6});
  tv->axis(0)->parallelize(kX);
  EXPECT_EQ(loopText(tv), "[X2, i6]");
  EXPECT_TRUE(tv->axis(0)->isDeviceDim());
  tv->parallelize(0, ParallelType::Serial)->parallelize(1, ParallelType::Stream);
  EXPECT_EQ(loopText(tv), "[i2, S6]");
  EXPECT_TRUE(tv->axis(1)->isStream());
  EXPECT_TRUE(tv->axis(1)->isParallelized());
}

TEST_F(ScheduleTest, EveryParallelTypeIsAccepted) {
  for (int p = 0; p < kNumParallelTypes; ++p) {
    const auto type = static_cast<ParallelType>(p);
    EXPECT_EQ(input({8})->parallelize(0, type)->axis(0)->getParallelType(), type);
  }
}

TEST_F(ScheduleTest, MeshAxisOnlyOnce) {
  TensorView* tv = input({2, 2});
  tv->parallelize(0, kX);
  const std::string_view multiple = "Found multiple loop IterDomains with the same parallel type";
  expectError([&] { tv->parallelize(1, kX); },
              {"parallelize", multiple, "(mesh_x) in T0", "Use each mesh axis for one axis"});
  EXPECT_EQ(loopText(tv), "[X2, i2]");
  tv->parallelize(0, kX)->parallelize(1, kY);
  EXPECT_EQ(loopText(tv), "[X2, Y2]");
}

TEST_F(ScheduleTest, ReductionMayShareAMeshAxis) {
  TensorView* out = matmul(input({2, 2}), input({2, 3}));
  out->setDeviceMesh(two);
  out->parallelize(0, kX)->parallelize(-1, kX);
  EXPECT_EQ(loopText(out), "[X2, i3, rX2]");
}

TEST_F(ScheduleTest, ExtentMustBeThatOfTheMesh) {
  TensorView* tv = meshed({4, 6});
  expectError([&] { tv->parallelize(0, kX); },
              {"of T0 of size 4 is on mesh_x, which has 2 devices", "Split the axis by 2 first"});
  EXPECT_EQ(loopText(tv), "[i4, i6]");
  TensorView* later = input({4, 6})->parallelize(0, kX);
  expectError([&] { later->setDeviceMesh(two); }, "of T1 of size 4 is on mesh_x");
  EXPECT_FALSE(later->hasDeviceMesh());
}

TEST_F(ScheduleTest, SymbolicExtentIsCheckedLater) {
  TensorView* tv = meshed({-1, 6});
  tv->parallelize(0, kX);
  EXPECT_EQ(loopText(tv), "[XT0.0, i6]");
}

TEST_F(ScheduleTest, BroadcastOnTheMeshMeansNothing) {
  TensorView* tv = meshed({1, 6});
  tv->parallelize(0, kX);
  EXPECT_EQ(loopText(tv), "[bX1, i6]");
}

TEST_F(ScheduleTest, UnevenDeviceSplit) {
  TensorView* tv = meshed({5});
  tv->outerSplit(0, 2);
  expectError([&] { tv->parallelize(0, kX); },
              {"of T0 of size 5 is not divisible by 2", "mesh_x", "or pad the tensor first"});
  EXPECT_EQ(loopText(tv), "[i2, i3]");
}

TEST_F(ScheduleTest, MeshMustHaveTheAxis) {
  TensorView* tv = meshed({2, 6});
  expectError([&] { tv->parallelize(0, kY); }, "does not have parallel type mesh_y");
  EXPECT_EQ(loopText(tv), "[i2, i6]");
}

TEST_F(ScheduleTest, DeviceAxisNeedsAMesh) {
  TensorView* tv = input({2, 6})->parallelize(0, kX);
  expectError([&] { verify(tv); },
              {"an axis of T0 is on mesh_x, but the tensor has no DeviceMesh", "set_device_mesh"});
}

TEST_F(ScheduleTest, AxisThatWasSplitCannotBeParallelized) {
  TensorView* tv = input({4});
  IterDomain* before = tv->axis(0);
  tv->split(0, 2);
  expectError([&] { before->parallelize(kX); },
              {"parallelize: an axis of T0 is not in its loop domain any more", "axis(i)"});
}

TEST_F(ScheduleTest, SetDeviceMesh) {
  TensorView* tv = input({4});
  EXPECT_FALSE(tv->hasDeviceMesh());
  EXPECT_TRUE(tv->getDeviceMesh().empty());
  EXPECT_FALSE(tv->meshIsDeclared());
  tv->setDeviceMesh(two);
  EXPECT_EQ(tv->getDeviceMesh(), two);
  EXPECT_TRUE(tv->meshIsDeclared());
  expectError([&] { tv->setDeviceMesh(DeviceMesh()); },
              "set_device_mesh: the mesh for T0 has no devices");
  EXPECT_EQ(tv->getDeviceMesh(), two);
}

TEST_F(ScheduleTest, OpsCopyNoMesh) {
  TensorView *x = meshed({4, 6}), *w = meshed({5, 6});
  EXPECT_FALSE(linear(x, w)->hasDeviceMesh());
  EXPECT_FALSE(relu(x)->hasDeviceMesh());
}

TEST_F(ScheduleTest, SetLoopDomain) {
  TensorView* tv = input({4, 6});
  IterDomain *i = tv->axis(0), *j = tv->axis(1);
  tv->setLoopDomain({j, i});
  EXPECT_EQ(loopText(tv), "[i6, i4]");
  const std::string_view text = "do not stand for the same elements as the logical axes of T0";
  expectError([&] { tv->setLoopDomain({i}); }, {"set_loop_domain: the 1 axes given", text});
  expectError([&] { tv->setLoopDomain({i, i, j}); }, text);
  expectError([&] { tv->setLoopDomain({i, input({6})->axis(0)}); },
              "set_loop_domain: an axis belongs to T1, not to T0");
  tv->split(0, 2);
  expectError([&] { tv->setLoopDomain({i, tv->axis(0)}); }, text);
  tv->setLoopDomain({i, j});
  EXPECT_EQ(loopText(tv), "[i4, i6]");
}

TEST_F(ScheduleTest, SetAllocationDomain) {
  TensorView* tv = input({4, 1, 6});
  IterDomain *i = tv->axis(0), *b = tv->axis(1), *j = tv->axis(2);
  tv->setAllocationDomain({j, b, i}, false);
  EXPECT_EQ(allocationText(tv), "[i6, b1, i4]");
  EXPECT_EQ(tv->getContiguity(), Contiguity({false, std::nullopt, false}));
  tv->setAllocationDomain({j, i}, {true, false});
  EXPECT_EQ(allocationText(tv), "[i6, i4]");
  EXPECT_EQ(tv->getContiguity(), Contiguity({true, false}));
  EXPECT_EQ(logicalText(tv), "[i4, b1, i6]");
}

TEST_F(ScheduleTest, SetAllocationDomainErrors) {
  TensorView* tv = input({4, 6});
  IterDomain *i = tv->axis(0), *j = tv->axis(1);
  const std::string_view text = "do not stand for the same elements as the logical axes of T0";
  expectError([&] { tv->setAllocationDomain({i}, true); },
              {"set_allocation_domain: the 1 axes given", text});
  expectError([&] { tv->setAllocationDomain({i, j, j}, true); }, text);
  expectError([&] { tv->setAllocationDomain({i, j}, Contiguity{true}); },
              "set_allocation_domain: 1 contiguity flags were given for 2 axes of T0");
  expectError([&] { tv->setAllocationDomain({i, input({6})->axis(0)}, true); },
              "set_allocation_domain: an axis belongs to T1, not to T0");
  tv->split(0, 2);
  expectError([&] { tv->setAllocationDomain({tv->axis(0), j}, true); }, text);
  EXPECT_FALSE(tv->hasAllocation());
}

TEST_F(ScheduleTest, FlagOfAReductionMustBeNone) {
  TensorView* out = sum(input({4, 6}), {0});
  out->setAllocationDomain(out->getLogicalDomain(), Contiguity{true, true});
  expectError([&] { verify(out); }, {"contiguity flag 0 of T1 must be None", "a reduction"});
  TensorView* tv = input({4});
  tv->setAllocationDomain(tv->getLogicalDomain(), Contiguity{std::nullopt});
  expectError([&] { verify(tv); }, "contiguity flag 0 of T2 must be true or false");
}

TEST_F(ScheduleTest, StrideOrder) {
  const auto order = [&](TensorView* tv, const Order& places) {
    tv->setStrideOrder(places, "test");
    return allocationText(tv);
  };
  EXPECT_EQ(order(product(), {0, 1}), "[i6, i4, r8]");
  EXPECT_EQ(order(product(), {1, 0}), "[i4, i6, r8]");
  EXPECT_EQ(order(product(), {-2, -1}), "[i6, i4, r8]");
  EXPECT_EQ(order(sum(input({7, 4, 6}), {0}), {0, 1}), "[r7, i6, i4]");
  EXPECT_EQ(order(sum(input({4, 7, 6}), {1}), {0, 1}), "[i6, r7, i4]");
  EXPECT_EQ(order(set(input({2, 3, 5, 7})), {3, 0, 2, 1}), "[i2, i5, i7, i3]");
  EXPECT_EQ(order(set(input({5, 4, 6})), {1, 2, 0}), "[i4, i5, i6]");
}

TEST_F(ScheduleTest, StrideOrderErrors) {
  TensorView* out = product();
  const auto set_order = [&](const Order& order) { out->setStrideOrder(order, "add_output"); };
  expectError([&] { set_order({0}); },
              "add_output: stride_order has 1 entries for the 2 axes of T2");
  expectError([&] { set_order({0, 2}); },
              {"stride_order entry 2 of axis 1 of T2", "Use 0 (innermost) to 1"});
  expectError([&] { set_order({0, -3}); }, "stride_order entry -3 of axis 1 of T2 is out of range");
  expectError([&] { set_order({1, 1}); }, "stride_order entry 1 of T2 stands twice");
}

TEST_F(ScheduleTest, AllocationAsLoop) {
  TensorView* out = product();
  out->outerSplit(1, 2)->parallelize(1, kX);
  out->setAllocationAsLoop();
  EXPECT_EQ(allocationText(out), "[i4, X2, i3, r8]");
  EXPECT_EQ(out->getContiguity(), Contiguity({true, true, true, std::nullopt}));
}

TEST_F(ScheduleTest, AllocationAsLoopKeepsAStrideOrder) {
  TensorView* out = product();
  out->setStrideOrder(Order{0, 1}, "test");
  out->outerSplit(1, 2)->parallelize(1, kX);
  out->setAllocationAsLoop();
  EXPECT_EQ(allocationText(out), "[X2, i3, i4, r8]");
  out->setAllocationAsLoop();
  EXPECT_EQ(allocationText(out), "[X2, i3, i4, r8]");
}

TEST_F(ScheduleTest, AllocationAsLoopKeepsAnOrderOfThreeAxes) {
  TensorView* out = matmul(input({5, 4, 8}), input({8, 6}));
  out->setStrideOrder(Order{2, 0, 1}, "test");
  out->outerSplit(-2, 2)->parallelize(-3, kX);
  out->setAllocationAsLoop();
  EXPECT_EQ(allocationText(out), "[i5, X2, i3, i4, r8]");
}

TEST_F(ScheduleTest, AllocationAsLoopFollowsAReorderedLoop) {
  TensorView* out = product();
  out->setStrideOrder(Order{1, 0}, "test");
  out->outerSplit(1, 2)->parallelize(1, kX)->reorder(OldToNew{{1, 0}});
  out->setAllocationAsLoop();
  EXPECT_EQ(allocationText(out), "[X2, i4, i3, r8]");
}

TEST_F(ScheduleTest, AllocationAsLoopKeepsTheOrderAfterMoreSplits) {
  TensorView* out = matmul(input({4, 8}), input({8, 12}));
  out->setStrideOrder(Order{0, 1}, "test");
  out->outerSplit(1, 2)->parallelize(1, kX);
  out->setAllocationAsLoop();
  out->split(2, 3);
  out->setAllocationAsLoop();
  EXPECT_EQ(allocationText(out), "[X2, i2, i3, i4, r8]");
}

TEST_F(ScheduleTest, SetContiguity) {
  TensorView* tv = input({4, 1});
  tv->setContiguity(false);
  EXPECT_EQ(tv->getContiguity(), Contiguity({false, std::nullopt}));
  tv->setContiguity(true);
  EXPECT_EQ(tv->getContiguity(), Contiguity({true, std::nullopt}));
}

TEST_F(ScheduleTest, EveryCallChangesTheVersion) {
  TensorView* tv = input({4, 6});
  uint64_t before = fusion->version();
  const auto changed = [&] {
    return std::exchange(before, fusion->version()) != fusion->version();
  };
  tv->split(0, 2);
  EXPECT_TRUE(changed());
  tv->merge(0);
  EXPECT_TRUE(changed());
  tv->reorder(Order{1, 0});
  EXPECT_TRUE(changed());
  tv->parallelize(0, ParallelType::Stream);
  EXPECT_TRUE(changed());
  tv->setDeviceMesh(two);
  EXPECT_TRUE(changed());
  tv->setAllocationAsLoop();
  EXPECT_TRUE(changed());
  tv->setContiguity(false);
  EXPECT_TRUE(changed());
  tv->setContiguity(Contiguity{true, true});
  EXPECT_TRUE(changed());
}

}  // namespace
}  // namespace meshfuse
