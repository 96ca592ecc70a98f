// SPDX-License-Identifier: BSD-3-Clause
// Structural equality and copies of programs.
#include <meshfuse/ir/verifier.h>
#include <meshfuse/ops/op_def.h>

#include <functional>
#include <limits>

#include "fusion_fixture.h"

namespace meshfuse {
namespace {

/// relu(a @ b) with the tensors at hand, so that a test can change one thing.
struct Program {
  std::shared_ptr<Fusion> fusion = std::make_shared<Fusion>();
  TensorView *a, *b, *product, *out;

  explicit Program(bool annotated = false, DataType dtype = DataType::Float, int64_t n = 6) {
    const FusionGuard guard(fusion.get());
    a = makeContigConcreteTensor({-1, 8}, dtype);
    b = makeContigConcreteTensor({8, n}, dtype);
    fusion->addInput(a);
    fusion->addInput(b);
    product = matmul(a, b);
    out = relu(product);
    fusion->addOutput(out);
    if (!annotated) return;
    for (TensorView* tv : {a, b, product, out}) tv->setDeviceMesh(DeviceMesh({0, 1}));
    for (TensorView* tv : {b, product, out}) tv->outerSplit(1, 2)->parallelize(1, kX);
  }
};

/// Whether two programs stay equal after `change` is made to one of them.
bool sameAfter(const std::function<void(Program&)>& change, bool annotated = true) {
  Program before(annotated), changed(annotated);
  const FusionGuard guard(changed.fusion.get());
  change(changed);
  const bool same = before.fusion->sameAs(*changed.fusion);
  EXPECT_EQ(changed.fusion->sameAs(*before.fusion), same);
  return same;
}

TEST(SameAs, EqualPrograms) {
  EXPECT_TRUE(Program().fusion->sameAs(*Program().fusion));
  EXPECT_TRUE(Program(true).fusion->sameAs(*Program(true).fusion));
  EXPECT_TRUE(sameAfter([](Program&) {}));
  EXPECT_TRUE(Fusion().sameAs(Fusion()));
}

TEST(SameAs, NamesAndLinesDoNotCount) {
  EXPECT_TRUE(sameAfter([](Program& p) {
    p.a->setName("weights");
    p.out->setLoc({p.fusion->internFile("model.py"), 7});
  }));
}

TEST(SameAs, UnusedOperationsDoNotCount) {
  Program plain;
  const auto fusion = std::make_shared<Fusion>();
  const FusionGuard guard(fusion.get());
  TensorView* a = makeContigConcreteTensor({-1, 8});
  relu(a);
  TensorView* b = makeContigConcreteTensor({8, 6});
  fusion->addInput(a);
  fusion->addInput(b);
  fusion->addOutput(relu(matmul(a, b)));
  EXPECT_TRUE(plain.fusion->sameAs(*fusion));
}

TEST(SameAs, InputsCount) {
  EXPECT_FALSE(Program(false).fusion->sameAs(*Program(false, DataType::Double).fusion));
  EXPECT_FALSE(Program(false).fusion->sameAs(*Program(false, DataType::Float, 5).fusion));
  EXPECT_FALSE(Program(false).fusion->sameAs(*Program(false, DataType::Float, -1).fusion));
  EXPECT_FALSE(sameAfter([](Program& p) { p.fusion->addInput(makeContigTensor(1)); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.a->setContiguity(false); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.a->setCpuScalar(true); }));
}

TEST(SameAs, OrderOfInputsCounts) {
  const auto make = [](bool swapped) {
    auto fusion = std::make_shared<Fusion>();
    const FusionGuard guard(fusion.get());
    TensorView *a = makeContigTensor(1), *b = makeContigTensor(1);
    fusion->addInput(swapped ? b : a);
    fusion->addInput(swapped ? a : b);
    fusion->addOutput(sub(a, b));
    return fusion;
  };
  EXPECT_FALSE(make(false)->sameAs(*make(true)));
  EXPECT_TRUE(make(true)->sameAs(*make(true)));
}

TEST(SameAs, OutputsCount) {
  EXPECT_FALSE(sameAfter([](Program& p) { p.fusion->addOutput(p.product); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.fusion->addOutput(p.out); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.fusion->replaceOutput(p.out, p.product); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.fusion->replaceOutput(p.out, set(p.product)); }));
}

TEST(SameAs, AliasesCount) {
  const auto make = [](int alias) {
    auto fusion = std::make_shared<Fusion>();
    const FusionGuard guard(fusion.get());
    TensorView *a = makeContigTensor(1), *b = makeContigTensor(1);
    fusion->addInput(a);
    fusion->addInput(b);
    TensorView* out = add(a, b);
    if (alias == 0) fusion->addOutput(out);
    if (alias > 0) fusion->aliasOutputToInput(out, alias == 1 ? a : b);
    return fusion;
  };
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 3; ++k) EXPECT_EQ(make(i)->sameAs(*make(k)), i == k) << i << " and " << k;
  }
}

