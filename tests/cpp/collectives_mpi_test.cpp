// SPDX-License-Identifier: BSD-3-Clause
// Run under mpirun with 2 and 4 ranks: the conformance suite over MPI, and how collectives fail.
#include "collectives_conformance.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>

namespace meshfuse {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Communicator& world() { return Communicator::instance(); }

Team everyone() {
  Team team{std::vector<int64_t>(static_cast<size_t>(world().size()))};
  std::iota(team.devices.begin(), team.devices.end(), 0);
  return team;
}

std::unique_ptr<Communicator> newGroup(const char* timeout = "20", const char* piece = "") {
  setenv("MESHFUSE_TIMEOUT", timeout, 1);
  setenv("MESHFUSE_MESSAGE_PIECE_BYTES", piece, 1);
  auto group = makeMpiCommunicator();
  group->barrier();
  return group;
}

/// A group whose messages go in pieces of 64 bytes. Ends before the world does.
std::unique_ptr<Communicator>& inPieces() {
  static std::unique_ptr<Communicator> group;
  return group;
}
Communicator& piecewise() {
  if (!inPieces()) inPieces() = newGroup("60", "64");
  return *inPieces();
}

std::vector<CollectivesCase> cases() {
  std::vector<CollectivesCase> all;
  const auto add = [&](const char* name, std::vector<int64_t> devices) {
    all.push_back({name, world, Team{std::move(devices)}});
  };
  const Team every = everyone();
  add("mpi", every.devices);
  add("mpiReversed", {every.devices.rbegin(), every.devices.rend()});
  add("mpiFirst", {0});
  add("mpiLast", {world().size() - 1});
  if (world().size() >= 4) {
    add("mpiSlice", {0, 2});
    add("mpiMixedThree", {3, 0, 1});
    add("mpiMixed", {2, 0, 3, 1});
    // Both rows of a 2 x 2 mesh at once: each rank is in one of the teams.
    add("mpiRows", world().rank() < 2 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{2, 3});
  }
  all.push_back({"mpiPieces", piecewise, every, /*long_messages=*/false});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Mpi, Collectives, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

// --- Failures ------------------------------------------------------------------------------------

PeerError peerErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const PeerError& error) {
    return error;
  }
  ADD_FAILURE() << "no PeerError";
  return {-1, "", ""};
}

