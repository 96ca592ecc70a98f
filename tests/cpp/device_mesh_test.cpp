// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ir/device_mesh.h>

#include "expect_error.h"

namespace meshfuse {
namespace {

using List = std::vector<int64_t>;
constexpr ParallelType kX = ParallelType::DIDx, kY = ParallelType::DIDy, kZ = ParallelType::DIDz;

TEST(DeviceMesh, DefaultIsNoMesh) {
  const DeviceMesh none;
  EXPECT_EQ(none.rank(), -1);
  EXPECT_EQ(none.size(), 0);
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.has(0));
  EXPECT_FALSE(none.hasParallelType(kX));
  EXPECT_EQ(none.axisOf(kX), -1);
  EXPECT_EQ(none.maxDeviceId(), -1);
  EXPECT_EQ(none.toString(), "DeviceMesh{}");
}

TEST(DeviceMesh, TwoByThree) {
  const DeviceMesh mesh({3, 4, 1, 0, 8, 2}, {2, 3});
  EXPECT_EQ(mesh.rank(), 2);
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.size(kX), 3);
  EXPECT_EQ(mesh.size(kY), 2);
  EXPECT_EQ(mesh.multiDimensionalIndexOf(8), List({1, 1}));
  EXPECT_EQ(mesh.multiDimensionalIndexOf(1), List({0, 2}));
  EXPECT_EQ(mesh.getSlice(1, kX), List({3, 4, 1}));
  EXPECT_EQ(mesh.getSlice(1, kY), List({1, 2}));
  EXPECT_EQ(mesh.getSlice(8, kX), List({0, 8, 2}));
  EXPECT_EQ(mesh.getSlice(8, kY), List({4, 8}));
  EXPECT_EQ(mesh.linearIndexOf(8), 4);
  EXPECT_EQ(mesh.at(4), 8);
  EXPECT_EQ(mesh.maxDeviceId(), 8);
  EXPECT_EQ(mesh.toString(), "DeviceMesh{{3 4 1}{0 8 2}}");
}

TEST(DeviceMesh, ForShapeOfThree) {
  const DeviceMesh mesh = DeviceMesh::createForShape({2, 3, 4});
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.multiDimensionalIndexOf(18), List({1, 1, 2}));
  EXPECT_EQ(mesh.getSlice(18, kZ), List({6, 18}));
  EXPECT_EQ(mesh.getSlice(18, kY), List({14, 18, 22}));
  EXPECT_EQ(mesh.getSlice(18, kX), List({16, 17, 18, 19}));
}

TEST(DeviceMesh, LastDimensionIsX) {
  const DeviceMesh mesh = DeviceMesh::createForShape({2, 3, 4});
  EXPECT_EQ(mesh.axisOf(kZ), 0);
  EXPECT_EQ(mesh.axisOf(kY), 1);
  EXPECT_EQ(mesh.axisOf(kX), 2);
  EXPECT_EQ(mesh.axisOf(ParallelType::Stream), -1);
  EXPECT_EQ(mesh.axisOf(ParallelType::Serial), -1);
  const DeviceMesh line = DeviceMesh::createForNumDevices(4);
  EXPECT_TRUE(line.hasParallelType(kX));
  EXPECT_FALSE(line.hasParallelType(kY));
  EXPECT_FALSE(line.hasParallelType(ParallelType::TIDx));
}

TEST(DeviceMesh, IndexOnAnAxis) {
  const DeviceMesh mesh({3, 4, 1, 0, 8, 2}, {2, 3});
  EXPECT_EQ(mesh.indexOn(1, kX), 2);
  EXPECT_EQ(mesh.indexOn(1, kY), 0);
  EXPECT_FALSE(mesh.indexOn(1, kZ).has_value());
  EXPECT_FALSE(mesh.indexOn(7, kX).has_value());
}

TEST(DeviceMesh, AbsentDevice) {
  const DeviceMesh mesh({3, 1});
  EXPECT_FALSE(mesh.has(0));
  EXPECT_EQ(mesh.linearIndexOf(0), -1);
  EXPECT_TRUE(mesh.multiDimensionalIndexOf(0).empty());
  expectError([&] { mesh.getSlice(0, kX); },
              {"getSlice: device 0 is not in DeviceMesh{3 1}", "Ask for a device of the mesh"});
}

