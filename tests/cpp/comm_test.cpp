// SPDX-License-Identifier: BSD-3-Clause
// Communicators as far as one process can show them; comm_mpi_test.cpp has the rest.
#include <gtest/gtest.h>
#include <meshfuse/base/error.h>
#include <meshfuse/comm/c10d.h>
#include <meshfuse/comm/mpi_plugin.h>
#include <meshfuse/comm/select.h>
#include <meshfuse/comm/waiting.h>

#include <cstdlib>
#include <map>
#include <thread>

namespace meshfuse {
namespace {

/// Environment variables for the length of a test; nullptr unsets one.
class ScopedEnv {
 public:
  explicit ScopedEnv(const std::map<std::string, const char*>& values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      old_.emplace(name, old ? std::optional<std::string>(old) : std::nullopt);
      set(name, value);
    }
  }
  ~ScopedEnv() {
    for (const auto& [name, value] : old_) set(name, value ? value->c_str() : nullptr);
  }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  static void set(const std::string& name, const char* value) {
    if (value)
      setenv(name.c_str(), value, 1);
    else
      unsetenv(name.c_str());
  }
  std::map<std::string, std::optional<std::string>> old_;
};

/// No launcher, whatever started the tests; then `values`.
std::map<std::string, const char*> onlyThese(const std::map<std::string, const char*>& values) {
  std::map<std::string, const char*> all;
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "PMI_RANK",
        "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MESHFUSE_BACKEND", "MESHFUSE_TIMEOUT"})
    all[name] = nullptr;
  for (const auto& [name, value] : values) all[name] = value;
  return all;
}

template <class F>
std::string messageOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no Error)";
}

void expectIn(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST(LauncherEnv, WithoutLauncher) {
  const ScopedEnv env(onlyThese({}));
  const LauncherEnv found = readLauncherEnv();
  EXPECT_FALSE(found.found);
  EXPECT_FALSE(found.mpi);
  EXPECT_EQ(found.rank, 0);
  EXPECT_EQ(found.size, 1);
  EXPECT_EQ(found.local_rank, 0);
  EXPECT_EQ(found.local_size, 1);
}

TEST(LauncherEnv, OpenMpiComesFirst) {
  const ScopedEnv env(onlyThese({{"OMPI_COMM_WORLD_RANK", "3"},
                                 {"OMPI_COMM_WORLD_SIZE", "8"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                 {"RANK", "0"},
                                 {"WORLD_SIZE", "1"},
                                 {"SLURM_PROCID", "0"}}));
  const LauncherEnv found = readLauncherEnv();
  EXPECT_TRUE(found.found);
  EXPECT_TRUE(found.mpi);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
}

TEST(LauncherEnv, TorchrunBeforeSlurm) {
  const ScopedEnv env(onlyThese({{"RANK", "2"},
                                 {"WORLD_SIZE", "4"},
                                 {"LOCAL_RANK", "0"},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"SLURM_PROCID", "1"},
                                 {"SLURM_NTASKS", "2"},
                                 {"SLURM_LOCALID", "1"}}));
  const LauncherEnv found = readLauncherEnv();
  EXPECT_TRUE(found.found);
  EXPECT_FALSE(found.mpi);
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.size, 4);
  EXPECT_EQ(found.local_rank, 0);
  EXPECT_EQ(found.local_size, 2);
}

TEST(LauncherEnv, Slurm) {
  const ScopedEnv env(onlyThese({{"SLURM_PROCID", "5"},
                                 {"SLURM_NTASKS", "6"},
                                 {"SLURM_LOCALID", "2"},
                                 {"SLURM_NTASKS_PER_NODE", "3"}}));
  const LauncherEnv found = readLauncherEnv();
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.size, 6);
  EXPECT_EQ(found.local_rank, 2);
  EXPECT_EQ(found.local_size, 3);
}

TEST(LauncherEnv, SlurmAllocationWithoutTaskIsNoLauncher) {
  const ScopedEnv env(onlyThese({{"SLURM_NTASKS", "6"}}));
  EXPECT_FALSE(readLauncherEnv().found);
  EXPECT_EQ(readLauncherEnv().size, 1);
}

