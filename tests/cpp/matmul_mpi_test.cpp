// SPDX-License-Identifier: BSD-3-Clause
// The seed program on real ranks: a matmul whose output is cut by a DID loop split.
#include <gtest/gtest-spi.h>
#include <meshfuse/ops/arith.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

#include "multidevice_test.h"

namespace meshfuse {
namespace {

constexpr ParallelType kX = ParallelType::DIDx, kY = ParallelType::DIDy;

class DistributedMatmul : public MultiDeviceTest {
 protected:
  TensorView* input(const std::vector<int64_t>& shape, DataType dtype = DataType::Float) {
    TensorView* tv = makeContigConcreteTensor(shape, dtype);
    fusion_->addInput(tv);
    return tv;
  }
  /// Numbers in [-1, 1], the same on every rank.
  at::Tensor random(const std::vector<int64_t>& sizes, at::ScalarType type = at::kFloat) const {
    int64_t n = 1;
    for (const int64_t s : sizes) n *= s;
    const at::Tensor t = at::arange(n, tensor_options_);
    return at::sin(t.mul(12.9898)).view(sizes).to(type);
  }
  int64_t devices() const { return communicator_->size(); }
  std::vector<at::Tensor> run(std::vector<InputValue> inputs) {
    if (!cache_) cache_.emplace(fusion_);
    return cache_->run(std::move(inputs));
  }