TEST(SameAs, SchedulesCount) {
  EXPECT_FALSE(sameAfter([](Program& p) { p.out->split(0, 2); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.out->reorder(std::vector<int64_t>{1, 0, 2}); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.out->parallelize(1, ParallelType::Serial); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.out->setAllocationAsLoop(); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.product->merge(0, 2); }));
  EXPECT_FALSE(
      sameAfter([](Program& p) { p.out->setStrideOrder(std::vector<int64_t>{0, 1}, "test"); }));
}

TEST(SameAs, FactorsOfSplitsCount) {
  EXPECT_FALSE(sameAfter([](Program& p) { p.out->innerSplit(0, 2); }));
  const auto splitBy = [](int64_t factor, bool inner) {
    Program p;
    p.out->split(1, factor, inner);
    return p.fusion;
  };
  EXPECT_TRUE(splitBy(2, false)->sameAs(*splitBy(2, false)));
  EXPECT_FALSE(splitBy(2, false)->sameAs(*splitBy(3, false)));
  EXPECT_FALSE(splitBy(2, false)->sameAs(*splitBy(3, true)));  // [2, 3] both, written otherwise
}

TEST(SameAs, MeshesCount) {
  EXPECT_FALSE(sameAfter([](Program& p) { p.a->setDeviceMesh(DeviceMesh({1, 0})); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.product->setDeviceMesh(DeviceMesh({0, 1}, {1, 2})); }));
  EXPECT_FALSE(sameAfter([](Program& p) { p.a->setDeviceMesh(DeviceMesh({0, 1})); }, false));
  EXPECT_FALSE(Program(true).fusion->sameAs(*Program(false).fusion));
}

TEST(SameAs, OperationsAndAttributesCount) {
  const auto make = [](std::string_view op, const std::vector<int64_t>& axes,
                       bool keepdim = false) {
    auto fusion = std::make_shared<Fusion>();
    const FusionGuard guard(fusion.get());
    TensorView* x = makeContigConcreteTensor({4, 4});
    fusion->addInput(x);
    TensorView* y =
        axes.empty() ? std::get<TensorView*>(callOp(op, {x}).at(0)) : sum(x, axes, keepdim);
    fusion->addOutput(y);
    return fusion;
  };
  EXPECT_FALSE(make("relu", {})->sameAs(*make("exp", {})));
  EXPECT_FALSE(make("sum", {0})->sameAs(*make("sum", {1})));
  EXPECT_FALSE(make("sum", {0})->sameAs(*make("sum", {0}, true)));
  EXPECT_TRUE(make("sum", {0}, true)->sameAs(*make("sum", {0}, true)));
}