TEST(LauncherEnv, RefusesWhatIsNoNumber) {
  const ScopedEnv env(onlyThese({{"RANK", "one"}, {"WORLD_SIZE", "2"}}));
  expectIn("the environment variable RANK is \"one\", which is not an integer of at least 0",
           messageOf(readLauncherEnv));
}

TEST(LauncherEnv, RefusesRankBeyondSize) {
  const ScopedEnv env(onlyThese({{"RANK", "2"}, {"WORLD_SIZE", "2"}}));
  expectIn("RANK=2 is not below WORLD_SIZE=2", messageOf(readLauncherEnv));
}

TEST(ChooseBackend, ByLauncher) {
  EXPECT_EQ(chooseBackend({}, "", false), Backend::Single);
  EXPECT_EQ(chooseBackend({.size = 2, .found = true, .mpi = true}, "", false), Backend::Mpi);
  EXPECT_EQ(chooseBackend({.size = 1, .found = true, .mpi = true}, "", false),
            Backend::MpiIfPluginLoads);
  EXPECT_EQ(chooseBackend({.size = 1, .found = true}, "", false), Backend::Single);
  EXPECT_EQ(chooseBackend({.rank = 1, .size = 2, .found = true}, "", false), Backend::C10d);
}

TEST(ChooseBackend, OpenGroupComesFirst) {
  EXPECT_EQ(chooseBackend({}, "", true), Backend::C10d);
  EXPECT_EQ(chooseBackend({.size = 2, .found = true, .mpi = true}, "", true), Backend::C10d);
}

TEST(ChooseBackend, VariableOverrides) {
  EXPECT_EQ(chooseBackend({}, "mpi", true), Backend::Mpi);
  EXPECT_EQ(chooseBackend({}, "c10d", false), Backend::C10d);
  EXPECT_EQ(chooseBackend({.size = 2, .found = true, .mpi = true}, "single", true),
            Backend::Single);
  EXPECT_EQ(chooseBackend({.size = 2, .found = true}, "single", false), Backend::Single);
}

TEST(ChooseBackend, Errors) {
  expectIn("\"mpj\" is not a backend. Available: c10d, mpi, single",
           messageOf([] { chooseBackend({}, "mpj", false); }));
  expectIn("a simulated mesh is not chosen by the environment",
           messageOf([] { chooseBackend({}, "simulated", false); }));
}

TEST(Communicator, ProcessGroupsNeedPython) {
  expectIn("backend c10d needs torch.distributed, which this program does not have",
           messageOf([] { makeC10dCommunicator({}); }));
}

TEST(Communicator, MissingPluginSaysWhyAndWhatToDo) {
  const std::string text = messageOf([] { loadMpiPlugin("/nowhere/libmeshfuse_mpi.so"); });
  expectIn("cannot load the MPI plugin /nowhere/libmeshfuse_mpi.so", text);
  expectIn("No such file", text);
  expectIn("MESHFUSE_BACKEND=single", text);
}

TEST(Communicator, PluginIsBesideTheLibrary) { expectIn("/libmeshfuse_mpi.so", mpiPluginPath()); }

TEST(Communicator, SingleIsAGroupOfOne) {
  const auto single = makeSingleCommunicator();
  EXPECT_EQ(single->backend(), "single");
  EXPECT_EQ(single->size(), 1);
  EXPECT_EQ(single->rank(), 0);
  EXPECT_EQ(single->deviceId(), 0);
  EXPECT_EQ(single->localSize(), 1);
  EXPECT_EQ(single->localRank(), 0);
  ASSERT_EQ(single->localRanks().size(), 1U);
  EXPECT_EQ(single->localRanks()[0], 0);
  single->barrier();
  single->shutdown(false);
  single->shutdown(false);
}

