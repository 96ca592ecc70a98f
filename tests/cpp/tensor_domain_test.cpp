// SPDX-License-Identifier: BSD-3-Clause
// TensorDomain alone: splits, merges, coverage of the logical axes, contiguity lists.
#include <meshfuse/ir/tensor_domain.h>

#include "fusion_fixture.h"

namespace meshfuse {
namespace {

using Ids = AxisList;

class TensorDomainTest : public FusionTest {
 protected:
  TensorDomain& domainOf(const std::vector<int64_t>& shape) { return input(shape)->domain(); }
  /// An axis of size 1 that stands for `extent` elements.
  TensorDomain& expanded(int64_t extent) {
    return addInput(TensorViewBuilder().shape({extent}).contiguity({std::nullopt}).build())
        ->domain();
  }
  std::pair<int32_t, int32_t> split(TensorDomain& d, int32_t in, int64_t factor, bool inner) {
    return d.split(*fusion, in, fusion->scalars().constant(factor), inner);
  }
  static std::string text(const TensorDomain& d, const Ids& ids) { return shortText(d.idsOf(ids)); }
};

TEST_F(TensorDomainTest, OuterSplitFixesTheOuterHalf) {
  TensorDomain& d = domainOf({8});
  const auto [outer, inner] = split(d, 0, 2, false);
  EXPECT_EQ(text(d, {outer, inner}), "[i2, i4]");
  ASSERT_EQ(d.transforms().size(), 1U);
  const Transform& t = d.transforms()[0];
  EXPECT_EQ(t.kind, Transform::Split);
  EXPECT_FALSE(t.inner);
  EXPECT_EQ(t.in[0], 0);
  EXPECT_EQ(t.out[0], outer);
  EXPECT_EQ(t.out[1], inner);
  EXPECT_EQ(d.definition(outer), &t);
  EXPECT_EQ(d.definition(inner), &t);
  EXPECT_EQ(d.definition(0), nullptr);
}

TEST_F(TensorDomainTest, InnerSplitFixesTheInnerHalfAndRoundsUp) {
  TensorDomain& d = domainOf({10});
  const auto [outer, inner] = split(d, 0, 4, true);
  EXPECT_EQ(text(d, {outer, inner}), "[i3, i4]");
}

TEST_F(TensorDomainTest, SplitLeavesTheListsAlone) {
  TensorDomain& d = domainOf({8, 6});
  split(d, 0, 2, false);
  EXPECT_EQ(d.loop(), Ids({0, 1}));
  EXPECT_EQ(d.logical(), Ids({0, 1}));
  EXPECT_EQ(d.allocation(), Ids({0, 1}));
}

TEST_F(TensorDomainTest, EqualSplitsOfOneExtentGiveEqualHandles) {
  TensorView* tv = input({-1});
  TensorView* same = set(tv);
  const auto a = split(tv->domain(), 0, 2, false), b = split(same->domain(), 0, 2, false);
  EXPECT_EQ(tv->domain().id(a.second)->extent(), same->domain().id(b.second)->extent());
  EXPECT_EQ(text(tv->domain(), {a.first, a.second}), "[i2, iceilDiv(T0.0, 2)]");
}

TEST_F(TensorDomainTest, HalvesInheritTheKindOfAxis) {
  TensorView* out = sum(input({8, 6}), {0});
  const auto [r_outer, r_inner] = split(out->domain(), 0, 2, false);
  EXPECT_EQ(text(out->domain(), {r_outer, r_inner}), "[r2, r4]");
  TensorDomain& b = domainOf({1});
  const auto [b_outer, b_inner] = split(b, 0, 2, false);
  EXPECT_EQ(text(b, {b_outer, b_inner}), "[b1, b1]");
}

TEST_F(TensorDomainTest, ExpansionGoesToTheHalfThatIsNotTheFactor) {
  TensorDomain& d = expanded(6);
  const auto [outer, inner] = split(d, 0, 2, false);
  EXPECT_EQ(text(d, {outer, inner}), "[b2, b1 exp 3]");
  TensorDomain& e = expanded(6);
  const auto [outer2, inner2] = split(e, 0, 2, true);
  EXPECT_EQ(text(e, {outer2, inner2}), "[b1 exp 3, b2]");
}

TEST_F(TensorDomainTest, MergeMultipliesExtents) {
  TensorDomain& d = domainOf({4, 3});
  const int32_t merged = d.merge(*fusion, 1, 0);
  EXPECT_EQ(text(d, {merged}), "[i12]");
  EXPECT_EQ(d.transforms()[0].kind, Transform::Merge);
  EXPECT_EQ(d.transforms()[0].in[0], 1);
  EXPECT_EQ(d.transforms()[0].in[1], 0);
}

TEST_F(TensorDomainTest, MergeWithABroadcast) {
  TensorDomain& d = domainOf({4, 1, 1});
  EXPECT_EQ(text(d, {d.merge(*fusion, 0, 1)}), "[i4]");
  EXPECT_EQ(text(d, {d.merge(*fusion, 1, 0)}), "[i4]");
  EXPECT_EQ(text(d, {d.merge(*fusion, 1, 2)}), "[b1]");
}

TEST_F(TensorDomainTest, MergeCountsExpandedElements) {
  TensorView* tv = addInput(
      TensorViewBuilder().shape({4, 6, 5}).contiguity({true, std::nullopt, std::nullopt}).build());
  TensorDomain& d = tv->domain();
  EXPECT_EQ(text(d, {d.merge(*fusion, 0, 1)}), "[i24]");
  EXPECT_EQ(text(d, {d.merge(*fusion, 1, 2)}), "[b1 exp 30]");
}

TEST_F(TensorDomainTest, CoversLogical) {
  TensorDomain& d = domainOf({8, 6, 1});
  const auto [o, i] = split(d, 0, 2, false);
  const auto [io, ii] = split(d, i, 2, true);
  const int32_t m = d.merge(*fusion, io, 1);
  for (const Ids& list : {Ids{0, 1, 2}, Ids{2, 1, 0}, Ids{o, i, 1, 2}, Ids{1, i, o, 2},
                          Ids{o, io, ii, 1, 2}, Ids{o, m, ii, 2}, Ids{ii, m, o, 2}, Ids{0, 1}}) {
    EXPECT_TRUE(d.coversLogical(list)) << text(d, list);
  }
  for (const Ids& list : {Ids{}, Ids{0, 2}, Ids{o, 1, 2}, Ids{i, 1, 2}, Ids{0, o, i, 1, 2},
                          Ids{0, 0, 1, 2}, Ids{o, o, 1, 2}, Ids{o, m, 2}, Ids{o, m, ii, 1, 2},
                          Ids{o, m, io, ii, 2}, Ids{0, m, 2}, Ids{o, i, io, ii, 1, 2}}) {
    EXPECT_FALSE(d.coversLogical(list)) << text(d, list);
  }
}

TEST_F(TensorDomainTest, BroadcastHalvesMayBeMissing) {
  TensorDomain& d = domainOf({4, 1});
  const auto [o, i] = split(d, 1, 2, false);
  EXPECT_TRUE(d.coversLogical({0, o, i}));
  EXPECT_TRUE(d.coversLogical({0, o}));
  EXPECT_TRUE(d.coversLogical({0}));
  EXPECT_FALSE(d.coversLogical({o, i}));
}

TEST_F(TensorDomainTest, RootAndLogicalBothCover) {
  TensorView* out = sum(input({4, 8}), {1});
  out->outerSplit(-1, 2);
  const TensorDomain& d = out->rfactor({-1})->domain();
  ASSERT_TRUE(d.hasRoot());
  EXPECT_EQ(text(d, d.root()), "[i4, r8]");
  EXPECT_EQ(text(d, d.logical()), "[i4, i2, r4]");
  EXPECT_TRUE(d.coversLogical(d.root()));
  EXPECT_TRUE(d.coversLogical(d.logical()));
  EXPECT_FALSE(d.coversLogical({d.logical()[0], d.logical()[1]}));
}

TEST_F(TensorDomainTest, ContiguityHasNoneForBroadcastsAndReductions) {
  const Contiguity want = {std::nullopt, true, std::nullopt};
  TensorView* out = sum(input({4, 6, 1}), {0});
  EXPECT_EQ(logicalText(out), "[r4, i6, b1]");
  EXPECT_EQ(out->getContiguity(), want);
  EXPECT_EQ(out->domain().uniformContiguity({1, 2, 0}, false),
            Contiguity({false, std::nullopt, std::nullopt}));
}

TEST_F(TensorDomainTest, AllocationDefaultsToLogical) {
  TensorDomain& d = domainOf({4, 6});
  EXPECT_FALSE(d.hasAllocation());
  EXPECT_EQ(d.allocation(), d.logical());
  d.setAllocation({1, 0}, {false, true});
  EXPECT_TRUE(d.hasAllocation());
  EXPECT_EQ(text(d, d.allocation()), "[i6, i4]");
  EXPECT_EQ(d.contiguity(), Contiguity({false, true}));
  d.clearAllocation();
  EXPECT_FALSE(d.hasAllocation());
  EXPECT_EQ(d.contiguity(), Contiguity({true, true}));
}

TEST_F(TensorDomainTest, WithoutReductions) {
  const TensorDomain& d = sum(input({4, 6, 5}), {0, 2})->domain();
  EXPECT_EQ(text(d, d.withoutReductions(d.logical())), "[i6]");
}

TEST_F(TensorDomainTest, RootIsLogicalUnlessSet) {
  const TensorDomain& d = domainOf({4, 6});
  EXPECT_FALSE(d.hasRoot());
  EXPECT_EQ(d.root(), d.logical());
  EXPECT_EQ(d.definitionTransforms(), 0U);
}

TEST_F(TensorDomainTest, CopyHasAxesOfItsOwn) {
  TensorView* from = input({8});
  from->outerSplit(0, 2)->axis(0)->parallelize(kX);
  TensorView* to = fusion->newTensor(DataType::Float);
  to->domain().copyFrom(*fusion, to, from->domain());
  EXPECT_EQ(loopText(to), "[X2, i4]");
  EXPECT_EQ(to->axis(0)->tensor(), to);
  to->axis(0)->parallelize(ParallelType::Serial);
  EXPECT_EQ(loopText(to), "[i2, i4]");
  EXPECT_EQ(loopText(from), "[X2, i4]");
}

TEST_F(TensorDomainTest, Renumber) {
  TensorView* tv = input({8, 6});
  tv->outerSplit(0, 2)->axis(0)->parallelize(kX);
  tv->setAllocationAsLoop();
  const std::vector<int32_t> to = {3, 0, 1, 2};
  tv->domain().renumber(to);
  EXPECT_EQ(logicalText(tv), "[i8, i6]");
  EXPECT_EQ(loopText(tv), "[X2, i4, i6]");
  EXPECT_EQ(allocationText(tv), "[X2, i4, i6]");
  EXPECT_EQ(tv->domain().logical(), Ids({3, 0}));
  EXPECT_TRUE(tv->domain().coversLogical(tv->domain().loop()));
  EXPECT_EQ(tv->axis(1)->index(), 2);
}

}  // namespace
}  // namespace meshfuse
