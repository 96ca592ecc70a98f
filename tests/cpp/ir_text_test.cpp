// SPDX-License-Identifier: BSD-3-Clause
// Text form: print and parse of programs built by hand, and texts in the canonical form.
#include <gtest/gtest.h>
#include <meshfuse/ops/arith.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/math_text.h>
#include <meshfuse/text/parser.h>

namespace meshfuse {
namespace {

/// The text of a program, after a check that it reads back as the same program and the same text.
std::string roundTrip(const Fusion& fusion) {
  const std::string text = irText(fusion);
  const auto again = parseIr(text);
  EXPECT_TRUE(again->sameAs(fusion)) << text << "\nread back as\n" << irText(*again);
  EXPECT_EQ(irText(*again), text);
  return text;
}

/// Checks that a text is canonical.
void expectCanonical(const std::string& text) {
  SCOPED_TRACE(text);
  EXPECT_EQ(irText(*parseIr(text)), text);
}

class IrText : public testing::Test {
 protected:
  TensorView* input(TensorView* tv) {
    fusion.addInput(tv);
    return tv;
  }
  TensorView* concrete(const std::vector<int64_t>& shape, DataType dtype = DataType::Float) {
    return input(makeContigConcreteTensor(shape, dtype));
  }

  Fusion fusion;
  FusionGuard guard{&fusion};
};

TEST_F(IrText, ColumnParallelMatmul) {
  const DeviceMesh mesh = DeviceMesh::createForNumDevices(2);
  TensorView* a = concrete({4, 8});
  TensorView* b = concrete({8, 6});
  TensorView* c = matmul(a, b);
  fusion.addOutput(c);
  for (TensorView* tv : {a, b, c}) tv->setDeviceMesh(mesh);
  b->outerSplit(-1, 2)->axis(-2)->parallelize(ParallelType::DIDx);
  c->outerSplit(-2, 2)->axis(-3)->parallelize(ParallelType::DIDx);
  c->setAllocationAsLoop();
  EXPECT_EQ(roundTrip(fusion), R"(T0: f32[i0{4}, i1{8}] mesh(x=2)
T1: f32[i0{8}, i1{6}] { i2{2}@x, i3{3} = split i1 outer 2 } mesh(x=2)
T2 = matmul(T0, T1): f32[i0{4}, i1{6}, r2{8}] { i3{2}@x, i4{3} = split i1 outer 2; alloc loop } mesh(x=2)
return T2
)");
}

TEST_F(IrText, SymbolicSizes) {
  TensorView* a = input(makeSymbolicTensor({-1, 1, -1}));
  TensorView* b = input(makeContigTensor(3, DataType::Half));
  TensorView* c = add(a, b);
  c->split(0, 4);
  c->merge(1, 2);
  fusion.addOutput(c);
  const std::string text = roundTrip(fusion);
  EXPECT_EQ(text.substr(0, text.find("\nT2")),
            "T0: f32[i0{T0.0}, b1{1}, i2{T0.2}] { alloc contig f n f }\n"
            "T1: f16[i0{T1.0}, i1{T1.1}, i2{T1.2}]");
  EXPECT_NE(text.find("i3{(ceilDiv(T0.0, 4))}, i4{4} = split i0 inner 4; "
                      "i5{(mul(T1.1, 4))} = merge i4 i1"),
            std::string::npos)
      << text;
}

TEST_F(IrText, ExpandedBroadcastAndStrideOrder) {
  TensorView* a = input(TensorViewBuilder()
                            .shape({-1, 6, 4})
                            .dtype(DataType::BFloat16)
                            .contiguity(Contiguity{true, std::nullopt, false})
                            .strideOrder({0, 1, 2})
                            .build());
  a->split(1, 2, false);
  fusion.addOutput(set(a));
  const std::string text = roundTrip(fusion);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "T0: bf16[i0{T0.0}, b1{1 exp 6}, i2{4}] { b3{2}, b4{1 exp 3} = split b1 outer 2; "
            "alloc i2 b1 i0 contig t n f }");
}

TEST_F(IrText, ReorderedLoopAndSerialSplits) {
  TensorView* a = concrete({4, 12});
  a->split(1, 2, false);
  a->outerSplit(2, 3);
  a->reorder(std::unordered_map<int64_t, int64_t>{{0, -1}});
  a->setAllocationDomain({a->axis(0), a->axis(3), a->axis(1), a->axis(2)}, true);
  fusion.addOutput(relu(a));
  const std::string text = roundTrip(fusion);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "T0: f32[i0{4}, i1{12}] { i2{2}, i3{6} = split i1 outer 2; i4{3}, i5{2} = split i3 "
            "outer 3; loop i2 i4 i5 i0; alloc i2 i0 i4 i5 }");
}

