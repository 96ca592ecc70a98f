// SPDX-License-Identifier: BSD-3-Clause
// How operands divide factors over a mesh axis, and which operations are local (semantics 5.3).
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/passes/projection.h>

#include "fusion_fixture.h"

namespace meshfuse {
namespace {

/// Rows along the last axis; it must not be split.
struct RowOp final : OpDef {
  OpInfo info() const override {
    return {.name = "test_rows", .params = {tensor("arg")}, .doc = "For the test of Blocking."};
  }
  FactorMap factors(const OpCall& call) const override { return einsum(call, "...k!->...k!"); }
  void evaluate(const OpCall&, const Operands&) const override {}
};
MESHFUSE_REGISTER_OP(RowOp);

class ProjectionTest : public FusionTest {
 protected:
  /// A tensor on two devices.
  TensorView* on(TensorView* tv) {
    tv->setDeviceMesh(two);
    return tv;
  }
  TensorView* replicated(const std::vector<int64_t>& shape) { return on(input(shape)); }
  /// Cuts `axis` in blocks over mesh_x.
  TensorView* cut(TensorView* tv, int64_t axis) {
    const int64_t position = axis < 0 ? axis + tv->nDims() : axis;
    return tv->outerSplit(position, 2)->parallelize(position, kX);
  }
  TensorView* sharded(const std::vector<int64_t>& shape, int64_t axis) {
    return cut(replicated(shape), axis);
  }
  static std::string why(const TensorView* out, ParallelType p = kX) {
    return whyNotLocal(out->definition(), p).value_or("local");
  }
  static FactorSplit splitOf(const TensorView* out, size_t operand) {
    return project(out->definition(), kX).at(operand).split.value();
  }
};

constexpr const char* kLocal = "local";

// ---- set

TEST_F(ProjectionTest, Set) {
  EXPECT_EQ(why(on(set(replicated({4, 6})))), kLocal);
  EXPECT_EQ(why(cut(on(set(sharded({4, 6}, 0))), 0)), kLocal);
  EXPECT_NE(why(cut(on(set(replicated({4, 6}))), 0)), kLocal);
  EXPECT_NE(why(on(set(sharded({4, 6}, 0)))), kLocal);
  EXPECT_NE(why(cut(on(set(sharded({4, 6}, 0))), 1)), kLocal);
}

// ---- sum

TEST_F(ProjectionTest, SumOverTheCutAxis) {
  TensorView* x = replicated({4, 6});
  TensorView *out = on(sum(x, {0})), *request = on(sum(x, {0})), *scattered = on(sum(x, {0}));
  cut(x, 0);
  EXPECT_EQ(why(out),
            "T0 splits 'axis 0' over mesh_x, so each device has a part of the sum that T1 is");
  request->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(why(request), "T2 asks for a reduction of 'axis 0' across mesh_x");
  EXPECT_NE(why(cut(scattered, 1)), kLocal);
}

TEST_F(ProjectionTest, SumOverAnotherAxis) {
  TensorView* x = replicated({4, 6});
  TensorView *divided = on(sum(x, {1})), *whole = on(sum(x, {1}));
  cut(x, 0);
  EXPECT_EQ(why(cut(divided, 0)), kLocal);
  EXPECT_EQ(why(whole), "T0 splits 'axis 0' over mesh_x, T2 holds 'axis 0' unsplit");
}

// ---- add

TEST_F(ProjectionTest, AddWithOneOperandElsewhere) {
  TensorView *x = replicated({4, 6}), *y = replicated({4, 6});
  EXPECT_EQ(why(cut(on(add(x, y)), 0)),
            "T2 splits 'axis -2' over mesh_x, T0 holds 'axis -2' unsplit");
  EXPECT_NE(why(on(add(sharded({4, 6}, 0), sharded({4, 6}, 0)))), kLocal);
  EXPECT_NE(why(cut(on(add(sharded({4, 6}, 0), y)), 0)), kLocal);
}

TEST_F(ProjectionTest, AddOfLikeOperands) {
  EXPECT_EQ(why(cut(on(add(sharded({4, 6}, 0), sharded({4, 6}, 0))), 0)), kLocal);
  EXPECT_EQ(why(cut(on(add(sharded({4, 6}, 1), sharded({6}, 0))), 1)), kLocal);
  EXPECT_EQ(why(on(add(replicated({4, 6}), replicated({4, 6})))), kLocal);
}

TEST_F(ProjectionTest, BroadcastAxisOnTheMeshDividesNothing) {
  TensorView* y = replicated({1, 6});
  EXPECT_EQ(why(cut(on(add(sharded({4, 6}, 0), y)), 0)), kLocal);
  y->parallelize(0, kX);
  EXPECT_EQ(why(cut(on(add(sharded({4, 6}, 0), y)), 0)), kLocal);
  EXPECT_EQ(why(on(relu(y))), kLocal);
}

TEST_F(ProjectionTest, NewBroadcastAxisOnTheMesh) {
  TensorView* out = on(broadcast(replicated({4}), {true, false}));
  out->parallelize(0, kX);
  EXPECT_EQ(why(out), kLocal);
}

// ---- matmul

TEST_F(ProjectionTest, MatmulColumnParallel) {
  TensorView* a = replicated({4, 8});
  TensorView* out = on(matmul(a, sharded({8, 6}, 1)));
  EXPECT_EQ(why(out), "T1 splits 'n' over mesh_x, T2 holds 'n' unsplit");
  cut(out, 1);
  EXPECT_EQ(why(out), kLocal);
}

TEST_F(ProjectionTest, MatmulRowsOfTheFirst) {
  TensorView* a = sharded({4, 8}, 0);
  TensorView* b = replicated({8, 6});
  EXPECT_EQ(why(cut(on(matmul(a, b)), 0)), kLocal);
  cut(b, 1);
  EXPECT_EQ(why(cut(on(matmul(a, b)), 0)), "T1 splits 'n' over mesh_x, T3 holds 'n' unsplit");
}

TEST_F(ProjectionTest, MatmulBatch) {
  TensorView* a = sharded({2, 4, 8}, 0);
  EXPECT_EQ(why(cut(on(matmul(a, replicated({8, 6}))), 0)), kLocal);
  EXPECT_EQ(why(cut(on(matmul(a, sharded({2, 8, 6}, 0))), 0)), kLocal);
  EXPECT_NE(why(cut(on(matmul(a, replicated({2, 8, 6}))), 0)), kLocal);
}

TEST_F(ProjectionTest, MatmulContraction) {
  TensorView* a = sharded({4, 8}, 1);
  TensorView* b = sharded({8, 6}, 0);
  EXPECT_EQ(why(on(matmul(a, b))),
            "T0 splits 'k' over mesh_x, so each device has a part of the sum that T2 is");
  EXPECT_EQ(why(cut(on(matmul(a, b)), -1)), "T3 asks for a reduction of 'k' across mesh_x");
  EXPECT_NE(why(cut(on(matmul(a, replicated({8, 6}))), -1)), kLocal);
}

TEST_F(ProjectionTest, PartialMatmulIsLocal) {
  TensorView* out = on(matmul(sharded({4, 8}, 1), sharded({8, 6}, 0)))->outerSplit(-1, 2);
  TensorView* local = out->rfactor({-1});
  local->parallelize(-2, kX);
  EXPECT_EQ(why(local), kLocal);
  EXPECT_NE(why(out), kLocal);
}

TEST_F(ProjectionTest, EveryMeshAxisIsAskedByItself) {
  TensorView *a = input({4, 8}), *b = input({8, 6});
  TensorView* out = matmul(a, b);
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(square);
  a->outerSplit(0, 2)->parallelize(0, kY);
  b->outerSplit(1, 2)->parallelize(1, kX);
  out->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_EQ(why(out, kX), kLocal);
  EXPECT_EQ(why(out, kY), "T0 splits 'm' over mesh_y, T2 holds 'm' unsplit");
  out->outerSplit(0, 2)->parallelize(0, kY);
  EXPECT_EQ(why(out, kX), kLocal);
  EXPECT_EQ(why(out, kY), kLocal);
}

TEST_F(ProjectionTest, MeshAxisOfOneDeviceNeedsNoCommunication) {
  TensorView* x = input({4});
  x->setDeviceMesh(DeviceMesh({0}));
  x->outerSplit(0, 1)->parallelize(0, kX);
  TensorView* out = relu(x);
  out->setDeviceMesh(DeviceMesh({0}));
  EXPECT_EQ(why(out), kLocal);
}

// ---- paths

TEST_F(ProjectionTest, OuterAndInnerSplitsOfOneDigitAreEqual) {
  TensorView *a = replicated({4, 8}), *b = replicated({8, 6});
  TensorView* out = on(matmul(a, b));
  b->outerSplit(1, 2)->parallelize(1, kX);
  out->innerSplit(1, 3)->parallelize(1, kX);  // [2, 3] too
  EXPECT_EQ(splitOf(out, 1).key, splitOf(out, 2).key);
  EXPECT_EQ(why(out), kLocal);
}

TEST_F(ProjectionTest, CyclicIsAnotherDigitThanBlocks) {
  TensorView *a = replicated({4, 8}), *b = replicated({8, 6});
  TensorView* out = on(matmul(a, b));
  b->outerSplit(1, 2)->parallelize(1, kX);
  out->innerSplit(1, 2)->parallelize(2, kX);
  EXPECT_FALSE(splitOf(out, 1).key == splitOf(out, 2).key);
  EXPECT_EQ(why(out), "T1 splits 'n' over mesh_x in another way than T2 does");
}

TEST_F(ProjectionTest, CyclicOnBothSidesIsLocal) {
  TensorView* out = on(matmul(replicated({4, 8}), replicated({8, 6})));
  out->definition()->input(1)->innerSplit(1, 2)->parallelize(2, kX);
  out->innerSplit(1, 2)->parallelize(2, kX);
  EXPECT_EQ(why(out), kLocal);
}

TEST_F(ProjectionTest, NestedBlocksAreAnotherDigit) {
  TensorView *a = replicated({4, 8}), *b = replicated({8, 12});
  TensorView* out = on(matmul(a, b));
  b->outerSplit(1, 2)->parallelize(1, kX);
  out->outerSplit(1, 2)->outerSplit(2, 2)->parallelize(2, kX);
  EXPECT_NE(why(out), kLocal);
}

TEST_F(ProjectionTest, SerialSplitsBelowDoNotMatter) {
  TensorView* out = cut(on(matmul(replicated({4, 8}), sharded({8, 12}, 1))), 1);
  out->split(2, 3);
  EXPECT_EQ(why(out), kLocal);
}

TEST_F(ProjectionTest, SymbolsCompareBySplit) {
  TensorView *a = on(input({-1, -1})), *b = on(input({-1, -1}));
  TensorView* out = on(matmul(a, b));
  cut(b, 1);
  cut(out, 1);
  EXPECT_EQ(splitOf(out, 1).key, splitOf(out, 2).key);
  EXPECT_EQ(why(out), kLocal);
}

TEST_F(ProjectionTest, RowsOfTheTable) {
  TensorView* a = sharded({4, 8}, 0);
  TensorView* out = cut(on(matmul(a, replicated({8, 6}))), 0);
  const auto rows = project(out->definition(), kX);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].tensor, a);
  EXPECT_FALSE(rows[0].is_output);
  EXPECT_TRUE(rows[0].split.has_value());
  EXPECT_FALSE(rows[1].split.has_value());
  EXPECT_EQ(rows[2].tensor, out);
  EXPECT_TRUE(rows[2].is_output);
  EXPECT_FALSE(rows[2].reduced.has_value());
  EXPECT_FALSE(rows[2].divides_unmapped);
  const int32_t m = rows[0].split->factors.at(0);
  EXPECT_EQ(out->definition()->factors().factor(m).label, "m");
  EXPECT_TRUE(holdsFactor(out->definition(), 0, m));
  EXPECT_FALSE(holdsFactor(out->definition(), 1, m));
  EXPECT_TRUE(holdsFactor(out->definition(), 2, m));
}

