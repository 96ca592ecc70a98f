// SPDX-License-Identifier: BSD-3-Clause
// Factors of formulas and ops, and the axes of results that follow from them (semantics 1.3, 4).
#include <meshfuse/ops/matmul.h>

#include "expect_error.h"
#include "fusion_fixture.h"

namespace meshfuse {
namespace {

using Shape = std::vector<int64_t>;

class EinsumTest : public FusionTest {
 protected:
  FactorMap mapOf(std::string_view formula, std::vector<TensorView*> operands) {
    std::vector<Arg> args(operands.begin(), operands.end());
    return einsum(OpCall(*fusion, *findOp("matmul"), args), formula);
  }
  /// "m:2 k:r8 n:6", with b for Blocking and r for Reduction.
  std::string factorText(const FactorMap& map) {
    std::string text;
    for (const Factor& f : map.factors()) {
      text += (text.empty() ? "" : " ") + f.label + ":";
      if (f.kind == FactorKind::Reduction) text += "r";
      if (f.kind == FactorKind::Blocking) text += "b";
      text += toString(*fusion, f.extent);
    }
    return text;
  }
  /// Labels of one operand's axes: "m k", "-" where no factor is.
  static std::string axesText(const FactorMap& map, size_t operand) {
    std::string text;
    for (size_t axis = 0; axis < map.numAxes(operand); ++axis) {
      if (axis > 0) text += " ";
      if (map.axis(operand, axis).empty()) text += "-";
      for (const int32_t f : map.axis(operand, axis)) text += map.factor(f).label;
    }
    return text;
  }
  std::string product(const Shape& a, const Shape& b) {
    TensorView* left = input(a);
    return logicalText(matmul(left, input(b)));
  }
};

// ---- formulas

TEST_F(EinsumTest, LettersAreFactors) {
  const FactorMap map = mapOf("mk,kn->mn", {input({2, 8}), input({8, 6})});
  EXPECT_EQ(factorText(map), "m:2 k:r8 n:6");
  ASSERT_EQ(map.numOperands(), 3U);
  EXPECT_EQ(axesText(map, 0), "m k");
  EXPECT_EQ(axesText(map, 1), "k n");
  EXPECT_EQ(axesText(map, 2), "m n k");  // reductions come last
}

TEST_F(EinsumTest, ReductionsInOrderOfAppearance) {
  const FactorMap map = mapOf("abc,bd->d", {input({2, 3, 4}), input({3, 5})});
  EXPECT_EQ(axesText(map, 2), "d a b c");
}

TEST_F(EinsumTest, EllipsisIsAlignedFromTheRight) {
  const FactorMap map = mapOf("...,...->...", {input({2, 3, 4}), input({4})});
  EXPECT_EQ(axesText(map, 0), "axis -3 axis -2 axis -1");
  EXPECT_EQ(axesText(map, 1), "axis -1");
  EXPECT_EQ(axesText(map, 2), "axis -3 axis -2 axis -1");
  const FactorMap inner = mapOf("...mk,...kn->...mn", {input({7, 2, 8}), input({8, 6})});
  EXPECT_EQ(axesText(inner, 0), "axis -3 m k");
  EXPECT_EQ(axesText(inner, 1), "k n");
  EXPECT_EQ(axesText(inner, 2), "axis -3 m n k");
}

TEST_F(EinsumTest, StaticOneHasNoFactor) {
  const FactorMap map = mapOf("...,...->...", {input({5, 1}), input({1, 3})});
  EXPECT_EQ(factorText(map), "axis -2:5 axis -1:3");
  EXPECT_EQ(axesText(map, 0), "axis -2 -");
  EXPECT_EQ(axesText(map, 1), "- axis -1");
  EXPECT_EQ(axesText(map, 2), "axis -2 axis -1");
  const FactorMap ones = mapOf("m,m->m", {input({1}), input({1})});
  EXPECT_TRUE(ones.factors().empty());
  EXPECT_EQ(axesText(ones, 2), "-");
}

TEST_F(EinsumTest, BlockingFactors) {
  const FactorMap map = mapOf("...k!->...k!", {input({2, 8})});
  EXPECT_EQ(factorText(map), "axis -2:2 k:b8");
  EXPECT_EQ(axesText(map, 1), "axis -2 k");
  const FactorMap inside = mapOf("mk!,k!n->mn", {input({2, 8}), input({8, 6})});
  EXPECT_EQ(factorText(inside), "m:2 k:b8 n:6");
  EXPECT_EQ(axesText(inside, 2), "m n");  // contracted inside: no reduction axis
}

TEST_F(EinsumTest, ConstantSaysMoreThanASymbol) {
  TensorView *a = input({-1, 8}), *b = input({-1, 6});
  EXPECT_EQ(factorText(mapOf("mk,kn->mn", {a, b})), "m:T0.0 k:r8 n:6");
  EXPECT_EQ(factorText(mapOf("mk,mn->kn", {a, b})), "m:rT0.0 k:8 n:6");
}

TEST_F(EinsumTest, EqualHandlesNeedNoConstraint) {
  TensorView* a = input({-1});
  EXPECT_TRUE(add(a, a)->definition()->constraints().empty());
  TensorView* b = input({-1});
  const auto constraints = add(a, b)->definition()->constraints();
  ASSERT_EQ(constraints.size(), 1U);
  EXPECT_EQ(constraints[0].tensor_a, a->id());
  EXPECT_EQ(constraints[0].tensor_b, b->id());
  EXPECT_EQ(constraints[0].axis_a, 0);
}

TEST_F(EinsumTest, ConstantsMustAgree) {
  TensorView *a = input({4, 8}), *b = input({7, 6});
  expectError([&] { matmul(a, b); },
              {"matmul: axis 1 of T0 has size 8 but axis 0 of T1 has size 7",
               "both are 'k' of the operation", "Give operands whose sizes agree"});
  expectError([&] { add(a, b); }, "add: axis");
}

TEST_F(EinsumTest, WrongNumberOfAxes) {
  expectError([&] { mapOf("mk,kn->mn", {input({2, 3, 4}), input({4, 5})}); },
              "axes, but 2 are needed");
  expectError([&] { mapOf("...mk,kn->...mn", {input({4}), input({4, 5})}); },
              "has 1 axes, but at least 2 are needed");
}

// ---- matmul, the table of 4.1

TEST_F(EinsumTest, MatmulTable) {
  EXPECT_EQ(product({8}, {8}), "[r8]");
  EXPECT_EQ(product({2, 8}, {8}), "[i2, r8]");
  EXPECT_EQ(product({8}, {8, 6}), "[i6, r8]");
  EXPECT_EQ(product({2, 8}, {8, 6}), "[i2, i6, r8]");
  EXPECT_EQ(product({5, 2, 8}, {8}), "[i5, i2, r8]");
  EXPECT_EQ(product({8}, {5, 8, 6}), "[i5, i6, r8]");
  EXPECT_EQ(product({5, 2, 8}, {8, 6}), "[i5, i2, i6, r8]");
  EXPECT_EQ(product({2, 8}, {5, 8, 6}), "[i5, i2, i6, r8]");
  EXPECT_EQ(product({7, 1, 2, 8}, {5, 8, 6}), "[i7, i5, i2, i6, r8]");
  EXPECT_EQ(product({2, 1}, {1, 6}), "[i2, i6]");
}

TEST_F(EinsumTest, MatmulOfSymbols) {
  EXPECT_EQ(product({-1, -1}, {-1, -1}), "[iT0.0, iT1.1, rT0.1]");
  EXPECT_EQ(product({-1, -1}, {8, -1}), "[iT3.0, iT4.1, r8]");
}

TEST_F(EinsumTest, MatmulWithStaticOnes) {
  EXPECT_EQ(product({1, 8}, {8, 6}), "[b1, i6, r8]");
  EXPECT_EQ(product({2, 8}, {8, 1}), "[i2, b1, r8]");
  EXPECT_EQ(product({1, 1}, {1, 1}), "[b1, b1]");
  EXPECT_EQ(product({1}, {1}), "[]");
  EXPECT_EQ(product({1, 2, 8}, {1, 8, 6}), "[b1, i2, i6, r8]");
  EXPECT_EQ(product({0, 8}, {8, 6}), "[i0, i6, r8]");
}

TEST_F(EinsumTest, MatmulErrors) {
  const std::string_view text = "K should be broadcast in both A and B, or neither";
  expectError([&] { product({2, 1}, {8, 6}); }, {"matmul: ", text});
  expectError([&] { product({2, 8}, {1, 6}); }, text);
  expectError([&] { product({2, -1}, {1, 6}); }, text);
  expectError([&] { product({}, {8, 6}); }, "matmul: Expected inputs to be atleast 1D");
  expectError([&] { product({8}, {}); }, "Expected inputs to be atleast 1D");
}

// ---- linear (4.2)

TEST_F(EinsumTest, Linear) {
  const auto text = [&](const Shape& x, const Shape& w, const Shape& bias) {
    TensorView *a = input(x), *b = input(w), *c = input(bias);
    return logicalText(linear(a, b, c));
  };
  EXPECT_EQ(text({8}, {6, 8}, {6}), "[i6, r8]");
  EXPECT_EQ(text({2, 8}, {6, 8}, {6}), "[i2, i6, r8]");
  EXPECT_EQ(text({5, 2, 8}, {6, 8}, {6}), "[i5, i2, i6, r8]");
  EXPECT_EQ(text({5, 2, 8}, {3, 6, 8}, {3, 6}), "[i3, i5, i2, i6, r8]");
  EXPECT_EQ(text({5, 2, 8}, {3, 6, 8}, {6}), "[i3, i5, i2, i6, r8]");
  EXPECT_EQ(text({5, 2, 8}, {8}, {}), "[i5, i2, r8]");
  EXPECT_EQ(text({5, 2, 1}, {6, 1}, {6}), "[i5, i2, i6]");
  EXPECT_EQ(logicalText(linear(input({2, 8}), input({6, 8}))), "[i2, i6, r8]");
}

TEST_F(EinsumTest, LinearErrors) {
  const auto make = [&](const Shape& x, const Shape& w, const Shape& bias) {
    TensorView *a = input(x), *b = input(w), *c = input(bias);
    return [=] { linear(a, b, c); };
  };
  expectError(make({}, {6, 8}, {6}), "linear: Input A must be at least 1D");
  expectError(make({2, 8}, {8}, {6}), "linear: Input B must be at least 2D");
  expectError(make({2, 8}, {6, 8}, {}), "linear: Input bias must be at least 1D");
  expectError(make({2, 8}, {6, 8}, {5}),
              {"linear: axis", "size 6", "size 5", "'n' of the operation"});
  expectError(make({2, 1}, {6, 8}, {6}),
              "linear: K should be broadcast in both A and B, or neither");
  TensorView *x = input({2, 8}), *w = input({6, 8}), *half = input({6}, DataType::Half);
  expectError([&] { linear(x, w, half); }, "Expected bias to have the same dtype as A and B");
}

// ---- pointwise

TEST_F(EinsumTest, PointwiseBroadcasts) {
  const auto text = [&](const Shape& a, const Shape& b) {
    TensorView* left = input(a);
    return logicalText(add(left, input(b)));
  };
  EXPECT_EQ(text({4, 6}, {4, 6}), "[i4, i6]");
  EXPECT_EQ(text({4, 6}, {6}), "[i4, i6]");
  EXPECT_EQ(text({4, 6}, {1, 6}), "[i4, i6]");
  EXPECT_EQ(text({4, 1}, {1, 6}), "[i4, i6]");
  EXPECT_EQ(text({1, 1}, {1}), "[b1, b1]");
  EXPECT_EQ(text({}, {3}), "[i3]");
  EXPECT_EQ(text({}, {}), "[]");
}

TEST_F(EinsumTest, SymbolsDoNotBroadcast) {
  TensorView* out = add(input({-1}), input({1}));
  EXPECT_EQ(out->definition()->constraints().size(), 0U);
  EXPECT_TRUE(out->axis(0)->iterType() == IterType::Iteration);
  TensorView* meets_constant = add(input({-1}), input({5}));
  EXPECT_EQ(meets_constant->definition()->constraints().size(), 1U);
}

// Results are dense in memory, so an expanded broadcast becomes an ordinary axis of its size.
TEST_F(EinsumTest, BroadcastsAloneStayBroadcastsUnlessExpanded) {
  const auto expanded = [&](int64_t n) {
    return addInput(TensorViewBuilder().shape({4, n}).contiguity({true, std::nullopt}).build());
  };
  EXPECT_EQ(logicalText(relu(input({4, 1}))), "[i4, b1]");
  EXPECT_EQ(logicalText(add(expanded(6), input({4, 6}))), "[i4, i6]");
  EXPECT_EQ(logicalText(set(expanded(6))), "[i4, i6]");
  EXPECT_EQ(logicalText(add(expanded(6), input({4, 1}))), "[i4, i6]");
}

// ---- sum and the movers of axes

TEST_F(EinsumTest, SumKeepsTheReductionInPlace) {
  EXPECT_EQ(logicalText(sum(input({2, 3, 4}), {1})), "[i2, r3, i4]");
  EXPECT_EQ(logicalText(sum(input({2, 3, 4}), {-1, 0})), "[r2, i3, r4]");
  EXPECT_EQ(logicalText(sum(input({2, 3, 4}), {1}, true)), "[i2, r3, b1, i4]");
  EXPECT_EQ(sum(input({2, 3, 4}), {1}, true)->ndim(), 3);
}

TEST_F(EinsumTest, SumOfBroadcasts) {
  EXPECT_EQ(logicalText(sum(input({4, 1}), {1})), "[i4]");
  EXPECT_EQ(logicalText(sum(input({4, 1}), {1}, true)), "[i4, b1]");
  TensorView* expanded =
      addInput(TensorViewBuilder().shape({4, 6}).contiguity({true, std::nullopt}).build());
  EXPECT_EQ(logicalText(sum(expanded, {1})), "[i4, r6]");
}

TEST_F(EinsumTest, ConsumersDoNotSeeReductions) {
  EXPECT_EQ(logicalText(relu(sum(input({2, 3}), {0}))), "[i3]");
  EXPECT_EQ(product({2, 8}, {8, 6}), "[i2, i6, r8]");
  EXPECT_EQ(logicalText(relu(matmul(input({2, 8}), input({8, 6})))), "[i2, i6]");
}

TEST_F(EinsumTest, SumErrors) {
  TensorView* x = input({2, 3});
  expectError([&] { sum(x, {2}); }, "sum: Reduction on invalid axis 2 of T0, which has 2 axes");
  expectError([&] { sum(x, {0, -2}); }, "sum: Reduction axes are not unique");
  expectError([&] { sum(x, {}); }, "sum: No reduction axis specified for T0");
  expectError([&] { sum(input({}), {0}); }, "sum: Tried to reduce a 0-dim tensor");
  TensorView* scheduled = relu(x)->split(0, 2);
  expectError([&] { sum(scheduled, {0}); },
              "Reducing a tensor once it's gone under transformations is not permitted");
}

TEST_F(EinsumTest, MoversOfAxes) {
  EXPECT_EQ(logicalText(permute(input({2, 3, 4}), {2, 0, 1})), "[i4, i2, i3]");
  EXPECT_EQ(logicalText(transpose(input({2, 3, 4}), 0, -1)), "[i4, i3, i2]");
  EXPECT_EQ(logicalText(broadcast(input({2, 3}), {false, true, false})), "[i2, b1, i3]");
  expectError([&] { permute(input({2, 3}), {0, 0}); }, "permute got duplicated dimension entries");
  expectError([&] { permute(input({2, 3}), {0}); }, "to have the same length as input");
  expectError([&] { transpose(input({2, 3}), 0, 2); }, "transpose: axes 0 and 2");
  expectError([&] { broadcast(input({2, 3}), {true, false}); },
              "number of false entries in is_broadcast_dim expected to be 2");
}

TEST_F(EinsumTest, ResultsAreNotScheduledAndHaveNoRoot) {
  TensorView* out = matmul(input({2, 8}), input({8, 6}));
  EXPECT_FALSE(out->hasRoot());
  EXPECT_FALSE(out->hasAllocation());
  EXPECT_EQ(out->domain().loop(), out->domain().logical());
  EXPECT_TRUE(out->definition()->is<MatmulOp>());
}

}  // namespace
}  // namespace meshfuse
