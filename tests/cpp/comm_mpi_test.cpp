// SPDX-License-Identifier: BSD-3-Clause
// Run under mpirun with 2 and 4 ranks. A PeerError closes a group for good, so each test that wants
// one makes a group of its own. With --leave=<how> the program shows one way to end instead
// (tests/mpi_leaving.sh).
#include <gtest/gtest.h>
#include <meshfuse/base/error.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/comm/proposal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace meshfuse {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Communicator& world() { return Communicator::instance(); }

/// A group of its own, and a common start.
std::unique_ptr<Communicator> newGroup(const char* timeout = "20") {
  setenv("MESHFUSE_TIMEOUT", timeout, 1);
  auto group = makeMpiCommunicator();
  group->barrier();
  return group;
}

PeerError peerErrorOf(Communicator& group) {
  try {
    group.barrier();
  } catch (const PeerError& error) {
    return error;
  }
  ADD_FAILURE() << "barrier threw no PeerError";
  return {-1, "", ""};
}

void expectIn(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST(Mpi, KnowsItsRanks) {
  const LauncherEnv env = readLauncherEnv();
  ASSERT_TRUE(env.found);
  EXPECT_EQ(world().backend(), "mpi");
  EXPECT_TRUE(world().isAvailable());
  EXPECT_EQ(world().rank(), env.rank);
  EXPECT_EQ(world().deviceId(), env.rank);
  EXPECT_EQ(world().size(), env.size);
  EXPECT_EQ(world().localRank(), env.local_rank);
  EXPECT_EQ(world().localSize(), env.local_size);
  ASSERT_EQ(world().localRanks().size(), 1U);
  EXPECT_EQ(world().localRanks()[0], env.rank);
}

TEST(Mpi, BarrierWaitsForTheLast) {
  world().barrier();
  const auto start = Clock::now();
  if (world().rank() == world().size() - 1) std::this_thread::sleep_for(300ms);
  world().barrier();
  EXPECT_GT(secondsSince(start), 0.29);
  EXPECT_LT(secondsSince(start), 5);
}

TEST(Mpi, ManyBarriersAreQuick) {
  const auto start = Clock::now();
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) world().barrier();
  const double us = secondsSince(start) / kCount * 1e6;
  if (world().rank() == 0) std::printf("             a barrier takes %.1f us\n", us);
  EXPECT_LT(us, 20000);  // ranks may outnumber the cores many times
}

TEST(Mpi, BarriersOfTwoThreadsFollowOneAnother) {
  auto work = [] {
    for (int i = 0; i < 50; ++i) world().barrier();
  };
  std::thread other(work);
  work();
  other.join();
}

TEST(Mpi, FailureOfAPeerEndsTheWait) {
  const auto group = newGroup();
  const auto start = Clock::now();
  if (group->rank() == 1) {
    std::this_thread::sleep_for(200ms);
    group->reportFailure("K is 7, not 8");
    const PeerError own = peerErrorOf(*group);
    EXPECT_EQ(own.rank(), 1);
    expectIn("rank 1 (this one) failed before, which closed the group: K is 7, not 8", own.what());
  } else {
    const PeerError error = peerErrorOf(*group);
    EXPECT_LT(secondsSince(start), 5);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.reason(), "K is 7, not 8");
    expectIn("barrier: rank 1 failed", error.what());
    expectIn("in barrier (call 2)", error.what());
    expectIn("Reason: K is 7, not 8", error.what());
    const auto again = Clock::now();  // closed: the same error, at once
    EXPECT_STREQ(peerErrorOf(*group).what(), error.what());
    EXPECT_LT(secondsSince(again), 1);
  }
  group->shutdown(true);
}

TEST(Mpi, FailureBeforeTheCallIsFoundAtItsStart) {
  const auto group = newGroup();
  if (group->rank() == 0) group->reportFailure("early");
  std::this_thread::sleep_for(200ms);
  const auto start = Clock::now();
  EXPECT_EQ(peerErrorOf(*group).rank(), 0);
  EXPECT_LT(secondsSince(start), 5);
  group->shutdown(true);
}

TEST(Mpi, FailureReasonMayBeLong) {
  const auto group = newGroup();
  if (group->rank() == 1) {
    group->reportFailure(std::string(1'000'000, 'x'));
  } else {
    EXPECT_GT(peerErrorOf(*group).reason().size(), 1000U);
  }
  group->shutdown(true);
}

TEST(Mpi, RefusalOfAllRanksClosesNothing) {
  const auto group = newGroup();
  for (int i = 0; i < 3; ++i) {
    group->reportRefusal("the same on all ranks");
    group->barrier();
  }
  group->reportRefusal("the same on all ranks");
  if (group->rank() == 0) std::this_thread::sleep_for(300ms);  // the others wait
  group->barrier();
  group->shutdown(false);
}

