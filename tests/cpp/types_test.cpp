// SPDX-License-Identifier: BSD-3-Clause
// Data types and their promotion, of types and of ops (semantics 4.8); names of parallel types.
#include <meshfuse/base/types.h>
#include <meshfuse/ops/op_def.h>

#include "expect_error.h"
#include "fusion_fixture.h"

namespace meshfuse {
namespace {

using enum DataType;

TEST(Types, Promotion) {
  struct Row {
    DataType a, b, common;
  };
  for (const Row& row : std::initializer_list<Row>{{Float, Float, Float},
                                                   {Float, Double, Double},
                                                   {Half, Float, Float},
                                                   {BFloat16, Float, Float},
                                                   {Half, BFloat16, Float},
                                                   {Half, Double, Double},
                                                   {Int, Half, Half},
                                                   {Int, Float, Float},
                                                   {Bool, BFloat16, BFloat16},
                                                   {Bool, Int32, Int32},
                                                   {Bool, Bool, Bool},
                                                   {Int32, Int, Int},
                                                   {Index, Int, Int},
                                                   {Int, ComplexFloat, ComplexFloat},
                                                   {Half, ComplexFloat, ComplexFloat},
                                                   {Float, ComplexFloat, ComplexFloat},
                                                   {Double, ComplexFloat, ComplexDouble},
                                                   {ComplexFloat, ComplexDouble, ComplexDouble},
                                                   {Null, Int32, Int32},
                                                   {Half, Null, Half}}) {
    EXPECT_EQ(promoteTypes(row.a, row.b), row.common) << row.a << " with " << row.b;
    EXPECT_EQ(promoteTypes(row.b, row.a), row.common) << row.b << " with " << row.a;
  }
}

TEST(Types, Categories) {
  for (const DataType t : {Double, Float, Half, BFloat16, Float8_e4m3fn, Float8_e5m2}) {
    EXPECT_TRUE(isFloating(t)) << t;
  }
  for (const DataType t : {Half, BFloat16, Float8_e4m3fn, Float8_e5m2, Float8_e8m0fnu}) {
    EXPECT_TRUE(isReducedFloating(t)) << t;
  }
  for (const DataType t : {Int, Int32, UInt64, Index}) EXPECT_TRUE(isIntegral(t)) << t;
  for (const DataType t : {ComplexFloat, ComplexDouble}) {
    EXPECT_TRUE(isComplex(t)) << t;
    EXPECT_FALSE(isFloating(t)) << t;
  }
  EXPECT_FALSE(isIntegral(Bool));
  EXPECT_FALSE(isFloating(Null));
  EXPECT_FALSE(isFloating(Int));
  EXPECT_FALSE(isReducedFloating(Float));
}

TEST(Types, NamesReadBack) {
  for (int i = 0; i < kNumDataTypes; ++i) {
    const auto t = static_cast<DataType>(i);
    EXPECT_EQ(dataTypeFromText(textName(t)), t) << textName(t);
  }
  EXPECT_FALSE(dataTypeFromText("float").has_value());
  EXPECT_EQ(textName(BFloat16), "bf16");
  EXPECT_EQ(cName(BFloat16), "__bfloat");
  EXPECT_EQ(pythonName(BFloat16), "BFloat16");
}

TEST(Types, ParallelTypes) {
  EXPECT_EQ(pythonName(ParallelType::DIDx), "mesh_x");
  EXPECT_EQ(pythonName(ParallelType::BIDx), "grid_x");
  EXPECT_EQ(pythonName(ParallelType::TIDx), "block_x");
  EXPECT_EQ(cName(ParallelType::DIDx), "deviceIdx.x");
  EXPECT_EQ(textName(ParallelType::Serial), "");
  for (const ParallelType p : kDeviceTypes) EXPECT_TRUE(isDeviceType(p)) << p;
  EXPECT_FALSE(isDeviceType(ParallelType::Stream));
  EXPECT_FALSE(isDeviceType(ParallelType::Serial));
  EXPECT_EQ(meshAxisOffset(ParallelType::DIDx), 0);
  EXPECT_EQ(meshAxisOffset(ParallelType::DIDy), 1);
  EXPECT_EQ(meshAxisOffset(ParallelType::DIDz), 2);
}

class ResultTypes : public FusionTest {
 protected:
  DataType of(std::string_view op, const std::vector<DataType>& types) {
    std::vector<Arg> args;
    for (const DataType t : types) args.emplace_back(input({4}, t));
    return std::get<TensorView*>(callOp(op, args).at(0))->dtype();
  }
};

TEST_F(ResultTypes, ArithmeticOnSmallFloatsIsFloat) {
  EXPECT_EQ(of("add", {Half, Half}), Float);
  EXPECT_EQ(of("mul", {BFloat16, BFloat16}), Float);
  EXPECT_EQ(of("sub", {Half, BFloat16}), Float);
  EXPECT_EQ(of("add", {Half, Double}), Double);
  EXPECT_EQ(of("exp", {Half}), Float);
}

TEST_F(ResultTypes, IntegersStayOrBecomeFloat) {
  EXPECT_EQ(of("add", {Int, Int}), Int);
  EXPECT_EQ(of("add", {Int, Int32}), Int);
  EXPECT_EQ(of("mul", {Int, Half}), Float);
  EXPECT_EQ(of("exp", {Int}), Float);
  EXPECT_EQ(of("sqrt", {Bool}), Float);
}

TEST_F(ResultTypes, SomeOpsKeepTheType) {
  for (const DataType t : {Half, BFloat16, Float, Double}) {
    EXPECT_EQ(of("relu", {t}), t);
    EXPECT_EQ(of("floor", {t}), t);
    EXPECT_EQ(of("set", {t}), t);
  }
}

TEST_F(ResultTypes, ComparisonIsBool) {
  EXPECT_EQ(of("lt", {Half, Double}), Bool);
  EXPECT_EQ(of("eq", {Int, Int}), Bool);
}

TEST_F(ResultTypes, ProductsKeepTheType) {
  for (const DataType t : {Half, BFloat16, Float, Double}) {
    EXPECT_EQ(matmul(input({2, 3}, t), input({3, 4}, t))->dtype(), t);
    EXPECT_EQ(linear(input({2, 3}, t), input({4, 3}, t))->dtype(), t);
  }
  expectError([&] { matmul(input({2, 3}, Half), input({3, 4}, Float)); },
              "matmul: Expected A and B dtypes to have the same dtype");
  expectError([&] { linear(input({2, 3}, Half), input({4, 3}, Float)); },
              "Expected input and weight dtypes to have the same dtype");
}

TEST_F(ResultTypes, SumsOfIntegersAreInt) {
  EXPECT_EQ(sum(input({4}, Bool), {0})->dtype(), Int);
  EXPECT_EQ(sum(input({4}, Int32), {0})->dtype(), Int);
  EXPECT_EQ(sum(input({4}, Half), {0})->dtype(), Half);
  EXPECT_EQ(sum(input({4}, Half), {0}, false, Double)->dtype(), Double);
}

}  // namespace
}  // namespace meshfuse