TEST_F(IrText, SplitOfTheAllocationAlone) {
  TensorView* a = concrete({4, 6});
  a->split(1, 2, false);
  const std::vector<IterDomain*> split = a->getLoopDomain();
  a->setLoopDomain(a->getLogicalDomain());
  a->setAllocationDomain(split, Contiguity{true, false, true});
  fusion.addOutput(relu(a));
  const std::string text = roundTrip(fusion);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "T0: f32[i0{4}, i1{6}] { i2{2}, i3{3} = split i1 outer 2; loop i0 i1; alloc i0 i2 i3 "
            "contig t f t }");
}

TEST_F(IrText, TwoDimensionalMesh) {
  const DeviceMesh mesh({3, 4, 1, 0, 8, 2}, {2, 3});
  TensorView* a = concrete({4, 12});
  a->setDeviceMesh(mesh);
  a->outerSplit(0, 2)->axis(0)->parallelize(ParallelType::DIDy);
  a->outerSplit(2, 3)->axis(2)->parallelize(ParallelType::DIDx);
  fusion.addOutput(a);
  EXPECT_EQ(roundTrip(fusion),
            "T0: f32[i0{4}, i1{12}] { i2{2}@y, i3{2} = split i0 outer 2; i4{3}@x, i5{4} = split i1 "
            "outer 3 } mesh(y=2, x=3: 3 4 1 0 8 2)\nreturn T0\n");
}

TEST_F(IrText, MeshWithNamesKeepsThem) {
  TensorView* a = concrete({4});
  a->setDeviceMesh(DeviceMesh({0, 1, 2, 3}, {2, 2}, {"dp", "t\"p"}));
  fusion.addOutput(a);
  const std::string text = roundTrip(fusion);
  EXPECT_EQ(text, "T0: f32[i0{4}] mesh(y=2 \"dp\", x=2 \"t\\\"p\")\nreturn T0\n");
  EXPECT_EQ(parseIr(text)->tensor(0)->getDeviceMesh().names(),
            (std::vector<std::string>{"dp", "t\"p"}));
}

constexpr const char* kRFactor =
    R"(T0: f32[i0{4}, i1{8}]
T1: f32[i0{8}, i1{6}]
T3 = matmul(T0, T1): f32[i0{4}, i1{6}, r2{8}] { i3{2}@x, r4{4} = split r2 outer 2; logical i0 i1 i3 r4 } mesh(x=2)
T2 = sum(T3, dims=[2]): f32[i0{4}, i1{6}, r2{2}] mesh(x=2)
return T2
)";

TEST_F(IrText, RFactorOfMatmul) {
  const DeviceMesh mesh = DeviceMesh::createForNumDevices(2);
  TensorView* a = concrete({4, 8});
  TensorView* b = concrete({8, 6});
  TensorView* c = matmul(a, b);
  fusion.addOutput(c);
  c->setDeviceMesh(mesh);
  c->outerSplit(-1, 2);
  TensorView* partial = c->rfactor({-1});
  partial->axis(-2)->parallelize(ParallelType::DIDx);
  EXPECT_EQ(roundTrip(fusion), kRFactor);
}

TEST_F(IrText, RFactorAfterAnotherSplit) {
  TensorView* a = concrete({4, 8});
  TensorView* c = sum(a, {1});
  fusion.addOutput(c);
  c->outerSplit(0, 2);  // older than the split that becomes part of the definition
  c->outerSplit(-1, 2);
  c->rfactor({-1});
  EXPECT_EQ(roundTrip(fusion), R"(T0: f32[i0{4}, i1{8}]
T2 = sum(T0, dims=[1]): f32[i0{4}, r1{8}] { i4{2}, r5{4} = split r1 outer 2; logical i0 i4 r5; i2{2}, i3{2} = split i0 outer 2 }
T1 = sum(T2, dims=[1]): f32[i0{4}, r1{2}] { i2{2}, i3{2} = split i0 outer 2 }
return T1
)");
}