void expectIn(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

void sum(Communicator& group, const Team& team, int64_t count = 1'000'000) {
  at::Tensor t = at::ones({count});
  group.allReduce({&t, 1}, team, ReduceKind::Sum);
  const bool is_member = std::ranges::find(team.devices, group.rank()) != team.devices.end();
  EXPECT_EQ(t[-1].item().toDouble(), is_member ? static_cast<double>(team.size()) : 1.0);
}

TEST(MpiCollectives, RankThatNeverComesIsNamed) {
  const auto group = newGroup("2");
  const auto last = static_cast<int>(group->size() - 1);
  if (group->rank() == last) {
    std::this_thread::sleep_for(3s);
  } else {
    const auto start = Clock::now();
    const PeerError error = peerErrorOf([&] { sum(*group, everyone()); });
    EXPECT_GT(secondsSince(start), 1.8);
    EXPECT_LT(secondsSince(start), 6);
    EXPECT_EQ(error.rank(), last);
    expectIn(
        concat("timed out after 2 s (MESHFUSE_TIMEOUT) in allReduce (call 2) without rank ", last),
        error.what());
  }
  group->shutdown(true);
}

TEST(MpiCollectives, FailureEndsTheWait) {
  for (const int64_t count : {int64_t{10}, int64_t{5'000'000}}) {
    const auto group = newGroup();
    const auto start = Clock::now();
    if (group->rank() == 1) {
      std::this_thread::sleep_for(200ms);
      group->reportFailure("K is 7, not 8");
    } else {
      const PeerError error = peerErrorOf([&] { sum(*group, everyone(), count); });
      EXPECT_EQ(error.rank(), 1);
      EXPECT_EQ(error.reason(), "K is 7, not 8");
      expectIn("allReduce: rank 1 failed, and rank ", error.what());
      const PeerError again = peerErrorOf([&] { sum(*group, everyone(), count); });
      EXPECT_STREQ(again.what(), error.what());
    }
    EXPECT_LT(secondsSince(start), 5);
    group->shutdown(true);
  }
}

TEST(MpiCollectives, ErrorOnOneRankReachesTheOthers) {
  const auto group = newGroup();
  const auto start = Clock::now();
  at::Tensor t = at::ones({4, 6}), chunk = at::zeros({group->rank() == 0 ? 3 : 24 / group->size()});
  const auto call = [&] {
    group->reduceScatter({&chunk, 1}, {&t, 1}, everyone(), ReduceKind::Sum);
  };
  if (group->rank() == 0) {
    expectError(call, "does not fit");
    group->reportFailure("wrong size");  // as an executor does
  } else {
    const PeerError error = peerErrorOf(call);
    EXPECT_EQ(error.rank(), 0);
    EXPECT_EQ(error.reason(), "wrong size");
  }
  EXPECT_LT(secondsSince(start), 5);
  group->shutdown(true);
}

TEST(MpiCollectives, SizesThatDifferBetweenRanksAreFound) {
  for (const int64_t other : {int64_t{8}, int64_t{12}}) {
    const auto group = newGroup();
    at::Tensor t = at::ones({group->rank() == 0 ? 10 : other});
    try {
      group->allReduce({&t, 1}, everyone(), ReduceKind::Sum);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerError& error) {
      expectIn("bytes", error.reason());
    } catch (const Error& error) {
      expectIn("expects", error.what());
      expectIn("All ranks must make the same calls with the same sizes and types.", error.what());
    }
    group->shutdown(true);
  }
}

TEST(MpiCollectives, PeerThatLeftIsNotWaitedFor) {
  const auto group = newGroup();
  if (group->rank() != 1) {
    const auto start = Clock::now();
    const PeerError error = peerErrorOf([&] { sum(*group, everyone()); });
    EXPECT_LT(secondsSince(start), 5);
    EXPECT_EQ(error.rank(), 1);
  }
  group->shutdown(false);
}

TEST(MpiCollectives, RanksOutsideOfATeamMayLeave) {
  const auto group = newGroup();
  const Team pair{{0, 1}};
  sum(*group, pair);
  for (int i = 0; i < 3 && group->rank() < 2; ++i) {
    std::this_thread::sleep_for(50ms);
    sum(*group, pair);
  }
  group->shutdown(false);
}

TEST(MpiCollectives, FailureOutsideOfTheTeamReachesThoseWhoWaitForIt) {
  if (world().size() < 4) GTEST_SKIP() << "needs 4 ranks";
  const auto group = newGroup();
  const auto start = Clock::now();
  // 0 waits for 1, which waits for 2, which leaves.
  if (group->rank() < 2) {
    const Team team = group->rank() == 0 ? Team{{0, 1}} : Team{{1, 2}};
    const PeerError error = peerErrorOf([&] { sum(*group, team); });
    EXPECT_EQ(error.rank(), 2) << error.what();
  }
  EXPECT_LT(secondsSince(start), 5);
  group->shutdown(false);
}

TEST(MpiCollectives, InterruptEndsTheWaitEverywhere) {
  const auto group = newGroup();
  const auto start = Clock::now();
  if (group->rank() == 0) {
    setInterruptCheck([] { throw std::runtime_error("SIGINT"); });
    EXPECT_THROW(sum(*group, everyone()), std::runtime_error);
    setInterruptCheck({});
  } else {
    std::this_thread::sleep_for(300ms);
    const PeerError error = peerErrorOf([&] { sum(*group, everyone()); });
    EXPECT_EQ(error.rank(), 0);
    expectIn("stopped waiting in allReduce (call 2): SIGINT", error.what());
  }
  EXPECT_LT(secondsSince(start), 5);
  group->shutdown(true);
}

TEST(MpiCollectives, CallsOfSeveralThreadsFollowOneAnother) {
  const auto group = newGroup();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) sum(*group, everyone(), 1000);
    });
  for (std::thread& t : threads) t.join();
  group->shutdown(false);
}

TEST(MpiCollectives, PieceSizeIsChecked) {
  setenv("MESHFUSE_MESSAGE_PIECE_BYTES", "none", 1);
  expectError([] { makeMpiCommunicator(); }, "\"none\" is not a positive integer below 2^31");
  unsetenv("MESHFUSE_MESSAGE_PIECE_BYTES");
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

int main(int argc, char** argv) {
  meshfuse::Communicator& world = meshfuse::Communicator::instance();
  testing::InitGoogleTest(&argc, argv);
  if (world.rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new meshfuse::FailurePrinter);
  }
  const int result = RUN_ALL_TESTS();
  if (meshfuse::inPieces()) meshfuse::inPieces()->shutdown(result != 0);
  world.shutdown(result != 0);
  return result;
}