TEST(Mpi, RefusalOfOneRankEndsTheWait) {
  const auto group = newGroup();
  if (group->rank() == 0) {
    std::this_thread::sleep_for(200ms);
    group->reportRefusal("bad input on one rank");
    std::this_thread::sleep_for(500ms);
  }
  const PeerError error = peerErrorOf(*group);
  if (group->rank() != 0) {
    EXPECT_EQ(error.rank(), 0);
  }
  expectIn("bad input on one rank", error.what());
  group->shutdown(true);
}

// --- Agreement -----------------------------------------------------------------------------------

/// Ranks that have the same number run the same.
class NumberProposal final : public Proposal {
 public:
  explicit NumberProposal(int64_t number) : number_(number) {}
  uint64_t fingerprint(int64_t) const override { return static_cast<uint64_t>(number_); }
  std::string describe() const override { return concat("number ", number_); }
  void disagree(std::span<const Statement> statements) const override {
    std::string text;
    for (const auto& [rank, statement] : statements)
      text += concat("rank ", rank, " has ", statement, "; ");
    throw Error(text);
  }

 private:
  int64_t number_;
};

Team everyone(const Communicator& group) {
  Team team;
  for (int64_t d = 0; d < group.size(); ++d) team.devices.push_back(d);
  return team;
}

void agreeOn(Communicator& group, const Team& team, int64_t number) {
  const NumberProposal proposal(number);
  group.beginExecution(team, proposal);
  try {
    group.agree();
    group.agree();  // nothing to do any more
    group.endExecution();
  } catch (const std::exception& error) {
    group.abandonExecution(error.what());
    throw;
  }
}

TEST(MpiAgreement, SameOnAllRanks) {
  const auto group = newGroup();
  for (int i = 0; i < 300; ++i) agreeOn(*group, everyone(*group), i);
  group->barrier();
  group->shutdown(false);
}

TEST(MpiAgreement, DifferenceIsKnownToAllAndClosesNothing) {
  const auto group = newGroup();
  for (int64_t odd = 0; odd < group->size(); ++odd) {
    try {
      agreeOn(*group, everyone(*group), group->rank() == odd ? 7 : 5);
      ADD_FAILURE() << "no Error";
    } catch (const Error& error) {
      for (int64_t r = 0; r < group->size(); ++r)
        expectIn(concat("rank ", r, " has number ", r == odd ? 7 : 5, ";"), error.what());
    }
    agreeOn(*group, everyone(*group), odd);
  }
  group->barrier();
  group->shutdown(false);
}

TEST(MpiAgreement, RefusalOfOneRankClosesNothing) {
  const auto group = newGroup();
  const Team team = everyone(*group);
  for (int64_t odd = 0; odd < group->size(); ++odd) {
    if (group->rank() == odd) {
      group->refuseExecution(team, "K is 7");
    } else {
      try {
        agreeOn(*group, team, 5);
        ADD_FAILURE() << "no PeerError";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.rank(), odd);
        EXPECT_EQ(error.reason(), "K is 7");
        expectIn("Nothing was communicated, and the group goes on. Reason: K is 7", error.what());
      }
    }
    agreeOn(*group, team, odd);
  }
  group->refuseExecution(team, "on all ranks");
  agreeOn(*group, team, 1);
  group->barrier();
  group->shutdown(false);
}

TEST(MpiAgreement, AbandonedExecutionEndsTheWaitInItsCollectives) {
  const auto group = newGroup();
  const NumberProposal proposal(1);
  group->beginExecution(everyone(*group), proposal);
  group->agree();
  const auto start = Clock::now();
  if (group->rank() == 1) {
    std::this_thread::sleep_for(200ms);
    group->abandonExecution("index out of range");
    std::this_thread::sleep_for(500ms);
  }
  const PeerError error = peerErrorOf(*group);
  EXPECT_LT(secondsSince(start), 5);
  if (group->rank() != 1) {
    EXPECT_EQ(error.rank(), 1);
    group->endExecution();
  }
  expectIn("index out of range", error.what());
  group->shutdown(true);
}

TEST(MpiAgreement, AbandonmentByAllRanksClosesNothing) {
  const auto group = newGroup();
  const NumberProposal proposal(1);
  for (int i = 0; i < 3; ++i) {
    group->beginExecution(everyone(*group), proposal);
    if (i > 0) group->agree();
    group->abandonExecution("the same on all ranks");
    agreeOn(*group, everyone(*group), i);
    group->barrier();
  }
  group->shutdown(false);
}

TEST(MpiAgreement, RanksOutsideOfTheTeamAreNotAwaited) {
  const auto group = newGroup();
  const int64_t last = group->size() - 1;
  if (last > 1) {
    Team team = everyone(*group);
    team.devices.pop_back();
    if (group->rank() != last)
      for (int i = 0; i < 20; ++i) agreeOn(*group, team, i);
  }
  agreeOn(*group, everyone(*group), 1);
  group->shutdown(false);
}

TEST(MpiAgreement, TimeoutNamesWhoIsMissing) {
  const auto group = newGroup("2");
  const auto last = static_cast<int>(group->size() - 1);
  if (group->rank() == last) {
    std::this_thread::sleep_for(3s);
    EXPECT_NE(peerErrorOf(*group).rank(), last);
  } else {
    try {
      agreeOn(*group, everyone(*group), 1);
      ADD_FAILURE() << "no PeerError";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), last);
      expectIn(
          concat("timed out after 2 s (MESHFUSE_TIMEOUT) in execute (call 2) without rank ", last),
          error.what());
    }
  }
  group->shutdown(true);
}