TEST_F(IrText, RFactorOfOneOfTwoReductions) {
  TensorView* a = concrete({4, 8, 6});
  TensorView* c = sum(a, {1, 2});
  c->rfactor({-1});
  fusion.addOutput(c);
  EXPECT_EQ(roundTrip(fusion), R"(T0: f32[i0{4}, i1{8}, i2{6}]
T2 = sum(T0, dims=[1, 2]): f32[i0{4}, i1{8}rf, r2{6}]
T1 = sum(T2, dims=[1]): f32[i0{4}, r1{8}]
return T1
)");
}

TEST_F(IrText, ScalarsAndAttributes) {
  TensorView* a = concrete({4, 8});
  const Scalar half = fusion.scalars().symbol(DataType::Double);
  const Scalar count = fusion.scalars().symbol(DataType::Int);
  fusion.addInput(half);
  fusion.addInput(count);
  const auto call = [](std::string_view op, std::vector<Arg> args) {
    return std::get<TensorView*>(callOp(op, std::move(args)).at(0));
  };
  ScalarPool& pool = fusion.scalars();
  const Scalar sum_of_scalars = pool.add(half, pool.constant(2.5, DataType::Double));
  TensorView* b = call("add", {a, sum_of_scalars});
  b = call("mul", {pool.constant(int64_t{3}, DataType::Int), b});
  b = call("mul", {b, pool.constant(int64_t{3})});
  b = call("add", {b, pool.constant(0.1, DataType::Float)});
  b = call("add", {b, pool.constant(std::complex<double>(1, -2), DataType::ComplexDouble)});
  b = call("neg", {b});
  b = call("sub", {b, pool.cast(count, DataType::Double)});
  fusion.addOutput(b);
  fusion.addOutput(count);
  fusion.addOutput(sum_of_scalars);
  fusion.addOutput(pool.constant(-std::numeric_limits<double>::infinity(), DataType::Double));
  fusion.addOutput(pool.constant(std::numeric_limits<int64_t>::min(), DataType::Int));
  EXPECT_EQ(roundTrip(fusion), R"(T0: f32[i0{4}, i1{8}]
s0: f64
s1: i64
T1 = add(T0, (add(s0, 2.5))): f32[i0{4}, i1{8}]
T2 = mul(3, T1): f32[i0{4}, i1{8}]
T3 = mul(T2, 3:index): f32[i0{4}, i1{8}]
T4 = add(T3, 0.1:f32): f32[i0{4}, i1{8}]
T5 = add(T4, complex(1.0, -2.0)): c64[i0{4}, i1{8}]
T6 = neg(T5): c64[i0{4}, i1{8}]
T7 = sub(T6, (cast(s1, f64))): c64[i0{4}, i1{8}]
return T7, s1, (add(s0, 2.5)), -inf, -9223372036854775808
)");
}

TEST_F(IrText, AliasesAndInputsAsOutputs) {
  TensorView* a = concrete({4}, DataType::Half);
  TensorView* b = castOp(DataType::Half, add(a, a));
  fusion.aliasOutputToInput(b, a);
  fusion.addOutput(a);
  fusion.addOutput(b);
  fusion.addOutput(b);
  EXPECT_EQ(roundTrip(fusion), R"(T0: f16[i0{4}]
T1 = add(T0, T0): f32[i0{4}]
T2 = cast(T1, dtype=f16): f16[i0{4}]
return T2 -> T0, T0, T2, T2
)");
}