TEST(DeviceMesh, AbsentAxis) {
  const DeviceMesh mesh({3, 1});
  expectError([&] { mesh.size(kY); },
              "DeviceMesh{3 1} (rank 1) does not have parallel type mesh_y");
  expectError([&] { mesh.getSlice(3, kY); }, "does not have parallel type mesh_y");
  expectError([] { DeviceMesh().size(kX); }, "does not have parallel type mesh_x");
}

TEST(DeviceMesh, EqualityIsOfShapeAndOrder) {
  const DeviceMesh mesh({0, 1, 2, 3}, {2, 2});
  EXPECT_EQ(mesh, DeviceMesh::createForShape({2, 2}));
  EXPECT_FALSE(mesh == DeviceMesh({0, 1, 2, 3}));
  EXPECT_FALSE(mesh == DeviceMesh({0, 2, 1, 3}, {2, 2}));
  EXPECT_FALSE(mesh == DeviceMesh());
  EXPECT_EQ(DeviceMesh(), DeviceMesh());
}

TEST(DeviceMesh, NumDevices) {
  EXPECT_EQ(DeviceMesh::createForNumDevices(3), DeviceMesh({0, 1, 2}));
  EXPECT_EQ(DeviceMesh::createForNumDevices(3).toString(), "DeviceMesh{0 1 2}");
  expectError([] { DeviceMesh::createForNumDevices(0); },
              "Every mesh axis needs at least one device");
}

TEST(DeviceMesh, RefusesDuplicates) {
  expectError([] { DeviceMesh({0, 1, 0}); },
              "DeviceMesh: found duplicates: device 0 stands more than once in [0, 1, 0]");
}

TEST(DeviceMesh, RefusesNegativeDevices) {
  expectError([] { DeviceMesh({0, -1}); }, "device -1 of [0, -1] is negative");
}

TEST(DeviceMesh, RefusesNoDevices) {
  expectError([] { DeviceMesh(List{}); }, "DeviceMesh: the list of devices is empty");
  expectError([] { DeviceMesh(List{}, List{0}); }, "DeviceMesh: the list of devices is empty");
  expectError([] { DeviceMesh::createForShape({2, 0}); }, "shape [2, 0] has an axis of 0 devices");
}

TEST(DeviceMesh, RefusesShapesThatDoNotFit) {
  expectError([] { DeviceMesh({0, 1, 2}, {2, 2}); },
              "shape [2, 2] holds 4 devices, but 3 were given: [0, 1, 2]");
  expectError([] { DeviceMesh({0}, {1, 1, 1, 1}); }, "at most 3 (mesh_z, mesh_y, mesh_x)");
  expectError([] { DeviceMesh({0, 1}, {-1, -2}); }, "shape [-1, -2]");
}

TEST(DeviceMesh, Names) {
  const DeviceMesh mesh({0, 1, 2, 3}, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(mesh.axisNamed("dp"), kY);
  EXPECT_EQ(mesh.axisNamed("tp"), kX);
  EXPECT_FALSE(mesh.axisNamed("pp").has_value());
  EXPECT_FALSE(DeviceMesh({0, 1}).axisNamed("tp").has_value());
  EXPECT_EQ(mesh, DeviceMesh::createForShape({2, 2}));
  expectError([] { DeviceMesh({0, 1}, {2}, {"dp", "tp"}); }, "2 names were given for 1 mesh axes");
  expectError([] { DeviceMesh({0, 1}, {1, 2}, {"tp", "tp"}); },
              "the name 'tp' stands for more than one mesh axis");
}

TEST(DeviceMesh, Largest) {
  EXPECT_EQ(DeviceMesh::createForNumDevices(kMaxDevices).size(), kMaxDevices);
  expectError([] { DeviceMesh::createForNumDevices(kMaxDevices + 1); },
              "shape [1048577] has more than 1048576 devices, the most that are possible.");
  expectError([] { DeviceMesh::createForShape({int64_t{1} << 40, int64_t{1} << 40}); },
              "has more than 1048576 devices");
  expectError([] { DeviceMesh(List(kMaxDevices + 1, 0)); },
              "DeviceMesh: 1048577 devices were given, at most 1048576 are possible.");
  expectError([] { DeviceMesh({0, 1048576}); },
              "DeviceMesh: device 1048576 is too large. Devices are numbered from 0, at most "
              "1048575.");
}

}  // namespace
}  // namespace meshfuse