  std::shared_ptr<Fusion> fusion_ = std::make_shared<Fusion>();
  FusionGuard guard_{fusion_.get()};
  std::optional<FusionExecutorCache> cache_;
};

TEST_F(DistributedMatmul, ColumnParallel) {
  const int64_t d = devices();
  TensorView *x = input({2, 16, 24}), *w = input({24, 12 * d});
  TensorView* out = matmul(x, w);
  fusion_->addOutput(out);
  for (TensorView* tv : {x, w, out}) tv->setDeviceMesh(allDevices());
  w->outerSplit(-1, d)->axis(-2)->parallelize(kX);
  out->outerSplit(-2, d)->axis(-3)->parallelize(kX);

  const at::Tensor gx = random({2, 16, 24}), gw = random({24, 12 * d});
  const auto outputs = run({gx, shardTensor(gw, w)});
  validate({shardTensor(at::matmul(gx, gw), out)}, outputs, {1e-4});
  EXPECT_EQ(outputs[0].strides().vec(), (std::vector<int64_t>{192, 12, 1}));
  EXPECT_EQ(cache_->stats().relayouts, 0);
}

TEST_F(DistributedMatmul, AllocationAsLoop) {
  const int64_t d = devices();
  TensorView *x = input({2, 4, 8}), *w = input({8, 3 * d});
  TensorView* out = matmul(x, w);
  fusion_->addOutput(out);
  for (TensorView* tv : {x, w, out}) tv->setDeviceMesh(allDevices());
  w->outerSplit(-1, d)->axis(-2)->parallelize(kX);
  out->outerSplit(-2, d)->axis(-3)->parallelize(kX);
  for (TensorView* tv : {x, w, out}) tv->setAllocationAsLoop();

  const at::Tensor gx = random({2, 4, 8}), gw = random({8, 3 * d});
  validate({shardTensor(at::matmul(gx, gw), out)}, run({gx, shardTensor(gw, w)}), {1e-5});
}

TEST_F(DistributedMatmul, OutputFollowsTheWeight) {
  const int64_t d = devices();
  TensorView *x = input({4, 8}), *w = input({8, 3 * d});
  TensorView* out = matmul(x, w);
  fusion_->addOutput(out);
  w->setDeviceMesh(allDevices());
  w->outerSplit(1, d)->parallelize(1, kX);

  const at::Tensor gx = random({4, 8}), gw = random({8, 3 * d});
  const at::Tensor want = at::matmul(gx, gw).narrow(1, 3 * communicator_->deviceId(), 3);
  validate({want}, run({gx, shardTensor(gw, w)}), {1e-5});
}

TEST_F(DistributedMatmul, RowsOfTheFirstOperand) {
  const int64_t d = devices();
  TensorView *x = input({-1, 8}), *w = input({8, 6});
  TensorView* out = matmul(x, w);
  fusion_->addOutput(out);
  for (TensorView* tv : {x, w, out}) tv->setDeviceMesh(allDevices());
  for (TensorView* tv : {x, out}) tv->outerSplit(0, d)->parallelize(0, kX);

  for (const int64_t rows : {3, 5, 3, 0}) {  // one definition, several sizes
    const at::Tensor gx = random({rows * d, 8}), gw = random({8, 6});
    validate({shardTensor(at::matmul(gx, gw), out)}, run({shardTensor(gx, x), gw}), {1e-5});
  }
  EXPECT_EQ(cache_->stats().compiles, 3);
}

TEST_F(DistributedMatmul, ColumnMajorOutput) {
  const int64_t d = devices();
  TensorView *a = input({4, 8}), *b = input({8, 3 * d});
  TensorView* out = matmul(a, b);
  fusion_->addOutput(out);
  out->setStrideOrder(std::vector<int64_t>{0, 1}, "test");
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(allDevices());
  for (TensorView* tv : {b, out}) tv->outerSplit(1, d)->parallelize(1, kX);

  const at::Tensor ga = random({4, 8}), gb = random({8, 3 * d});
  const auto outputs = run({ga, shardTensor(gb, b)});
  validate({shardTensor(at::matmul(ga, gb), out)}, outputs, {1e-5});
  EXPECT_EQ(outputs[0].strides().vec(), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(cache_->stats().relayouts, 0);
}

TEST_F(DistributedMatmul, Cyclic) {
  const int64_t d = devices();
  TensorView *a = input({4, 8}), *b = input({8, 3 * d});
  TensorView* out = matmul(a, b);
  fusion_->addOutput(out);
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(allDevices());
  for (TensorView* tv : {b, out}) tv->innerSplit(1, d)->parallelize(2, kX);

  const at::Tensor ga = random({4, 8}), gb = random({8, 3 * d});
  validate({shardTensor(at::matmul(ga, gb), out)}, run({ga, shardTensor(gb, b)}), {1e-5});
}

TEST_F(DistributedMatmul, BFloat16) {
  const int64_t d = devices();
  TensorView* x = input({4, 8}, DataType::BFloat16);
  TensorView* w = input({3 * d, 8}, DataType::BFloat16);
  TensorView* out = linear(x, w);
  fusion_->addOutput(out);
  for (TensorView* tv : {x, w, out}) tv->setDeviceMesh(allDevices());
  w->outerSplit(0, d)->parallelize(0, kX);
  out->outerSplit(1, d)->parallelize(1, kX);

  const at::Tensor gx = random({4, 8}, at::kBFloat16), gw = random({3 * d, 8}, at::kBFloat16);
  validate({shardTensor(at::linear(gx, gw), out)}, run({gx, shardTensor(gw, w)}), {1e-2});
}

TEST_F(DistributedMatmul, TwoMeshAxes) {
  const int64_t d = devices();
  if (d % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  const DeviceMesh mesh = DeviceMesh::createForShape({2, d / 2});
  TensorView *a = input({4, 8}), *b = input({8, 3 * d});
  TensorView* out = matmul(a, b);
  fusion_->addOutput(out);
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(mesh);
  b->outerSplit(1, d / 2)->parallelize(1, kX);
  out->outerSplit(1, d / 2)->parallelize(1, kX);
  for (TensorView* tv : {a, out}) tv->outerSplit(0, 2)->parallelize(0, kY);

  const at::Tensor ga = random({4, 8}), gb = random({8, 3 * d});
  validate({shardTensor(at::matmul(ga, gb), out)}, run({shardTensor(ga, a), shardTensor(gb, b)}),
           {1e-5});
}

TEST_F(DistributedMatmul, RankOutsideTheMeshReturnsNothing) {
  const DeviceMesh first({0});
  TensorView *a = input({4, 8}), *b = input({8, 6});
  TensorView* out = matmul(a, b);
  fusion_->addOutput(out);
  for (TensorView* tv : {a, b, out}) tv->setDeviceMesh(first);
  const at::Tensor ga = random({4, 8}), gb = random({8, 6});
  const bool holds = first.has(communicator_->deviceId());
  const auto outputs = holds ? run({ga, gb}) : run({at::empty({0}), at::empty({0})});
  validate({holds ? at::matmul(ga, gb) : at::empty({0, 6})}, outputs, {1e-5});
}

TEST_F(DistributedMatmul, ErrorOnEveryRankLeavesTheGroupWhole) {
  const int64_t d = devices();
  TensorView *x = input({-1, 8}), *w = input({8, 3 * d});
  TensorView* out = matmul(x, w);
  fusion_->addOutput(out);
  for (TensorView* tv : {x, w, out}) tv->setDeviceMesh(allDevices());
  for (TensorView* tv : {w, out}) tv->outerSplit(1, d)->parallelize(1, kX);
  const at::Tensor gx = random({4, 8}), gw = random({8, 3 * d});
  EXPECT_THROW(run({gx, gw}), Error);  // the whole weight: its local size would be too large
  communicator_->barrier();
  validate({shardTensor(at::matmul(gx, gw), out)}, run({gx, shardTensor(gw, w)}), {1e-5});
}

TEST_F(DistributedMatmul, MeshNeedsMoreRanks) {
  TensorView* x = input({4});
  x->setDeviceMesh(DeviceMesh({0, devices()}));
  fusion_->addOutput(relu(x));
  EXPECT_THROW(run({random({4})}), Error);
}

// ---- the fixture

TEST_F(MultiDeviceTest, ValidateComparesTypesSizesAndValues) {
  const at::Tensor one = at::zeros({2}, tensor_options_).add(1.0);
  validate({one}, {one}, {0});
  validate({one}, {one.mul(1 + 1e-6)}, {0});
  validate({one}, {one.add(0.5)}, {0.6});
  EXPECT_NONFATAL_FAILURE(validate({one}, {one.mul(1.01)}, {0}), "largest difference: 0.0");
  EXPECT_FATAL_FAILURE(
      {
        const at::Tensor t = at::zeros({2});
        validate({t}, {t.to(at::kDouble)}, {0});
      },
      "scalar_type");
  EXPECT_FATAL_FAILURE(
      {
        const at::Tensor t = at::zeros({2});
        validate({t}, {t.view({1, 2})}, {0});
      },
      "sizes");
  EXPECT_FATAL_FAILURE(validate({}, {at::zeros({2})}, {}), "outputs.size()");
}

TEST_F(MultiDeviceTest, RanksAreDevices) {
  EXPECT_EQ(communicator_->deviceId(), communicator_->rank());
  EXPECT_EQ(allDevices().size(), communicator_->size());
  EXPECT_TRUE(allDevices().has(communicator_->deviceId()));
}

}  // namespace
}  // namespace meshfuse

int main(int argc, char** argv) { return meshfuse::runMultiDeviceTests(argc, argv); }