TEST_F(IrText, OptionalOperandsAndDefaults) {
  TensorView* x = concrete({2, 3, 8});
  TensorView* w = concrete({6, 8});
  TensorView* bias = concrete({6});
  fusion.addOutput(linear(x, w));
  fusion.addOutput(linear(x, w, bias));
  fusion.addOutput(sum(x, {0, -1}, true));
  fusion.addOutput(broadcast(w, {false, true, false}));
  fusion.addOutput(permute(x, {2, 0, 1}));
  const std::string text = roundTrip(fusion);
  for (const char* call :
       {"linear(T0, T1):", "linear(T0, T1, T2):", "sum(T0, dims=[0, -1], keepdim=true):",
        "=[false, true, false]):", "=[2, 0, 1]):"}) {
    EXPECT_NE(text.find(call), std::string::npos) << call << " is not in\n" << text;
  }
}

TEST_F(IrText, CpuScalarAndEmptyProgram) {
  EXPECT_EQ(roundTrip(fusion), "return\n");
  TensorView* a = concrete({});
  a->setCpuScalar(true);
  EXPECT_EQ(roundTrip(fusion), "T0: f32[] cpu\nreturn\n");
}

TEST_F(IrText, NamesAreUsedOnce) {
  TensorView* a = concrete({4});
  a->setName("T1");
  TensorView* b = relu(a);
  TensorView* c = relu(b);
  c->setName("not a name");
  fusion.addOutput(c);
  EXPECT_EQ(
      roundTrip(fusion),
      "T1: f32[i0{4}]\nT1_1 = relu(T1): f32[i0{4}]\nT2 = relu(T1_1): f32[i0{4}]\nreturn T2\n");
}

TEST_F(IrText, OperationsThatNoOutputNeedsAreLeftOut) {
  TensorView* a = concrete({4});
  relu(a);
  fusion.addOutput(relu(a));
  EXPECT_EQ(irText(fusion), "T0: f32[i0{4}]\nT2 = relu(T0): f32[i0{4}]\nreturn T2\n");
}

TEST_F(IrText, ExprAsOneLine) {
  TensorView* a = concrete({4, 8});
  TensorView* b = sum(a, {1});
  EXPECT_EQ(toString(b->definition()), "T1 = sum(T0, dims=[1])");
}

TEST_F(IrText, CommutedSizesHaveOneText) {
  // The constant is older than the symbol here, and younger in the program that is read back.
  TensorView* a = concrete({12});
  a->outerSplit(0, 3);
  TensorView* b = input(makeContigTensor(1));
  b->outerSplit(0, 3)->merge(0);
  fusion.addOutput(add(relu(a), relu(a)));
  fusion.addOutput(b);
  roundTrip(fusion);
}

TEST(IrTextCanonical, HandWritten) {
  expectCanonical("a: f32[i0{a.0}, i1{8}]\nb = relu(a): f32[i0{a.0}, i1{8}]\nreturn b\n");
  expectCanonical("a: f32[i0{6}, r1{4}]\nreturn a\n");
  expectCanonical("a: f32[i0{6}] { i1{2}@stream, i2{3} = split i0 outer 2 }\nreturn a\n");
  // An rfactor after another split: the numbers of the definition's transforms are the later ones.
  expectCanonical(
      "a: f32[i0{4}, i1{8}]\n"
      "b: f32[i0{4}, r1{8}] { i4{2}@x, r5{4} = split r1 outer 2; logical i0 i4 r5; "
      "i2{2}, i3{2} = split i0 outer 2; loop i4 i2 i3 r5; alloc i4 i0 r5 } mesh(x=2)\n"
      "return b\n");
  expectCanonical("n: f32[i0{(max(n.0, 8))}]\nreturn n, n.0, (add(n.0, 2))\n");
  expectCanonical("mesh: f32[i0{6}@x] mesh(x=6)\nloop = relu(mesh): f32[i0{6}]\nreturn loop\n");
}

TEST(IrTextCanonical, ReductionOfAScheduledTensor) {
  expectCanonical(
      "a: f32[i0{4}, i1{8}]\n"
      "b = relu(a): f32[i0{4}, i1{8}] { i2{2}, i3{2} = split i0 outer 2 }\n"
      "c = sum(b, dims=[0]): f32[r0{4}, i1{8}] { r2{2}, r3{2} = split r0 outer 2 }\n"
      "return c\n");
}

