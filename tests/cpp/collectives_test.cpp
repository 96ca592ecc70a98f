// SPDX-License-Identifier: BSD-3-Clause
// Collectives of the backends that need one process only; collectives_mpi_test.cpp has the rest.
#include "collectives_conformance.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>

namespace meshfuse {
namespace {

Communicator& simulated(int64_t size) {
  static std::map<int64_t, std::unique_ptr<Communicator>> made;
  auto& group = made[size];
  if (!group) group = makeSimulatedCommunicator(size);
  return *group;
}

std::vector<CollectivesCase> cases() {
  std::vector<CollectivesCase> all;
  const auto add = [&](std::string name, int64_t size, std::vector<int64_t> devices) {
    all.push_back({std::move(name), [size]() -> Communicator& { return simulated(size); },
                   Team{std::move(devices)}});
  };
  for (const int64_t size : {1, 2, 3, 4, 8}) {
    std::vector<int64_t> devices(static_cast<size_t>(size));
    std::iota(devices.begin(), devices.end(), 0);
    add("simulated" + std::to_string(size), size, devices);
  }
  add("simulated4Reversed", 4, {3, 2, 1, 0});
  add("simulated4Mixed", 4, {2, 0, 3, 1});
  add("simulated8Slice", 8, {1, 3, 5, 7});
  add("simulated4Pair", 4, {3, 1});
  add("simulated4One", 4, {2});
  all.push_back({"single",
                 []() -> Communicator& {
                   static const auto kGroup = makeSingleCommunicator();
                   return *kGroup;
                 },
                 Team{{0}}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(OneProcess, Collectives, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST(MessagePieceBytes, IsReadFromTheEnvironment) {
  constexpr const char* kName = "MESHFUSE_MESSAGE_PIECE_BYTES";
  unsetenv(kName);
  EXPECT_EQ(messagePieceBytes(), int64_t{1} << 30);
  setenv(kName, "64", 1);
  EXPECT_EQ(messagePieceBytes(), 64);
  for (const char* wrong : {"0", "-1", "1.5", "many", "1 ", "2147483648"}) {
    setenv(kName, wrong, 1);
    expectError([] { messagePieceBytes(); },
                {"MESHFUSE_MESSAGE_PIECE_BYTES: \"", wrong,
                 "is not a positive integer below 2^31. Set it to a number of bytes such as"});
  }
  unsetenv(kName);
}

}  // namespace
}  // namespace meshfuse