TEST(Communicator, SimulatedOwnsAllRanks) {
  const auto mesh = makeSimulatedCommunicator(3);
  EXPECT_EQ(mesh->backend(), "simulated");
  EXPECT_EQ(mesh->size(), 3);
  EXPECT_EQ(mesh->localSize(), 3);
  EXPECT_FALSE(mesh->isAvailable());
  ASSERT_EQ(mesh->localRanks().size(), 3U);
  for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(mesh->localRanks()[static_cast<size_t>(r)], r);
  mesh->barrier();
}

TEST(Communicator, SimulatedHasNoSingleRank) {
  const auto mesh = makeSimulatedCommunicator(3);
  const std::string text = messageOf([&] { mesh->rank(); });
  expectIn("rank: a simulated mesh of 3 devices", text);
  expectIn("sim.run", text);
  expectIn("local_rank: a simulated mesh", messageOf([&] { mesh->localRank(); }));
  EXPECT_EQ(makeSimulatedCommunicator(1)->rank(), 0);
}

TEST(Communicator, SimulatedNeedsADevice) {
  expectIn("simulate: 0 devices. The number of devices must be at least 1",
           messageOf([] { makeSimulatedCommunicator(0); }));
}

TEST(Communicator, InstanceIsOneForAllThreads) {
  const ScopedEnv env(onlyThese({}));
  Communicator* in_thread[4] = {};
  std::vector<std::thread> threads;
  for (auto& slot : in_thread) threads.emplace_back([&] { slot = &Communicator::instance(); });
  for (auto& thread : threads) thread.join();
  for (const Communicator* c : in_thread) EXPECT_EQ(c, &Communicator::instance());
  EXPECT_EQ(Communicator::existing(), &Communicator::instance());
}

TEST(CommunicatorGuard, IsAStackOfThisThread) {
  const ScopedEnv env(onlyThese({}));
  Communicator& outside = Communicator::instance();
  const auto two = makeSimulatedCommunicator(2), four = makeSimulatedCommunicator(4);
  {
    const CommunicatorGuard outer(two.get());
    EXPECT_EQ(&Communicator::instance(), two.get());
    {
      const CommunicatorGuard inner(four.get());
      EXPECT_EQ(&Communicator::instance(), four.get());
      std::thread([&] { EXPECT_EQ(&Communicator::instance(), &outside); }).join();
    }
    EXPECT_EQ(&Communicator::instance(), two.get());
    EXPECT_EQ(Communicator::existing(), &outside);
  }
  EXPECT_EQ(&Communicator::instance(), &outside);
}

TEST(CommunicatorGuard, MayEndInAnyOrder) {
  const auto two = makeSimulatedCommunicator(2), four = makeSimulatedCommunicator(4);
  auto outer = std::make_unique<CommunicatorGuard>(two.get());
  auto inner = std::make_unique<CommunicatorGuard>(four.get());
  outer.reset();
  EXPECT_EQ(&Communicator::instance(), four.get());
  inner.reset();
  EXPECT_NE(&Communicator::instance(), four.get());
}

TEST(Timeout, IsReadFromTheEnvironment) {
  {
    const ScopedEnv env(onlyThese({{"MESHFUSE_TIMEOUT", nullptr}}));
    EXPECT_EQ(communicationTimeout(), 300);
  }
  const ScopedEnv env(onlyThese({{"MESHFUSE_TIMEOUT", "2.5"}}));
  EXPECT_EQ(communicationTimeout(), 2.5);
}

TEST(Timeout, RefusesWhatIsNoPositiveNumber) {
  for (const char* value : {"0", "-1", "soon", "5s", "inf", "nan"}) {
    const ScopedEnv env(onlyThese({{"MESHFUSE_TIMEOUT", value}}));
    expectIn(concat("MESHFUSE_TIMEOUT: \"", value, "\" is not a positive number of seconds"),
             messageOf(communicationTimeout));
  }
}

TEST(Waiting, PauseChecksForInterrupts) {
  setInterruptCheck([] { throw std::runtime_error("interrupted"); });
  Backoff backoff;
  EXPECT_THROW(while (backoff.elapsed() < 5) backoff.pause(), std::runtime_error);
  EXPECT_LT(backoff.elapsed(), 1);
  setInterruptCheck({});
  checkInterrupt();
}

}  // namespace
}  // namespace meshfuse
