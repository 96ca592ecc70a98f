// SPDX-License-Identifier: BSD-3-Clause
// Nothing here runs at load time: no MPI and no sockets before the first Communicator::instance().
#include <meshfuse/base/error.h>
#include <meshfuse/comm/c10d.h>
#include <meshfuse/comm/mpi_plugin.h>
#include <meshfuse/comm/select.h>
#include <meshfuse/comm/threads.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace meshfuse {
namespace {

// Never destroyed: exit handlers and threads that outlive main may still ask for it.
struct ProcessWide {
  std::mutex mutex;  // held while the communicator is made
  std::atomic<Communicator*> communicator{nullptr};
  std::function<void()> start_hook;
  pid_t process = 0;  // that made the communicator; its forked children are no ranks
};
ProcessWide& processWide() {
  static auto& state = *new ProcessWide;
  return state;
}

thread_local std::vector<Communicator*> current;

std::atomic<bool> end_named{false};

// A program that returns non-zero failed: its peers must not be waited for. The launcher does not
// always say who it was.
void leaveAtExit(int status, void*) {
  if (status != 0) nameEnd(concat("exited with status ", status));
  if (Communicator* c = Communicator::existing()) c->shutdown(status != 0);
}

std::unique_ptr<Communicator> makeChosen() {
  const LauncherEnv env = readLauncherEnv();
  const char* wanted = std::getenv("MESHFUSE_BACKEND");
  const C10dGroups& groups = c10dGroups();
  switch (chooseBackend(env, wanted ? wanted : "", groups.exists && groups.exists())) {
    case Backend::Single:
      return makeSingleCommunicator();
    case Backend::Mpi:
      try {
        return makeMpiCommunicator();
      } catch (Error& error) {
        if (env.found)
          error.addNote(concat("while joining the group as rank ", env.rank, " of ", env.size));
        throw;
      }
    case Backend::C10d:
      return makeC10dCommunicator(groups);
    case Backend::MpiIfPluginLoads: {
      MpiFactory factory = nullptr;
      try {
        factory = loadMpiPlugin(mpiPluginPath());
      } catch (const Error&) {
        return makeSingleCommunicator();  // one rank: the same thing without MPI
      }
      return std::unique_ptr<Communicator>(factory());
    }
  }
  MESHFUSE_ASSERT(false, "unknown Backend");
}

}  // namespace

Backend chooseBackend(const LauncherEnv& env, std::string_view wanted, bool has_group) {
  if (wanted == "single") return Backend::Single;
  if (wanted == "mpi") return Backend::Mpi;
  if (wanted == "c10d") return Backend::C10d;
  MESHFUSE_CHECK(wanted != "simulated",
                 "MESHFUSE_BACKEND: a simulated mesh is not chosen by the environment. Use `with "
                 "meshfuse.simulate(n) as sim:`. Available here: c10d, mpi, single.");
  MESHFUSE_CHECK(wanted.empty(), "MESHFUSE_BACKEND: \"", wanted,
                 "\" is not a backend. Available: c10d, mpi, single; or unset it for the automatic "
                 "choice.");
  if (has_group) return Backend::C10d;
  if (env.mpi) return env.size > 1 ? Backend::Mpi : Backend::MpiIfPluginLoads;
  return env.size > 1 ? Backend::C10d : Backend::Single;
}

void setStartHook(std::function<void()> hook) {
  ProcessWide& state = processWide();
  const std::lock_guard lock(state.mutex);
  state.start_hook = std::move(hook);
}

void nameEnd(std::string_view how) {
  const Communicator* c = Communicator::existing();
  if (c == nullptr || c->size() == 1 || processWide().process != getpid()) return;
  if (end_named.exchange(true)) return;
  const std::string line = concat("meshfuse: rank ", c->rank(), " of ", c->size(), " ", how, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

Communicator& Communicator::instance() {
  if (!current.empty()) return *current.back();
  ProcessWide& state = processWide();
  if (Communicator* made = state.communicator.load(std::memory_order_acquire)) return *made;
  std::unique_lock lock(state.mutex);
  if (Communicator* made = state.communicator.load(std::memory_order_acquire)) return *made;
  Communicator* made = makeChosen().release();
  shareCores(*made);
  state.process = getpid();
  state.communicator.store(made, std::memory_order_release);
  // After MPI's own handlers, so that ours runs before them. Python leaves earlier, in its atexit.
  on_exit(leaveAtExit, nullptr);
  const auto hook = state.start_hook;
  lock.unlock();  // the hook may wait for a thread that waits for this communicator
  if (hook) hook();
  return *made;
}

Communicator* Communicator::existing() {
  return processWide().communicator.load(std::memory_order_acquire);
}

CommunicatorGuard::CommunicatorGuard(Communicator* communicator) : communicator_(communicator) {
  MESHFUSE_ASSERT(communicator != nullptr, "CommunicatorGuard without a communicator");
  current.push_back(communicator);
}

CommunicatorGuard::~CommunicatorGuard() {
  // Generators may end in any order, so not simply the last one.
  // NOLINTNEXTLINE(modernize-use-ranges): base() is that of a plain reverse iterator
  const auto at = std::find(current.rbegin(), current.rend(), communicator_);
  if (at != current.rend()) current.erase(std::next(at).base());
}

}  // namespace meshfuse
