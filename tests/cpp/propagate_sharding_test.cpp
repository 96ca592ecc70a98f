// SPDX-License-Identifier: BSD-3-Clause
// Propagation through axes that stand for several factors, past blocking factors, and where splits
// are said to come from. The rest is in tests/golden/propagate_sharding.mf.
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/factor_path.h>
#include <meshfuse/passes/pass.h>

#include "fusion_fixture.h"

namespace meshfuse {
namespace {

/// [a, b] -> [a * b] and back, as a reshape does it.
FactorMap grouped(const OpCall& call, int64_t a, int64_t b, bool fold) {
  ScalarPool& pool = call.fusion().scalars();
  FactorMap map;
  const int32_t major = map.addFactor(FactorKind::Parallel, pool.constant(a), "a");
  const int32_t minor = map.addFactor(FactorKind::Parallel, pool.constant(b), "b");
  const auto apart = [&] {
    map.beginOperand();
    map.addAxis(std::array{major});
    map.addAxis(std::array{minor});
  };
  if (fold) apart();
  map.beginOperand();
  map.addAxis(std::array{major, minor});
  if (!fold) apart();
  return map;
}

struct FoldOp final : OpDef {
  OpInfo info() const override {
    return {.name = "test_fold",
            .params = {tensor("arg"), attr("a", ParamKind::Int), attr("b", ParamKind::Int)},
            .doc = "For the test of groups."};
  }
  FactorMap factors(const OpCall& call) const override {
    return grouped(call, call.integer(1), call.integer(2), true);
  }
  void evaluate(const OpCall&, const Operands&) const override {}
};
MESHFUSE_REGISTER_OP(FoldOp);

struct UnfoldOp final : OpDef {
  OpInfo info() const override {
    return {.name = "test_unfold",
            .params = {tensor("arg"), attr("a", ParamKind::Int), attr("b", ParamKind::Int)},
            .doc = "For the test of groups."};
  }
  FactorMap factors(const OpCall& call) const override {
    return grouped(call, call.integer(1), call.integer(2), false);
  }
  void evaluate(const OpCall&, const Operands&) const override {}
};
MESHFUSE_REGISTER_OP(UnfoldOp);

struct SortRowsOp final : OpDef {
  OpInfo info() const override {
    return {
        .name = "test_sort_rows", .params = {tensor("arg")}, .doc = "For the test of Blocking."};
  }
  FactorMap factors(const OpCall& call) const override { return einsum(call, "...k!->...k!"); }
  void evaluate(const OpCall&, const Operands&) const override {}
};
MESHFUSE_REGISTER_OP(SortRowsOp);

class PropagateShardingTest : public FusionTest {
 protected:
  TensorView* on(TensorView* tv) {
    tv->setDeviceMesh(two);
    return tv;
  }
  static TensorView* call(std::string_view op, std::vector<Arg> args) {
    return std::get<TensorView*>(callOp(op, std::move(args))[0]);
  }
  TensorView* fold(TensorView* tv, int64_t a, int64_t b) { return call("test_fold", {tv, a, b}); }
  TensorView* unfold(TensorView* tv, int64_t a, int64_t b) {
    return call("test_unfold", {tv, a, b});
  }
  /// Cuts `axis` in blocks (or cyclically) over mesh_x.
  static TensorView* cut(TensorView* tv, int64_t axis, bool cyclic = false) {
    if (cyclic) return tv->innerSplit(axis, 2)->parallelize(axis + 1, kX);
    return tv->outerSplit(axis, 2)->parallelize(axis, kX);
  }
  /// The axis that `out` is divided over after the pass; -1: none.
  int64_t axisAfterPass(TensorView* out) {
    fusion->addOutput(out);
    runPass(*fusion, "propagate-sharding");
    return getShardedLogicalAxis(out, kX);
  }
};

TEST_F(PropagateShardingTest, OutermostPieceOfAFoldedAxis) {
  TensorView* x = cut(on(input({6, 5})), 0);
  EXPECT_EQ(axisAfterPass(fold(x, 6, 5)), 0);
}

TEST_F(PropagateShardingTest, InnerPieceOfAFoldedAxisStops) {
  TensorView* x = cut(on(input({5, 6})), 1);
  EXPECT_EQ(axisAfterPass(fold(x, 5, 6)), -1);
}

TEST_F(PropagateShardingTest, CyclicPieceOfAFoldedAxisStops) {
  TensorView* x = cut(on(input({6, 5})), 0, true);
  EXPECT_EQ(axisAfterPass(fold(x, 6, 5)), -1);
}

TEST_F(PropagateShardingTest, UnfoldedAxis) {
  TensorView* x = cut(on(input({24})), 0);
  EXPECT_EQ(axisAfterPass(unfold(x, 4, 6)), 0);
}

TEST_F(PropagateShardingTest, UnfoldedAxisGivenByTheInnerExtent) {
  TensorView* x = on(input({24}));
  x->innerSplit(0, 12)->parallelize(0, kX);
  EXPECT_EQ(axisAfterPass(unfold(x, 4, 6)), 0);
}

TEST_F(PropagateShardingTest, UnfoldedAxisThatTheDevicesDoNotDivideStops) {
  TensorView* x = cut(on(input({6})), 0);
  EXPECT_EQ(axisAfterPass(unfold(x, 3, 2)), -1);
}

TEST_F(PropagateShardingTest, BackwardThroughAFoldedAxis) {
  TensorView* h = relu(input({6, 5}));
  TensorView* y = cut(on(fold(h, 6, 5)), 0);
  axisAfterPass(y);
  EXPECT_EQ(getShardedLogicalAxis(h, kX), 0);
}

TEST_F(PropagateShardingTest, BlockingFactorIsNotCopied) {
  EXPECT_EQ(axisAfterPass(call("test_sort_rows", {cut(on(input({4, 6})), 1)})), -1);
}

TEST_F(PropagateShardingTest, RowsOfABlockingOpAreCopied) {
  EXPECT_EQ(axisAfterPass(call("test_sort_rows", {cut(on(input({4, 6})), 0)})), 0);
}

TEST_F(PropagateShardingTest, OperationsThatNoOutputNeedsDoNotCount) {
  TensorView* h = relu(on(input({4, 6})));
  cut(on(relu(h)), 0);
  TensorView* y = cut(on(relu(h)), 1);
  axisAfterPass(y);
  EXPECT_EQ(getShardedLogicalAxis(h, kX), 1);
}

TEST_F(PropagateShardingTest, SaysWhereSplitsComeFrom) {
  TensorView *x = input({4, 8}), *w = cut(on(input({8, 6})), 1);
  TensorView* h = matmul(x, w);
  TensorView* y = relu(h);
  axisAfterPass(y);
  EXPECT_EQ(h->meshOrigin().tensor, w->id());
  EXPECT_EQ(h->splitOrigin(kX).tensor, w->id());
  EXPECT_EQ(factorName(*fusion, h->splitOrigin(kX)), "n");
  EXPECT_EQ(y->splitOrigin(kX).tensor, h->id());
  EXPECT_EQ(x->meshOrigin().tensor, h->id());
  EXPECT_EQ(factorName(*fusion, x->meshOrigin()), "");
  EXPECT_EQ(x->splitOrigin(kX).tensor, -1);
  EXPECT_EQ(w->meshOrigin().tensor, -1);
  EXPECT_FALSE(h->meshIsDeclared());
  EXPECT_TRUE(w->meshIsDeclared());
}

TEST_F(PropagateShardingTest, SecondRunChangesNothing) {
  TensorView* w = cut(on(input({8, 6})), 0);
  TensorView* t = matmul(relu(input({4, 8})), w);
  TensorView* y = cut(on(add(t, input({6}))), 0);
  fusion->addOutput(y);
  EXPECT_TRUE(runPass(*fusion, "propagate-sharding"));
  EXPECT_EQ(getShardedLogicalAxis(t, kX), 0);
  EXPECT_TRUE(reducedAxis(t, kX).has_value());
  EXPECT_FALSE(runPass(*fusion, "propagate-sharding"));
}

}  // namespace
}  // namespace meshfuse
