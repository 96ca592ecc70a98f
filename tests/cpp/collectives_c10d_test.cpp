// SPDX-License-Identifier: BSD-3-Clause
// The conformance suite over the process group of a Python program, which loads this as a module
// and calls meshfuseRunC10dTests (tests/python/multidevice/test_c10d_conformance.py).
#include "collectives_conformance.h"

#include <meshfuse/comm/collective_call.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>

namespace meshfuse {
namespace {

using namespace std::chrono_literals;

Communicator& world() { return Communicator::instance(); }

Team everyone() {
  Team team{std::vector<int64_t>(static_cast<size_t>(world().size()))};
  std::iota(team.devices.begin(), team.devices.end(), 0);
  return team;
}

std::vector<CollectivesCase> cases() {
  std::vector<CollectivesCase> all;
  const auto add = [&](const char* name, std::vector<int64_t> devices) {
    all.push_back({name, world, Team{std::move(devices)}});
  };
  const Team every = everyone();
  add("c10d", every.devices);
  add("c10dReversed", {every.devices.rbegin(), every.devices.rend()});
  add("c10dLast", {world().size() - 1});
  if (world().size() >= 4) {
    add("c10dSlice", {0, 2});
    add("c10dMixedThree", {3, 0, 1});
    // Both rows of a 2 x 2 mesh at once: each rank is in one of the teams.
    add("c10dRows", world().rank() < 2 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{2, 3});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(C10d, Collectives, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

/// Opens what a backend does of a collective.
struct Transport : Communicator {
  using Communicator::runAllReduce;
  using Communicator::runBroadcast;
  using Communicator::runReduce;
  using Communicator::runReduceScatter;
  using Communicator::runTransfers;
};

// A team of one needs no transport, so public calls do not come that far; but every type and kind
// must be what NCCL takes, or be reduced without it.
TEST(C10dCollectives, NcclTakesEveryCallOfOneRank) {
  Communicator& group = world();
  if (!group.carriesCuda()) GTEST_SKIP() << "no NCCL";
  const Team me{{group.rank()}};
  const int64_t places[] = {0};
  std::mt19937 generator(7);
  for (const at::ScalarType type : allTypes()) {
    if (c10::isQIntType(type)) continue;
    SCOPED_TRACE(c10::toString(type));
    at::Tensor bits = emptyOfType({6, 2}, type);
    fillWithBits(bits, generator);
    Tensors in = {bits.to(at::kCUDA)}, out = {in[0].clone()};
    const auto expectMoved = [&](std::string_view what) {
      EXPECT_TRUE(sameBits(out[0].cpu(), bits)) << what;
      out[0].view(at::kByte).zero_();
    };
    for (const std::string_view what : {"allGather", "allToAll", "sendRecv"}) {
      const Transfer transfer{
          me.devices[0], me.devices[0], static_cast<const std::byte*>(in[0].const_data_ptr()),
          static_cast<std::byte*>(out[0].mutable_data_ptr()), static_cast<int64_t>(bits.nbytes())};
      (group.*(&Transport::runTransfers))({what, me, places, out, in}, {&transfer, 1});
      expectMoved(what);
    }
    (group.*(&Transport::runBroadcast))({"broadcast", me, places, in, in}, 0);
    EXPECT_TRUE(sameBits(in[0].cpu(), bits));
  }
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kChar,
        at::kByte, at::kShort, at::kBool, at::kComplexFloat, at::kComplexDouble})
    for (const ReduceKind kind : kAllKinds) {
      if (!isDefined(type, kind)) continue;
      SCOPED_TRACE(testing::Message() << type << " " << name(kind));
      const at::Tensor values = at::arange(12, at::kLong).sub(5).to(type).view({6, 2});
      Tensors in = {values.to(at::kCUDA)}, out = {at::zeros({6, 2}, in[0].options())};
      const auto expectReduced = [&] {
        EXPECT_TRUE(sameBits(out[0].cpu(), values));
        out[0].zero_();
      };
      (group.*(&Transport::runAllReduce))({"allReduce", me, places, out, in}, kind);
      expectReduced();
      (group.*(&Transport::runReduce))({"reduce", me, places, out, in}, 0, kind);
      expectReduced();
      (group.*(&Transport::runReduceScatter))({"reduceScatter", me, places, out, in}, kind);
      expectReduced();
    }
}

TEST(C10dCollectives, CallsThatDifferAreErrorsEverywhere) {
  Communicator& group = world();
  if (group.size() == 1) GTEST_SKIP() << "one rank";
  for (int i = 0; i < 3; ++i) {
    at::Tensor t = at::ones({group.rank() == 0 ? 8 : 10});
    expectError([&] { group.allReduce({&t, 1}, everyone(), ReduceKind::Sum); },
                {"allReduce: the ranks make different calls: rank 0 makes allReduce in the team {0",
                 "sum of 32 bytes of Float; rank 1 makes", "sum of 40 bytes of Float",
                 "Nothing was communicated."});
    at::Tensor all = at::ones({4});
    group.allReduce({&all, 1}, everyone(), ReduceKind::Sum);
    EXPECT_EQ(all[3].item().toDouble(), static_cast<double>(group.size()));
    const std::vector<SendRecvPair> pairs = {{0, 1}};
    Tensors mine = {t}, none;
    const auto send = [&] {
      group.sendRecv(group.rank() == 1 ? mine : none, group.rank() == 0 ? mine : none, pairs);
    };
    if (group.rank() > 1) {
      send();  // takes no part
    } else {
      expectError(send, {"sendRecv: the ranks make different calls",
                         "32 bytes to and 0 from rank 1", "0 bytes to and 40 from rank 0"});
    }
  }
}

TEST(C10dCollectives, CallsOfSeveralThreadsFollowOneAnother) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int k = 0; k < 20; ++k) {
        at::Tensor t = at::ones({1000});
        world().allReduce({&t, 1}, everyone(), ReduceKind::Sum);
        EXPECT_EQ(t[-1].item().toDouble(), static_cast<double>(world().size()));
      }
    });
  for (std::thread& t : threads) t.join();
}

TEST(C10dCollectives, BarrierWaitsForAll) {
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (world().rank() == i % world().size()) std::this_thread::sleep_for(50ms);
    world().barrier();
    if (world().size() > 1) {
      EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
    }
  }
}

/// Rank 0 prints all; the others only what fails.
class FailurePrinter : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override { test_ = test.name(); }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d, %s, line %d: %s\n", static_cast<int>(world().rank()),
                 test_.c_str(), result.line_number(), result.message());
  }
  std::string test_ = "outside of tests";
};

}  // namespace
}  // namespace meshfuse

/// Runs all tests; 0 if none failed. The program has a communicator already. `tests` receives their
/// number.
extern "C" int meshfuseRunC10dTests(int* tests) {
  int argc = 1;
  char name[] = "collectives_c10d_test";
  char* argv[] = {name, nullptr};
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new meshfuse::FailurePrinter);
  const int result = RUN_ALL_TESTS();
  *tests = testing::UnitTest::GetInstance()->successful_test_count();
  return result;
}
