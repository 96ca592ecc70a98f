// SPDX-License-Identifier: BSD-3-Clause
// A program as a graph: order of operations, inputs and outputs, the stack of open programs.
#include <meshfuse/ops/op_def.h>

#include <thread>

#include "expect_error.h"
#include "fusion_fixture.h"

namespace meshfuse {
namespace {

class FusionGraphTest : public FusionTest {};

TEST_F(FusionGraphTest, ProducersComeFirst) {
  TensorView* x = input({4});
  TensorView* a = relu(x);
  TensorView* b = add(a, x);
  TensorView* c = add(b, a);
  output(c);
  EXPECT_EQ(fusion->exprs(),
            std::vector<Expr*>({a->definition(), b->definition(), c->definition()}));
}

TEST_F(FusionGraphTest, UnusedOperationsAreLeftOut) {
  TensorView* x = input({4});
  relu(x);
  TensorView* b = output(relu(x));
  EXPECT_EQ(fusion->exprs(), std::vector<Expr*>{b->definition()});
  EXPECT_EQ(fusion->usedTvs(), std::vector<TensorView*>({x, b}));
  EXPECT_EQ(fusion->allTvs().size(), 3U);
  EXPECT_EQ(fusion->allExprs().size(), 2U);
}

TEST_F(FusionGraphTest, UsesAreOncePerOperation) {
  TensorView* x = input({4});
  TensorView* y = add(x, x);
  EXPECT_EQ(x->uses(), std::vector<Expr*>{y->definition()});
  EXPECT_EQ(y->definition()->inputs(), std::vector<TensorView*>({x, x}));
}

TEST_F(FusionGraphTest, InputsAndOutputsAreMarked) {
  TensorView* x = input({4});
  TensorView* y = output(relu(x));
  EXPECT_TRUE(x->isFusionInput());
  EXPECT_FALSE(x->isFusionOutput());
  EXPECT_TRUE(y->isFusionOutput());
  TensorView* z = relu(y);
  fusion->replaceOutput(y, z);
  EXPECT_FALSE(y->isFusionOutput());
  EXPECT_TRUE(z->isFusionOutput());
}

TEST_F(FusionGraphTest, ReplaceInput) {
  TensorView *x = input({4}), *y = input({4});
  TensorView* z = output(add(x, y));
  fusion->replaceInput(z->definition(), x, y);
  EXPECT_EQ(z->definition()->inputs(), std::vector<TensorView*>({y, y}));
  EXPECT_EQ(std::get<TensorView*>(z->definition()->args()[0]), y);
  EXPECT_TRUE(x->uses().empty());
}

TEST_F(FusionGraphTest, UsesStayOncePerOperationWhenAnInputIsReplaced) {
  TensorView *x = input({4}), *y = input({4});
  TensorView* z = output(add(x, y));
  fusion->replaceInput(z->definition(), x, y);
  EXPECT_EQ(y->uses(), std::vector<Expr*>{z->definition()});
}

TEST_F(FusionGraphTest, ResultsAreNoInputs) {
  TensorView* y = relu(input({4}));
  expectError([&] { fusion->addInput(y); }, "addInput: T1 is the result of an operation");
}

TEST_F(FusionGraphTest, OnlyInputsAreAliased) {
  TensorView* y = relu(input({4}));
  TensorView* z = relu(y);
  expectError([&] { fusion->aliasOutputToInput(z, y); },
              {"add_output: T1 is not an input of the fusion", "T2", "Alias an input"});
  EXPECT_TRUE(fusion->outputs().empty());
}

TEST_F(FusionGraphTest, EqualMeshesAreOne) {
  const DeviceMesh* first = fusion->internMesh(DeviceMesh({0, 1}));
  EXPECT_EQ(fusion->internMesh(DeviceMesh({0, 1})), first);
  EXPECT_NE(fusion->internMesh(DeviceMesh({1, 0})), first);
  EXPECT_NE(fusion->internMesh(DeviceMesh({0, 1}, {2}, {"tp"})), first);
}

TEST_F(FusionGraphTest, NodesKnowTheUsersLine) {
  fusion->current_loc = {fusion->internFile("model.py"), 12};
  TensorView* y = relu(input({4}));
  EXPECT_EQ(fusion->describe(y->loc()), "model.py:12");
  EXPECT_EQ(fusion->describe(y->definition()->loc()), "model.py:12");
  EXPECT_EQ(fusion->describe(SourceLoc{}), "");
  EXPECT_EQ(fusion->internFile("model.py"), 0);
}

TEST_F(FusionGraphTest, TensorsOfAnotherProgramAreRefused) {
  Fusion other;
  TensorView* foreign = IrBuilder::createInContainer<TensorView>(&other, std::vector<int64_t>{4});
  expectError([&] { relu(foreign); }, "relu: T0 belongs to another definition");
}

TEST_F(FusionGraphTest, UnknownOp) {
  expectError([] { callOp("no_such_op", {}); }, "there is no op named no_such_op");
}

TEST(FusionGuard, IsAStackOfThisThread) {
  EXPECT_EQ(FusionGuard::getCurFusion(), nullptr);
  Fusion outer, inner;
  {
    const FusionGuard first(&outer);
    EXPECT_EQ(FusionGuard::getCurFusion(), &outer);
    {
      const FusionGuard second(&inner);
      EXPECT_EQ(FusionGuard::getCurFusion(), &inner);
      std::thread([] { EXPECT_EQ(FusionGuard::getCurFusion(), nullptr); }).join();
    }
    EXPECT_EQ(FusionGuard::getCurFusion(), &outer);
  }
  EXPECT_EQ(FusionGuard::getCurFusion(), nullptr);
}

TEST(FusionGuard, BuildersNeedOne) {
  expectError([] { makeContigTensor(1); }, {"no Fusion is active in this thread", "FusionGuard"});
  expectError([] { IrBuilder::create<Scalar>(int64_t{4}); }, "no Fusion is active in this thread");
  expectError([] { callOp("relu", {}); }, "relu: no definition is open");
}

TEST(FusionGuard, BuildersUseTheCurrentOne) {
  Fusion fusion, other;
  const FusionGuard guard(&fusion);
  TensorView* tv = IrBuilder::create<TensorView>(std::vector<int64_t>{4, -1}, DataType::Half);
  EXPECT_EQ(tv->fusion(), &fusion);
  EXPECT_EQ(tv->dtype(), DataType::Half);
  EXPECT_EQ(logicalText(tv), "[i4, iT0.1]");
  EXPECT_EQ(IrBuilder::create<Scalar>(int64_t{4}), fusion.scalars().constant(4));
  EXPECT_EQ(IrBuilder::createInContainer<TensorView>(&other, std::vector<int64_t>{1})->fusion(),
            &other);
}

}  // namespace
}  // namespace meshfuse