/// x times a scalar that `make` builds from scalar inputs s and t, declared in that order whatever
/// their handles are.
std::shared_ptr<Fusion> scaled(const std::function<Scalar(ScalarPool&, Scalar, Scalar)>& make,
                               bool t_first = false, DataType dtype = DataType::Int) {
  auto fusion = std::make_shared<Fusion>();
  const FusionGuard guard(fusion.get());
  ScalarPool& pool = fusion->scalars();
  Scalar s, t;
  if (t_first) t = pool.symbol(dtype);
  s = pool.symbol(dtype);
  if (!t_first) t = pool.symbol(dtype);
  TensorView* x = makeContigTensor(1);
  fusion->addInput(x);
  fusion->addInput(s);
  fusion->addInput(t);
  fusion->addOutput(std::get<TensorView*>(callOp("mul", {x, make(pool, s, t)}).at(0)));
  return fusion;
}

TEST(SameAs, ScalarsCount) {
  const auto number = [](double value) {
    return scaled(
        [=](ScalarPool& pool, Scalar, Scalar) { return pool.constant(value, DataType::Double); });
  };
  EXPECT_TRUE(number(2)->sameAs(*number(2)));
  EXPECT_FALSE(number(2)->sameAs(*number(3)));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(number(nan)->sameAs(*number(nan)));
  const auto first = [](ScalarPool&, Scalar s, Scalar) { return s; };
  const auto second = [](ScalarPool&, Scalar, Scalar t) { return t; };
  EXPECT_TRUE(scaled(first)->sameAs(*scaled(first)));
  EXPECT_FALSE(scaled(first)->sameAs(*scaled(second)));
  EXPECT_TRUE(scaled(first)->sameAs(*scaled(first, true)));
  EXPECT_FALSE(scaled(first)->sameAs(*scaled(first, false, DataType::Double)));
}

TEST(SameAs, OrderOfHandlesDoesNotCount) {
  for (const ScalarOp op : {ScalarOp::Add, ScalarOp::Mul, ScalarOp::Min, ScalarOp::Max,
                            ScalarOp::Sub, ScalarOp::CeilDiv}) {
    const auto make = [op](ScalarPool& pool, Scalar s, Scalar t) { return pool.binary(op, s, t); };
    const auto swapped = [op](ScalarPool& pool, Scalar s, Scalar t) {
      return pool.binary(op, t, s);
    };
    EXPECT_TRUE(scaled(make)->sameAs(*scaled(make, true))) << name(op);
    const bool commutes = op != ScalarOp::Sub && op != ScalarOp::CeilDiv;
    EXPECT_EQ(scaled(make)->sameAs(*scaled(swapped)), commutes) << name(op);
  }
}

// ---- clone

TEST(Clone, IsEqualAndHasTheSameIds) {
  Program p(true);
  const auto copy = p.fusion->clone();
  EXPECT_TRUE(copy->sameAs(*p.fusion));
  EXPECT_EQ(copy->version(), p.fusion->version());
  EXPECT_EQ(copy->tensors().size(), p.fusion->tensors().size());
  EXPECT_EQ(copy->scalars().size(), p.fusion->scalars().size());
  for (const TensorView* tv : p.fusion->allTvs()) {
    EXPECT_EQ(toString(copy->tensor(tv->id())), toString(tv));
    EXPECT_EQ(loopText(copy->tensor(tv->id())), loopText(tv));
  }
}

TEST(Clone, PointsIntoItself) {
  Program p(true);
  const auto copy = p.fusion->clone();
  const auto isOurs = [&](const TensorView* tv) { return tv->fusion() == copy.get(); };
  EXPECT_TRUE(isOurs(std::get<TensorView*>(copy->inputs()[0])));
  EXPECT_TRUE(isOurs(std::get<TensorView*>(copy->outputs()[0].value)));
  ASSERT_EQ(copy->exprs().size(), 2U);
  for (const Expr* expr : copy->exprs()) {
    for (const TensorView* tv : expr->inputs()) EXPECT_TRUE(isOurs(tv));
    for (const TensorView* tv : expr->outputs()) {
      EXPECT_TRUE(isOurs(tv));
      EXPECT_EQ(tv->definition(), expr);
    }
    for (const Arg& arg : expr->args()) {
      const auto* tv = std::get_if<TensorView*>(&arg);
      EXPECT_TRUE(tv == nullptr || isOurs(*tv));
    }
  }
  const TensorView* product = copy->tensor(p.product->id());
  ASSERT_EQ(product->uses().size(), 1U);
  EXPECT_EQ(product->uses()[0], copy->exprs()[1]);
  EXPECT_EQ(product->axis(0)->tensor(), product);
  EXPECT_NE(&product->getDeviceMesh(), &p.product->getDeviceMesh());
}