TEST(IrTextCanonical, FreeLayoutIsMadeCanonical) {
  const auto fusion = parseIr(R"(
    // a comment
    a : f32[ i7{4},   // numbers in any order
             i3{8} ] {i9{2} , i8{4} = split i3 outer 2; loop i7 i9 i8 }

    c = add( lhs = a ,
             rhs = 1.50 ) : f32[ i0{4}, i1{8} ]   // in any form
    return c)");
  EXPECT_EQ(irText(*fusion),
            "a: f32[i1{4}, i0{8}] { i3{2}, i2{4} = split i0 outer 2 }\n"
            "c = add(a, 1.5): f32[i0{4}, i1{8}]\nreturn c\n");
}

TEST(IrTextCanonical, OriginNamesFileAndLine) {
  const auto fusion =
      parseIr("a: f32[i0{4}]\n\nb = relu(a): f32[i0{4}]\nreturn b\n", {.file = "model.mf"});
  EXPECT_EQ(fusion->describe(fusion->tensor(1)->loc()), "model.mf:3");
  EXPECT_EQ(fusion->describe(fusion->exprs()[0]->loc()), "model.mf:3");
}

TEST(PrintedTensor, CountsAxesOfTheWholeProgram) {
  Fusion fusion;
  FusionGuard guard(&fusion);
  TensorView* a = makeContigConcreteTensor({2, 4, 8});
  TensorView* b = makeContigConcreteTensor({2, 4, 8});
  TensorView* c = add(a, b);
  fusion.addInput(a);
  fusion.addInput(b);
  fusion.addOutput(c);
  EXPECT_EQ(mathText(fusion), R"(Inputs:
  T0_g_float[iS0{2}, iS1{4}, iS2{8}]
  T1_g_float[iS3{2}, iS4{4}, iS5{8}]
Outputs:
  T2_g_float[iS6{2}, iS7{4}, iS8{8}]

%kernel_math {
T2_g_float[iS6{2}, iS7{4}, iS8{8}]
   = T0_g_float[iS0{2}, iS1{4}, iS2{8}]
   + T1_g_float[iS3{2}, iS4{4}, iS5{8}];
} // %kernel_math 

)");
}

TEST(PrintedTensor, ShowsScheduleAndMesh) {
  Fusion fusion;
  FusionGuard guard(&fusion);
  TensorView* a = makeContigTensor(2, DataType::BFloat16);
  a->setDeviceMesh({0, 1});
  a->outerSplit(0, 2)->axis(0)->parallelize(ParallelType::DIDx);
  EXPECT_EQ(toString(a),
            "T0_l___bfloat[ideviceIdx.x2{2}, iS3{( ceilDiv(i0, 2) )}, iS1{i1}] "
            "(DeviceMesh{0 1})");
  TensorView* b =
      TensorViewBuilder().shape({1, -1}).contiguity(Contiguity{std::nullopt, std::nullopt}).build();
  EXPECT_EQ(toString(b), "T1_l_float[bS4{1}, bS5{1 ex i2}]");
}

TEST(PrintedTensor, MathOfOtherOps) {
  Fusion fusion;
  FusionGuard guard(&fusion);
  TensorView* a = makeContigConcreteTensor({4, 8});
  TensorView* b = makeContigConcreteTensor({8, 6});
  fusion.addInput(a);
  fusion.addInput(b);
  TensorView* c = matmul(a, b);
  TensorView* d = sum(relu(c), {1});
  fusion.addOutput(d);
  relu(d);
  const std::string text = mathText(fusion);
  EXPECT_NE(text.find(R"(
T2_l_float[iS4{4}, iS5{6}, rS6{8}]
   = matmul(T0_g_float[iS0{4}, iS1{8}],
            T1_g_float[iS2{8}, iS3{6}])
T3_l_float[iS7{4}, iS8{6}]
   = relu(T2_l_float[iS4{4}, iS5{6}, rS6{8}]);
T4_g_float[iS9{4}, rS10{6}]
   = sum(T3_l_float[iS7{4}, iS8{6}],
         dims=[1])
})"),
            std::string::npos)
      << text;
  EXPECT_NE(mathText(fusion, false).find("T5_l_float"), std::string::npos);
}

}  // namespace
}  // namespace meshfuse