// ---- blocking factors

TEST_F(ProjectionTest, BlockingFactorMustBeWhole) {
  const auto rows = [&](TensorView* x) {
    return on(std::get<TensorView*>(callOp("test_rows", {x}).at(0)));
  };
  TensorView* out = cut(rows(sharded({4, 6}, 1)), 1);
  EXPECT_EQ(why(out), "T0 splits 'k' over mesh_x, which test_rows needs whole");
  EXPECT_EQ(why(cut(rows(sharded({4, 6}, 0)), 0)), kLocal);
}

// ---- propagation and the check, as far as they stand on the table

TEST_F(ProjectionTest, PropagationGivesEveryResultASplit) {
  TensorView *a = replicated({4, 8}), *b = sharded({8, 6}, 1);
  TensorView* out = output(relu(matmul(a, b)));
  EXPECT_TRUE(runPass(*fusion, "propagate-sharding"));
  EXPECT_EQ(loopText(out), "[i4, X2, i3]");
  EXPECT_EQ(out->getDeviceMesh(), two);
  EXPECT_FALSE(out->meshIsDeclared());
  EXPECT_FALSE(runPass(*fusion, "propagate-sharding"));
  EXPECT_NO_THROW(runPass(*fusion, "check-local"));
}

TEST_F(ProjectionTest, PropagationOfAContraction) {
  output(matmul(sharded({4, 8}, 1), sharded({8, 6}, 0)));
  runPass(*fusion, "propagate-sharding");
  EXPECT_EQ(loopText(fusion->tensor(2)), "[i4, i6, rX2, r4]");
}

TEST_F(ProjectionTest, SecondOperandWins) {
  TensorView *a = sharded({4, 8}, 0), *b = sharded({8, 6}, 1);
  TensorView* out = output(matmul(a, b));
  runPass(*fusion, "propagate-sharding");
  EXPECT_EQ(loopText(out), "[i4, X2, i3, r8]");
}

TEST_F(ProjectionTest, DeclaredReplicatedStays) {
  TensorView* out = output(on(relu(sharded({4, 6}, 0))));
  EXPECT_FALSE(runPass(*fusion, "propagate-sharding"));
  EXPECT_EQ(loopText(out), "[i4, i6]");
}

TEST_F(ProjectionTest, InputsGetAMeshOnly) {
  TensorView *a = input({4, 8}), *b = sharded({8, 6}, 1);
  output(matmul(a, b));
  runPass(*fusion, "propagate-sharding");
  EXPECT_EQ(a->getDeviceMesh(), two);
  EXPECT_EQ(loopText(a), "[i4, i8]");
}

}  // namespace
}  // namespace meshfuse
