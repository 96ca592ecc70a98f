// SPDX-License-Identifier: BSD-3-Clause
// Scalars: equal handles stand for equal extents, constants fold, integers never overflow.
#include <meshfuse/base/scalar.h>

#include <cmath>
#include <limits>

#include "expect_error.h"

namespace meshfuse {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
using Complex = std::complex<double>;

class ScalarTest : public testing::Test {
 protected:
  Scalar c(int64_t value) { return pool.constant(value); }
  Scalar fold(ScalarOp op, int64_t a, int64_t b) { return pool.binary(op, c(a), c(b)); }

  ScalarPool pool;
  const Scalar x = pool.extentSymbol(0, 0), y = pool.extentSymbol(0, 1);
};

TEST_F(ScalarTest, EqualConstantsAreOneHandle) {
  EXPECT_EQ(c(8), c(8));
  EXPECT_FALSE(c(8) == c(9));
  EXPECT_FALSE(c(-1) == c(1));
  EXPECT_EQ(pool.constant(2.5, DataType::Double), pool.constant(2.5, DataType::Double));
}

TEST_F(ScalarTest, ConstantsOfAnotherTypeAreOthers) {
  EXPECT_FALSE(c(1) == pool.constant(int64_t{1}, DataType::Int));
  EXPECT_FALSE(c(1) == pool.constant(1.0, DataType::Double));
  EXPECT_FALSE(c(1) == pool.constant(true, DataType::Bool));
  EXPECT_FALSE(pool.constant(1.0, DataType::Float) == pool.constant(1.0, DataType::Double));
}

TEST_F(ScalarTest, SignedZerosAreApartAndNanIsOne) {
  EXPECT_FALSE(pool.constant(0.0, DataType::Double) == pool.constant(-0.0, DataType::Double));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(pool.constant(nan, DataType::Double), pool.constant(nan, DataType::Double));
}

TEST_F(ScalarTest, ConstantIsConvertedToItsType) {
  EXPECT_EQ(pool.constInt(pool.constant(2.75, DataType::Int)), 2);
  EXPECT_EQ(pool.constant(int64_t{3}, DataType::Double), pool.constant(3.0, DataType::Double));
  EXPECT_EQ(std::get<bool>(pool.node(pool.constant(0.5, DataType::Bool)).value), true);
}

TEST_F(ScalarTest, ExtentSymbolIsOnePerTensorAxis) {
  EXPECT_EQ(pool.extentSymbol(0, 0), x);
  EXPECT_FALSE(x == y);
  EXPECT_FALSE(pool.extentSymbol(1, 0) == x);
  EXPECT_EQ(pool.node(y).tensor, 0);
  EXPECT_EQ(pool.node(y).axis, 1);
  EXPECT_EQ(pool.dtype(x), DataType::Index);
}

TEST_F(ScalarTest, FreshSymbolsDiffer) {
  const Scalar a = pool.symbol(DataType::Double), b = pool.symbol(DataType::Double);
  EXPECT_FALSE(a == b);
  EXPECT_EQ(pool.node(a).number + 1, pool.node(b).number);
}

TEST_F(ScalarTest, DefaultHandleIsAbsent) {
  EXPECT_FALSE(static_cast<bool>(Scalar{}));
  EXPECT_TRUE(static_cast<bool>(x));
  EXPECT_FALSE(pool.isConst(Scalar{}));
  EXPECT_FALSE(pool.constInt(Scalar{}).has_value());
}

TEST_F(ScalarTest, SameExpressionIsOneHandle) {
  const auto build = [&] { return pool.mul(pool.ceilDiv(x, c(2)), pool.add(y, c(3))); };
  const Scalar first = build();
  const size_t nodes = pool.size();
  EXPECT_EQ(build(), first);
  EXPECT_EQ(pool.size(), nodes);
}

TEST_F(ScalarTest, OrderOfOperandsMattersOnlyWhereItMustNot) {
  for (const ScalarOp op : {ScalarOp::Add, ScalarOp::Mul, ScalarOp::Min, ScalarOp::Max}) {
    EXPECT_EQ(pool.binary(op, x, y), pool.binary(op, y, x)) << name(op);
    const Scalar n = pool.symbol(DataType::Int);  // an Int and an Index
    EXPECT_EQ(pool.binary(op, n, c(7)), pool.binary(op, c(7), n)) << name(op);
  }
  for (const ScalarOp op : {ScalarOp::Sub, ScalarOp::CeilDiv, ScalarOp::FloorDiv, ScalarOp::Mod}) {
    EXPECT_FALSE(pool.binary(op, x, y) == pool.binary(op, y, x)) << name(op);
  }
}

TEST_F(ScalarTest, OtherExpressionsAreOtherHandles) {
  EXPECT_FALSE(pool.ceilDiv(x, c(2)) == pool.ceilDiv(x, c(3)));
  EXPECT_FALSE(pool.ceilDiv(x, c(2)) == pool.ceilDiv(y, c(2)));
  EXPECT_FALSE(pool.ceilDiv(x, c(2)) == pool.binary(ScalarOp::FloorDiv, x, c(2)));
}

TEST_F(ScalarTest, ConstantsFold) {
  EXPECT_EQ(fold(ScalarOp::Add, 3, 4), c(7));
  EXPECT_EQ(fold(ScalarOp::Sub, 3, 4), c(-1));
  EXPECT_EQ(fold(ScalarOp::Mul, 3, 4), c(12));
  EXPECT_EQ(fold(ScalarOp::Min, 3, 4), c(3));
  EXPECT_EQ(fold(ScalarOp::Max, 3, 4), c(4));
  EXPECT_EQ(pool.unary(ScalarOp::Neg, c(5)), c(-5));
}

TEST_F(ScalarTest, CeilDivRoundsUp) {
  EXPECT_EQ(fold(ScalarOp::CeilDiv, 7, 2), c(4));
  EXPECT_EQ(fold(ScalarOp::CeilDiv, 8, 2), c(4));
  EXPECT_EQ(fold(ScalarOp::CeilDiv, 1, 8), c(1));
  EXPECT_EQ(fold(ScalarOp::CeilDiv, 0, 8), c(0));
  EXPECT_EQ(fold(ScalarOp::CeilDiv, -7, 2), c(-3));
  EXPECT_EQ(fold(ScalarOp::CeilDiv, 7, -2), c(-3));
  EXPECT_EQ(fold(ScalarOp::CeilDiv, -7, -2), c(4));
  EXPECT_EQ(fold(ScalarOp::CeilDiv, kMax, 2), c(kMax / 2 + 1));
}

TEST_F(ScalarTest, FloorDivAndModRoundDown) {
  EXPECT_EQ(fold(ScalarOp::FloorDiv, 7, 2), c(3));
  EXPECT_EQ(fold(ScalarOp::FloorDiv, -7, 2), c(-4));
  EXPECT_EQ(fold(ScalarOp::FloorDiv, 7, -2), c(-4));
  EXPECT_EQ(fold(ScalarOp::Mod, 7, 3), c(1));
  EXPECT_EQ(fold(ScalarOp::Mod, -7, 3), c(2));
  EXPECT_EQ(fold(ScalarOp::Mod, 7, -3), c(-2));
  EXPECT_EQ(fold(ScalarOp::Mod, kMin, -1), c(0));
  EXPECT_EQ(fold(ScalarOp::Div, -7, 2), c(-3));
}

TEST_F(ScalarTest, IdentitiesFold) {
  EXPECT_EQ(pool.mul(x, c(1)), x);
  EXPECT_EQ(pool.mul(c(1), x), x);
  EXPECT_EQ(pool.mul(x, c(0)), c(0));
  EXPECT_EQ(pool.mul(c(0), x), c(0));
  EXPECT_EQ(pool.add(x, c(0)), x);
  EXPECT_EQ(pool.add(c(0), x), x);
  EXPECT_EQ(pool.sub(x, c(0)), x);
  EXPECT_EQ(pool.ceilDiv(x, c(1)), x);
  EXPECT_EQ(pool.ceilDiv(x, x), c(1));
  EXPECT_EQ(pool.binary(ScalarOp::FloorDiv, x, c(1)), x);
  EXPECT_EQ(pool.binary(ScalarOp::FloorDiv, x, x), c(1));
  EXPECT_EQ(pool.binary(ScalarOp::Min, x, x), x);
  EXPECT_EQ(pool.binary(ScalarOp::Max, x, x), x);
}

TEST_F(ScalarTest, QuotientOfASymbolByItselfKeepsItsType) {
  const Scalar n = pool.symbol(DataType::Int);
  EXPECT_EQ(pool.dtype(pool.ceilDiv(n, n)), DataType::Int);
}

TEST_F(ScalarTest, FloatingIdentitiesDoNotFold) {
  const Scalar d = pool.symbol(DataType::Double);
  const Scalar zero = pool.constant(0.0, DataType::Double);
  EXPECT_FALSE(pool.mul(d, zero) == zero);  // nan and inf times 0 are nan
  EXPECT_FALSE(pool.binary(ScalarOp::Div, d, d) == pool.constant(1.0, DataType::Double));
}

TEST_F(ScalarTest, OverflowIsAnError) {
  const std::string_view fits = "does not fit in 64 bits";
  expectError([&] { fold(ScalarOp::Add, kMax, 1); },
              {"add: the result of 9223372036854775807 and 1", fits, "Use smaller sizes"});
  expectError([&] { fold(ScalarOp::Sub, kMin, 1); }, {"sub", fits});
  expectError([&] { fold(ScalarOp::Mul, kMax, 2); }, {"mul", fits});
  expectError([&] { fold(ScalarOp::Mul, kMin, -1); }, {"mul", fits});
  expectError([&] { fold(ScalarOp::CeilDiv, kMin, -1); }, {"ceilDiv", fits});
  expectError([&] { fold(ScalarOp::FloorDiv, kMin, -1); }, {"floorDiv", fits});
  expectError([&] { pool.unary(ScalarOp::Neg, c(kMin)); }, fits);
  EXPECT_EQ(fold(ScalarOp::Add, kMax, kMin), c(-1));
}

TEST_F(ScalarTest, DivisionByZeroIsAnError) {
  for (const ScalarOp op : {ScalarOp::CeilDiv, ScalarOp::FloorDiv, ScalarOp::Mod, ScalarOp::Div}) {
    SCOPED_TRACE(name(op));
    expectError([&] { fold(op, 7, 0); }, {name(op), "division by zero"});
    expectError([&] { pool.binary(op, x, c(0)); }, {name(op), "division by zero"});
  }
  EXPECT_TRUE(std::isinf(
      toDouble(evaluateOp(ScalarOp::Div, DataType::Double, ScalarValue(1.0), ScalarValue(0.0)))));
}

TEST_F(ScalarTest, ResultTypes) {
  const Scalar i = pool.symbol(DataType::Int), d = pool.symbol(DataType::Double);
  const Scalar b = pool.symbol(DataType::Bool), z = pool.symbol(DataType::ComplexDouble);
  EXPECT_EQ(pool.dtype(pool.add(x, y)), DataType::Index);
  EXPECT_EQ(pool.dtype(pool.add(i, d)), DataType::Double);
  EXPECT_EQ(pool.dtype(pool.mul(d, z)), DataType::ComplexDouble);
  EXPECT_EQ(pool.dtype(pool.add(b, b)), DataType::Int);
  EXPECT_EQ(pool.dtype(pool.unary(ScalarOp::Exp, i)), DataType::Double);
  EXPECT_EQ(pool.dtype(pool.unary(ScalarOp::Neg, d)), DataType::Double);
}

TEST_F(ScalarTest, CastFoldsAndIsShared) {
  EXPECT_EQ(pool.cast(x, DataType::Index), x);
  EXPECT_EQ(pool.cast(c(3), DataType::Double), pool.constant(3.0, DataType::Double));
  EXPECT_EQ(pool.cast(x, DataType::Double), pool.cast(x, DataType::Double));
  EXPECT_FALSE(pool.cast(x, DataType::Double) == pool.cast(x, DataType::Float));
}

TEST_F(ScalarTest, OnlyIntegerConstantsAreConstInt) {
  EXPECT_EQ(pool.constInt(c(4)), 4);
  EXPECT_FALSE(pool.constInt(x).has_value());
  EXPECT_FALSE(pool.constInt(pool.constant(4.0, DataType::Double)).has_value());
}

TEST_F(ScalarTest, FunctionsOfConstants) {
  const Scalar two = pool.constant(2.0, DataType::Double);
  const auto value = [&](ScalarOp op) { return toDouble(pool.node(pool.unary(op, two)).value); };
  EXPECT_DOUBLE_EQ(value(ScalarOp::Exp), std::exp(2.0));
  EXPECT_DOUBLE_EQ(value(ScalarOp::Tanh), std::tanh(2.0));
  EXPECT_DOUBLE_EQ(value(ScalarOp::Sqrt), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(value(ScalarOp::Rsqrt), 1 / std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(value(ScalarOp::Neg), -2.0);
}

TEST_F(ScalarTest, ComplexConstants) {
  const Scalar a = pool.constant(Complex(1, 2), DataType::ComplexDouble);
  const Scalar b = pool.constant(Complex(3, -1), DataType::ComplexDouble);
  EXPECT_EQ(std::get<Complex>(pool.node(pool.mul(a, b)).value), Complex(5, 5));
  expectError([&] { pool.binary(ScalarOp::Min, a, b); },
              "scalar min is not defined for complex numbers");
}

TEST_F(ScalarTest, NamesAreOneToOne) {
  for (int i = 0; i <= static_cast<int>(ScalarOp::Rsqrt); ++i) {
    const auto op = static_cast<ScalarOp>(i);
    if (arity(op) == 0) continue;
    EXPECT_EQ(scalarOpFromName(name(op)), op);
  }
  EXPECT_EQ(arity(ScalarOp::CeilDiv), 2);
  EXPECT_EQ(arity(ScalarOp::Neg), 1);
  EXPECT_EQ(arity(ScalarOp::Symbol), 0);
  EXPECT_FALSE(scalarOpFromName("const").has_value());
  EXPECT_FALSE(scalarOpFromName("ceildiv").has_value());
}

TEST_F(ScalarTest, ValuesKnowTheirType) {
  EXPECT_EQ(dtypeOf(ScalarValue(int64_t{1})), DataType::Int);
  EXPECT_EQ(dtypeOf(ScalarValue(1.0)), DataType::Double);
  EXPECT_EQ(dtypeOf(ScalarValue(true)), DataType::Bool);
  EXPECT_EQ(dtypeOf(ScalarValue(Complex())), DataType::ComplexDouble);
  EXPECT_EQ(toString(ScalarValue(true)), "true");
  EXPECT_EQ(toString(ScalarValue(int64_t{-3})), "-3");
  EXPECT_EQ(toString(ScalarValue(0.1)), "0.10000000000000001");
}

}  // namespace
}  // namespace meshfuse