TEST(MpiAgreement, RankInABarrierIsNotAwaited) {
  const auto group = newGroup();
  const auto start = Clock::now();
  if (group->rank() == 1) {
    expectIn("waits in a barrier", peerErrorOf(*group).what());
  } else {
    try {
      agreeOn(*group, everyone(*group), 1);
      ADD_FAILURE() << "no PeerError";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 1);
      expectIn("waits in a barrier", error.what());
    }
  }
  EXPECT_LT(secondsSince(start), 10);
  group->shutdown(true);
}

TEST(Mpi, PeerThatLeftIsNotWaitedFor) {
  const auto group = newGroup();
  if (group->rank() == 1) {
    group->shutdown(false);
  } else {
    const auto start = Clock::now();
    const PeerError error = peerErrorOf(*group);
    EXPECT_LT(secondsSince(start), 5);
    EXPECT_EQ(error.rank(), 1);
    expectIn("rank 1 left the group after 1 calls because its program ended", error.what());
    group->shutdown(false);
  }
}

TEST(Mpi, TimeoutNamesWhoIsMissing) {
  const auto group = newGroup("2");
  const auto last = static_cast<int>(group->size() - 1);
  const auto start = Clock::now();
  if (group->rank() == last) {
    std::this_thread::sleep_for(3s);
    const auto late = Clock::now();
    const PeerError error = peerErrorOf(*group);  // the others gave up on it
    EXPECT_LT(secondsSince(late), 1);
    EXPECT_NE(error.rank(), last);
    expectIn("timed out after 2 s", error.what());
  } else {
    const PeerError error = peerErrorOf(*group);
    EXPECT_GT(secondsSince(start), 1.8);
    EXPECT_LT(secondsSince(start), 5);
    EXPECT_EQ(error.rank(), last);
    expectIn(
        concat("timed out after 2 s (MESHFUSE_TIMEOUT) in barrier (call 2) without rank ", last),
        error.what());
  }
  group->shutdown(true);
}

TEST(Mpi, InterruptEndsTheWaitEverywhere) {
  const auto group = newGroup();
  const auto start = Clock::now();
  if (group->rank() == 0) {
    setInterruptCheck([] { throw std::runtime_error("SIGINT"); });
    EXPECT_THROW(group->barrier(), std::runtime_error);
    setInterruptCheck({});
  } else {
    std::this_thread::sleep_for(300ms);
    const PeerError error = peerErrorOf(*group);
    EXPECT_EQ(error.rank(), 0);
    expectIn("stopped waiting in barrier (call 2): SIGINT", error.what());
  }
  EXPECT_LT(secondsSince(start), 5);
  group->shutdown(true);
}

TEST(Mpi, ShutdownIsOrderlyAndOnceOnly) {
  const auto group = newGroup();
  group->barrier();
  group->shutdown(false);
  group->shutdown(false);
  group->shutdown(true);
  try {
    group->barrier();
    FAIL() << "no Error";
  } catch (const Error& error) {
    expectIn("has left the group already (at exit)", error.what());
  }
}

TEST(Mpi, ForkedChildIsNoMember) {
  world().barrier();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    world().reportFailure("never sent");
    world().shutdown(true);
    bool refused = false;
    try {
      world().barrier();
    } catch (const Error& error) {
      refused = std::string(error.what()).find("forked child") != std::string::npos;
    }
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  world().barrier();
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

int leave(const std::string& how) {
  Communicator& group = world();
  group.barrier();
  const bool last = group.rank() == group.size() - 1;
  if (how == "return") return 0;
  if (how == "exit3") std::exit(3);
  if (how == "skewed") {  // the first is done long before the last
    if (last) std::this_thread::sleep_for(4s);
    return 0;
  }
  if (how == "kill" && last) raise(SIGKILL);
  if (how == "throw" && last) throw std::runtime_error("nobody catches this");
  if (how == "fail-while-busy") {
    if (last) {
      group.reportFailure("bad input");
      return 1;
    }
    std::this_thread::sleep_for(60s);  // never looks
  }
  if (how == "fail" && last) {
    group.reportFailure("bad input");
    return 1;
  }
  if (how == "leave-early" && last) return 0;
  try {
    group.barrier();
  } catch (const PeerError& error) {
    std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(group.rank()), error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace meshfuse

int main(int argc, char** argv) {
  meshfuse::Communicator& world = meshfuse::Communicator::instance();
  const std::string how = argc > 1 ? argv[1] : "";
  if (how.starts_with("--leave=")) return meshfuse::leave(how.substr(8));
  testing::InitGoogleTest(&argc, argv);
  if (world.rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new meshfuse::FailurePrinter);
  }
  const int result = RUN_ALL_TESTS();
  world.shutdown(result != 0);
  return result;
}
