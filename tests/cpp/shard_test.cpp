// SPDX-License-Identifier: BSD-3-Clause
// Parts of global tensors, by device, and back (semantics 2.5, 2.6, 3.4).
#include <ATen/ops/cat.h>

#include "device_tensors.h"
#include "expect_error.h"
#include "fusion_fixture.h"

namespace meshfuse {
namespace {

class ShardTest : public FusionTest {
 protected:
  TensorView* on(TensorView* tv, const DeviceMesh& mesh) {
    tv->setDeviceMesh(mesh);
    return tv;
  }
  /// Elements of arange(n) that a device holds.
  static Sizes elements(const TensorView* tv, int64_t n, int64_t device) {
    const at::Tensor part = shardTensor(at::arange(n), tv, device);
    EXPECT_TRUE(part.is_contiguous());
    return {part.data_ptr<int64_t>(), part.data_ptr<int64_t>() + part.numel()};
  }
  /// Shards `global` over all devices of the mesh and puts the parts together again.
  static void expectIdentity(const TensorView* tv, const at::Tensor& global) {
    std::vector<at::Tensor> parts;
    Sizes devices(tv->getDeviceMesh().vector().rbegin(), tv->getDeviceMesh().vector().rend());
    for (const int64_t d : devices) parts.push_back(shardTensor(global, tv, d));
    expectEqual(unshardTensor(parts, devices, tv), global);
  }
};

TEST_F(ShardTest, OuterSplitGivesBlocks) {
  TensorView* tv = on(input({8}), two);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(elements(tv, 8, 0), Sizes({0, 1, 2, 3}));
  EXPECT_EQ(elements(tv, 8, 1), Sizes({4, 5, 6, 7}));
  expectIdentity(tv, numbers({8}));
}

TEST_F(ShardTest, InnerSplitIsCyclic) {
  TensorView* tv = on(input({-1}), two);
  tv->innerSplit(0, 2)->parallelize(1, kX);
  EXPECT_EQ(elements(tv, 8, 0), Sizes({0, 2, 4, 6}));
  EXPECT_EQ(elements(tv, 8, 1), Sizes({1, 3, 5, 7}));
  EXPECT_EQ(elements(tv, 6, 0), Sizes({0, 2, 4}));
  EXPECT_EQ(elements(tv, 6, 1), Sizes({1, 3, 5}));
  expectIdentity(tv, numbers({6}));
}

TEST_F(ShardTest, BlocksInsideASerialSplit) {
  TensorView* tv = on(input({-1}), two);
  tv->outerSplit(0, 2)->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_EQ(elements(tv, 8, 0), Sizes({0, 1, 4, 5}));
  EXPECT_EQ(elements(tv, 8, 1), Sizes({2, 3, 6, 7}));
  EXPECT_EQ(elements(tv, 12, 0), Sizes({0, 1, 2, 6, 7, 8}));
  EXPECT_EQ(elements(tv, 12, 1), Sizes({3, 4, 5, 9, 10, 11}));
  expectIdentity(tv, numbers({12}));
}

TEST_F(ShardTest, TwoMeshAxesOnOneAxis) {
  TensorView* y_then_x = on(input({8}), square);
  y_then_x->outerSplit(0, 2)->outerSplit(1, 2)->parallelize(0, kY)->parallelize(1, kX);
  TensorView* x_then_y = on(input({8}), square);
  x_then_y->outerSplit(0, 2)->outerSplit(1, 2)->parallelize(0, kX)->parallelize(1, kY);
  for (int64_t y = 0; y < 2; ++y) {
    for (int64_t x = 0; x < 2; ++x) {
      EXPECT_EQ(elements(y_then_x, 8, 2 * y + x), Sizes({4 * y + 2 * x, 4 * y + 2 * x + 1}));
      EXPECT_EQ(elements(x_then_y, 8, 2 * y + x), Sizes({4 * x + 2 * y, 4 * x + 2 * y + 1}));
    }
  }
  expectIdentity(y_then_x, numbers({8}));
  expectIdentity(x_then_y, numbers({8}));
}

TEST_F(ShardTest, SquareMeshOverAGrid) {
  TensorView* tv = on(input({12}), square);
  tv->innerSplit(0, 6)->outerSplit(0, 2)->outerSplit(2, 2);
  EXPECT_EQ(loopText(tv), "[i2, i1, i2, i3]");
  tv->parallelize(0, kY)->parallelize(2, kX);
  const at::Tensor grid = at::arange(12).reshape({2, 1, 2, 3});
  for (int64_t y = 0; y < 2; ++y) {
    for (int64_t x = 0; x < 2; ++x) {
      expectEqual(shardTensor(at::arange(12), tv, 2 * y + x),
                  grid.select(0, y).select(1, x).flatten().contiguous());
    }
  }
  expectIdentity(tv, numbers({12}));
}

TEST_F(ShardTest, PartsAreContiguousAndKeepTheOrderOfAxes) {
  TensorView* tv = on(input({4, 6, 5}), two);
  tv->outerSplit(1, 2)->parallelize(1, kX);
  const at::Tensor global = numbers({4, 6, 5});
  const at::Tensor part = shardTensor(global, tv, 1);
  EXPECT_EQ(sizes(part), Sizes({4, 3, 5}));
  EXPECT_TRUE(part.is_contiguous());
  expectEqual(part, global.narrow(1, 3, 3).contiguous());
  expectEqual(shardTensor(numbers({5, 6, 4}).permute({2, 1, 0}), tv, 0),
              numbers({5, 6, 4}).permute({2, 1, 0}).narrow(1, 0, 3).contiguous());
}

TEST_F(ShardTest, TypesAreKept) {
  TensorView* tv = on(input({4}, DataType::Half), two);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(shardTensor(numbers({4}, at::kHalf), tv, 0).scalar_type(), at::kHalf);
}

TEST_F(ShardTest, LogicalDeviceAxis) {
  TensorView* tv = on(input({2, 3}), two);
  tv->parallelize(0, kX);
  expectEqual(shardTensor(numbers({2, 3}), tv, 1), numbers({2, 3}).narrow(0, 1, 1).contiguous());
  expectIdentity(tv, numbers({2, 3}));
}

TEST_F(ShardTest, SchedulesThatCutNothing) {
  TensorView* tv = on(input({8, 6}), two);
  tv->split(0, 2)->reorder(std::vector<int64_t>{2, 0, 1});
  expectEqual(shardTensor(numbers({8, 6}), tv, 1), numbers({8, 6}));
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(sizes(shardTensor(numbers({8, 6}), tv, 1)).size(), 2U);
}

TEST_F(ShardTest, ReductionsTakeNoMeshAxis) {
  TensorView* out = on(sum(input({2, 6}), {1}), two);
  out->outerSplit(1, 2)->parallelize(1, kX);
  for (int64_t d = 0; d < 2; ++d) expectEqual(shardTensor(numbers({2}), out, d), numbers({2}));
}

TEST_F(ShardTest, DeviceNumbersAreThoseOfTheMesh) {
  TensorView* tv = on(input({-1}), DeviceMesh({3, 1}));
  tv->outerSplit(0, 2)->parallelize(0, kX);
  EXPECT_EQ(elements(tv, 4, 3), Sizes({0, 1}));
  EXPECT_EQ(elements(tv, 4, 1), Sizes({2, 3}));
  expectIdentity(tv, numbers({4}));
}

TEST_F(ShardTest, MergedAxes) {
  TensorView* rows = on(input({4, 3}), two)->merge(0);
  rows->outerSplit(0, 2)->parallelize(0, kX);
  expectEqual(shardTensor(numbers({4, 3}), rows, 1), numbers({4, 3}).narrow(0, 2, 2).contiguous());
  expectIdentity(rows, numbers({4, 3}));
  TensorView* halves = on(input({2, 6}), DeviceMesh::createForNumDevices(4))->merge(0);
  halves->outerSplit(0, 4)->parallelize(0, kX);
  for (int64_t d = 0; d < 4; ++d) {
    expectEqual(shardTensor(numbers({2, 6}), halves, d),
                numbers({2, 6}).flatten().narrow(0, 3 * d, 3).reshape({1, 3}).contiguous());
  }
  expectIdentity(halves, numbers({2, 6}));
  TensorView* cyclic = on(input({3, 4}), two)->merge(0);
  cyclic->innerSplit(0, 2)->parallelize(1, kX);
  expectEqual(shardTensor(numbers({3, 4}), cyclic, 1),
              numbers({3, 4}).reshape({3, 2, 2}).select(2, 1).contiguous());
  expectIdentity(cyclic, numbers({3, 4}));
}

TEST_F(ShardTest, MergedAxesWithoutARectangle) {
  TensorView* tv = on(input({3, 4}), two)->merge(0);
  tv->outerSplit(0, 2)->parallelize(0, kX);
  expectError([&] { shardTensor(numbers({3, 4}), tv, 0); }, "NonRectangularShard");
}

TEST_F(ShardTest, BroadcastsAndExpandedAxes) {
  TensorView* one = on(input({1, 4}), two);
  one->outerSplit(0, 2)->parallelize(0, kX);
  expectEqual(shardTensor(numbers({1, 4}), one, 1), numbers({1, 4}));
  TensorView* expanded =
      on(addInput(TensorViewBuilder().shape({4, 6}).contiguity({true, std::nullopt}).build()), two);
  expanded->outerSplit(1, 2)->parallelize(1, kX);
  const at::Tensor global = numbers({4, 1}).expand({4, 6});
  expectEqual(shardTensor(global, expanded, 1), numbers({4, 1}).expand({4, 3}).contiguous());
  expectIdentity(expanded, global.contiguous());
}

TEST_F(ShardTest, EmptyTensors) {
  TensorView* tv = on(input({-1, 4}), two);
  tv->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_EQ(sizes(shardTensor(at::empty({0, 4}), tv, 1)), Sizes({0, 2}));
  expectIdentity(tv, at::empty({0, 4}));
}

TEST_F(ShardTest, DeviceOutsideTheMesh) {
  TensorView* tv = on(input({4, 6}), two);
  tv->outerSplit(1, 2)->parallelize(1, kX);
  EXPECT_EQ(sizes(shardTensor(numbers({4, 6}), tv, 2)), Sizes({4, 0}));
  TensorView* grid = on(input({4, 6}), square);
  grid->outerSplit(1, 2)->parallelize(1, kX)->outerSplit(0, 2)->parallelize(0, kY);
  EXPECT_EQ(sizes(shardTensor(numbers({4, 6}), grid, 7)), Sizes({0, 0}));
}

/// Nothing is sharded, but the device holds no part: never memory that nobody wrote.
TEST_F(ShardTest, DeviceOutsideTheMeshOfAReplicatedTensor) {
  TensorView* tv = on(input({4, 6}), two);
  const at::Tensor part = shardTensor(numbers({4, 6}), tv, 2);
  EXPECT_TRUE(part.numel() == 0 || at::equal(part, numbers({4, 6})));
}

TEST_F(ShardTest, PartsOfDevicesOutsideTheMeshAreIgnored) {
  TensorView* tv = on(input({4}), DeviceMesh({1, 2}));
  tv->outerSplit(0, 2)->parallelize(0, kX);
  const std::vector<at::Tensor> parts = {at::empty({0}), numbers({2}), numbers({2})};
  expectEqual(unshardTensor(parts, Sizes{0, 1, 2}, tv), at::cat({numbers({2}), numbers({2})}));
  expectError([&] { unshardTensor(std::span(parts).first(1), Sizes{0}, tv); },
              "unshard_tensor: none of the devices holds a part of T0");
}

TEST_F(ShardTest, UnshardOfAReplicatedTensorIsAnyPart) {
  TensorView* tv = on(input({4}), DeviceMesh({1}));
  const std::vector<at::Tensor> parts = {at::empty({0}), numbers({4})};
  expectEqual(unshardTensor(parts, Sizes{0, 1}, tv), numbers({4}));
}

TEST_F(ShardTest, IdentityOfManySchedules) {
  const DeviceMesh cube = DeviceMesh::createForShape({2, 3, 2});
  TensorView* tv = on(input({4, 12, 6}), cube);
  tv->innerSplit(2, 2)->parallelize(3, kX);
  tv->outerSplit(1, 2)->outerSplit(2, 3)->parallelize(2, kY);
  tv->outerSplit(0, 2)->parallelize(0, kZ);
  expectIdentity(tv, numbers({4, 12, 6}));
  TensorView* one_axis = on(input({24}), cube);
  one_axis->outerSplit(0, 2)->innerSplit(1, 2)->outerSplit(1, 3);
  one_axis->parallelize(0, kZ)->parallelize(1, kY)->parallelize(3, kX);
  expectIdentity(one_axis, numbers({24}));
}

TEST_F(ShardTest, Errors) {
  TensorView* tv = input({-1, 6});
  expectError([&] { shardTensor(numbers({4, 6}), tv, 0); },
              {"shard_tensor: T0 has no DeviceMesh", "set_device_mesh"});
  on(tv, two)->outerSplit(0, 2)->parallelize(0, kX);
  expectError([&] { shardTensor(numbers({6}), tv, 0); },
              "shard_tensor: a tensor of 1 axes was given for T0, which has 2 axes");
  expectError([&] { shardTensor(numbers({5, 6}), tv, 0); },
              {"shard_tensor: Sharded axis must be evenly divisible by mesh", "of size 5",
               "not divisible by 2", "DeviceMesh{0 1} has 2 devices"});
  TensorView* logical = on(input({-1}), two);
  logical->parallelize(0, kX);
  expectError([&] { shardTensor(numbers({4}), logical, 0); },
              {"of T1 of size 4 is on mesh_x, which has 2 devices", "evenly divisible by mesh"});
}

// ---- blocks over a flattened mesh

TEST(ShardTensor1D, Blocks) {
  const at::Tensor global = numbers({4, 6});
  const DeviceMesh mesh({3, 1, 0}, {3});
  expectEqual(shardTensor1D(global, 1, mesh, 3), global.narrow(1, 0, 2).contiguous());
  expectEqual(shardTensor1D(global, 1, mesh, 1), global.narrow(1, 2, 2).contiguous());
  expectEqual(shardTensor1D(global, -1, mesh, 0), global.narrow(1, 4, 2).contiguous());
  EXPECT_TRUE(shardTensor1D(global, 1, mesh, 0).is_contiguous());
}

TEST(ShardTensor1D, MeshIsFlattened) {
  const at::Tensor global = numbers({8});
  expectEqual(shardTensor1D(global, 0, DeviceMesh::createForShape({2, 2}), 2),
              global.narrow(0, 4, 2));
}

TEST(ShardTensor1D, DeviceOutsideTheMesh) {
  EXPECT_EQ(sizes(shardTensor1D(numbers({4, 6}), 0, DeviceMesh({0, 1}), 5)), Sizes({0, 6}));
}

TEST(ShardTensor1D, Errors) {
  const DeviceMesh mesh({0, 1});
  expectError([&] { shardTensor1D(numbers({3}), 0, mesh, 0); },
              {"shard_tensor: Sharded axis must be evenly divisible by mesh", "axis 0 has size 3",
               "DeviceMesh{0 1} has 2 devices"});
  expectError([&] { shardTensor1D(numbers({4}), 1, mesh, 0); },
              "shard_tensor: axis 1 is out of range for a tensor of 1 axes");
  expectError([&] { shardTensor1D(numbers({4}), -2, mesh, 0); }, "axis -2 is out of range");
}

}  // namespace
}  // namespace meshfuse