TEST(Clone, IsIndependent) {
  Program p(true);
  const auto copy = p.fusion->clone();
  copy->tensor(p.out->id())->split(0, 2);
  EXPECT_EQ(loopText(p.out), "[iT0.0, X2, i3]");
  EXPECT_FALSE(copy->sameAs(*p.fusion));
  p.a->setDeviceMesh(DeviceMesh({1, 0}));
  EXPECT_EQ(copy->tensor(p.a->id())->getDeviceMesh(), DeviceMesh({0, 1}));
}

TEST(Clone, KeepsWhatSameAsIgnores) {
  Program p(true);
  p.a->setName("weights");
  p.fusion->current_loc = {p.fusion->internFile("model.py"), 7};
  p.b->setDeclared(false);
  p.b->setLoc(p.fusion->current_loc);
  const auto copy = p.fusion->clone();
  EXPECT_EQ(copy->tensor(p.a->id())->name(), "weights");
  EXPECT_TRUE(copy->tensor(p.a->id())->meshIsDeclared());
  EXPECT_FALSE(copy->tensor(p.b->id())->meshIsDeclared());
  EXPECT_EQ(copy->describe(copy->tensor(p.b->id())->loc()), "model.py:7");
  EXPECT_TRUE(copy->tensor(p.a->id())->isFusionInput());
  EXPECT_TRUE(copy->tensor(p.out->id())->isFusionOutput());
}

TEST(Clone, AliasesAndConstraints) {
  Fusion fusion;
  const FusionGuard guard(&fusion);
  TensorView *a = makeContigTensor(1), *b = makeContigTensor(1);
  fusion.addInput(a);
  fusion.addInput(b);
  fusion.aliasOutputToInput(add(a, b), b);
  const auto copy = fusion.clone();
  EXPECT_EQ(copy->outputs()[0].alias, copy->tensor(b->id()));
  EXPECT_EQ(copy->exprs()[0]->constraints().size(), 1U);
  EXPECT_TRUE(copy->sameAs(fusion));
}

TEST(Clone, AfterRFactor) {
  Program p;
  p.product->outerSplit(-1, 2);
  TensorView* local = p.product->rfactor({-1});
  const auto copy = p.fusion->clone();
  EXPECT_TRUE(copy->sameAs(*p.fusion));
  EXPECT_EQ(copy->exprs().size(), 3U);
  const TensorView* ours = copy->tensor(local->id());
  EXPECT_EQ(ours->definition()->output(0), ours);
  EXPECT_EQ(copy->tensor(p.product->id())->definition()->input(0), ours);
  EXPECT_EQ(shortText(ours->getRootDomain()), shortText(local->getRootDomain()));
  EXPECT_NO_THROW(verify(*copy));
}

TEST(Clone, NewNodesFollowTheOldOnes) {
  Program p;
  const auto copy = p.fusion->clone();
  const FusionGuard guard(copy.get());
  TensorView* more = relu(copy->tensor(p.out->id()));
  EXPECT_EQ(more->id(), static_cast<int32_t>(p.fusion->tensors().size()));
  EXPECT_EQ(copy->scalars().extentSymbol(p.a->id(), 0), p.a->axis(0)->extent());
}

}  // namespace
}  // namespace meshfuse
