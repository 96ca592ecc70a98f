// SPDX-License-Identifier: BSD-3-Clause
// Values and sizes that nothing gives, and other calls that only C++ programs can make.
#include <ATen/ops/ones.h>
#include <meshfuse/ir/verifier.h>

#include "executor_fixture.h"
#include "expect_error.h"

namespace meshfuse {
namespace {

class UnknownValues : public ExecutorTest {
 protected:
  Scalar unknown(DataType type = DataType::Int) { return fusion->scalars().symbol(type); }
};

TEST_F(UnknownValues, OfAnOperand) {
  output(call("mul", {input({2}), unknown(DataType::Double)}));
  expectError([&] { run({at::ones({2})}); },
              {"mul: the value of ", " is not known. Add the scalar to the inputs."});
}

TEST_F(UnknownValues, OfAnOutput) {
  output(relu(input({2})));
  fusion->addOutput(unknown());
  expectError([&] { cache().run({at::ones({2})}); },
              "execute: a scalar output depends on a size that is not known.");
}

TEST_F(UnknownValues, OfASize) {
  output(full({unknown()}, fusion->scalars().constant(int64_t{1}), DataType::Float));
  expectError([&] { cache().run({}); },
              "the size of axis 0 of T0 is not known: s0. Bind the inputs that it depends on.");
}

TEST_F(UnknownValues, OfASplit) {
  TensorView* x = input({8});
  output(relu(x));
  x->split(0, unknown(), false);
  expectError([&] { run({at::ones({8})}); },
              "the factor by which an axis of T0 is split is not known. Split by a number, or bind "
              "its symbol.");
  x->setDeviceMesh(two);
  x->parallelize(0, kX);
  expectError([&] { shardTensor(at::ones({8}), x, 0); },
              "shard_tensor: an axis of T0 is split by a factor that is not a number.");
}

TEST_F(UnknownValues, OfAnotherKind) {
  const PolymorphicValue value(at::ones({2}));
  expectError([&] { static_cast<void>(value.as<double>()); },
              "as: the value is of another kind than asked for. Ask is<T>() first.");
}

TEST_F(UnknownValues, LoopDomainOfOtherElements) {
  TensorView* x = input({4, 6});
  x->domain().setLoop({x->axis(0)->index()});
  expectError([&] { verify(x); },
              "verify: the loop domain of T0 does not stand for the same elements as its logical "
              "domain.");
}

TEST_F(UnknownValues, TypeThatTorchLacks) {
  output(castOp(DataType::Float4_e2m1fn, input({4})));
  expectError<UnsupportedError>([&] { run({at::ones({4})}); },
                                ", so no tensor of it can be computed.");
}

}  // namespace
}  // namespace meshfuse
