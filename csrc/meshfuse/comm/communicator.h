// SPDX-License-Identifier: BSD-3-Clause
// Ranks and what they do together. A communicator owns one or more local ranks: one under a
// launcher, all of them on the simulated mesh.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshfuse {

class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The communicator of this thread: an active simulated mesh, else the process-wide one, which
  /// the first call makes (select.cpp): MPI when started by mpirun, else a group of one.
  static Communicator& instance();
  /// The process-wide one if it exists already, else nullptr; never initialises anything.
  static Communicator* existing();

  virtual std::string_view backend() const = 0;  // "single", "mpi", "simulated"
  virtual int64_t size() const = 0;
  /// Ranks whose work this process does.
  virtual std::span<const int64_t> localRanks() const = 0;
  /// The single local rank. Throws Error on a simulated mesh of more than one device.
  virtual int64_t rank() const = 0;
  virtual int64_t localSize() const = 0;  // ranks on this node
  virtual int64_t localRank() const = 0;
  /// Whether a launcher started this process.
  virtual bool isAvailable() const = 0;
  int64_t deviceId() const { return rank(); }

  /// Blocks until every rank arrives. Throws PeerError when another rank failed, left or did not
  /// arrive within MESHFUSE_TIMEOUT seconds (default 300); the communicator is then closed and
  /// further calls throw at once.
  virtual void barrier() = 0;
  /// Tells the other ranks, without waiting for them, that this rank failed. Ranks that wait then
  /// throw PeerError with the reason.
  virtual void reportFailure(std::string_view reason) noexcept { (void)reason; }
  /// Tells the other ranks that this one gave up an execution before any of its communications. A
  /// rank that waits for this one in that execution throws PeerError; where all ranks give up the
  /// same execution nobody waits, and the group goes on.
  virtual void reportRefusal(std::string_view reason) noexcept { (void)reason; }
  /// Leaves the group; called once, at exit. `failed`: the process ends because of an error, so it
  /// must not wait for ranks that never come.
  virtual void shutdown(bool failed) noexcept { (void)failed; }
};

/// Called now and then by a rank that waits; may throw (Python: signals). Empty by default.
void setInterruptCheck(std::function<void()> check);
void checkInterrupt();

/// Seconds from MESHFUSE_TIMEOUT, default 300. Throws Error on a value that is not a positive
/// number.
double communicationTimeout();

std::unique_ptr<Communicator> makeSingleCommunicator();
std::unique_ptr<Communicator> makeSimulatedCommunicator(int64_t size);
/// Loads the MPI plugin and joins MPI_COMM_WORLD. Throws Error with the reason and the cure when
/// there is no plugin or MPI.
std::unique_ptr<Communicator> makeMpiCommunicator();

/// Makes a communicator the current one of this thread, until destroyed (a stack).
class CommunicatorGuard {
 public:
  explicit CommunicatorGuard(Communicator* communicator);
  ~CommunicatorGuard();
  CommunicatorGuard(const CommunicatorGuard&) = delete;
  CommunicatorGuard& operator=(const CommunicatorGuard&) = delete;

 private:
  Communicator* communicator_;
};

/// Rank, size, local rank and local size as the launcher's environment variables say. The defaults
/// stand for what they don't say; rank and size are found together or not at all.
struct LauncherEnv {
  int64_t rank = 0, size = 1, local_rank = 0, local_size = 1;
  bool found = false;
  bool local_found = false;  // local_rank and local_size too
  bool mpi = false;          // started by an mpirun (Open MPI's or MPICH's variables were found)
};
/// Throws Error when a variable is set to something that cannot be a rank or size.
LauncherEnv readLauncherEnv();

}  // namespace meshfuse
