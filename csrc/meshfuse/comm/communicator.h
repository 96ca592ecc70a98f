// SPDX-License-Identifier: BSD-3-Clause
// Ranks and what they do together. A communicator owns one or more local ranks: one under a
// launcher, all of them on the simulated mesh.
#pragma once
#include <meshfuse/base/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace at {
class Tensor;
}

namespace meshfuse {

/// The devices of one collective. Their order is that of the chunks of a gather, a scatter or an
/// all-to-all, and of the terms of a reduction. No device comes twice.
struct Team {
  std::vector<int64_t> devices;

  int64_t size() const { return static_cast<int64_t>(devices.size()); }
  bool operator==(const Team&) const = default;
};

/// One message of a sendRecv, between device ids; a device may send to itself.
struct SendRecvPair {
  int64_t from, to;
};

/// One tensor per local rank that has one in a call, in the order of the team: a single one, or
/// none, where a process has one rank; those of all devices on a simulated mesh.
using LocalTensors = std::span<at::Tensor>;

/// A collective that has begun: its first messages are on their way.
class Work {
 public:
  virtual ~Work() = default;
  /// Ends the collective, and those posted before it: results are there, and what was sent may
  /// change. Throws like a collective.
  virtual void wait() = 0;
};
/// nullptr: there is nothing to wait for.
using Posted = std::unique_ptr<Work>;

struct CollectiveCall;
struct Transfer;
class Proposal;

class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The communicator of this thread: an active simulated mesh, else the process-wide one, which
  /// the first call makes (select.cpp): the process group of torch.distributed if there is one,
  /// else MPI when started by mpirun, else a process group when started by another launcher, else a
  /// group of one.
  static Communicator& instance();
  /// The process-wide one if it exists already, else nullptr; never initialises anything.
  static Communicator* existing();

  virtual std::string_view backend() const = 0;  // "single", "mpi", "c10d", "simulated"
  virtual int64_t size() const = 0;
  /// Ranks whose work this process does.
  virtual std::span<const int64_t> localRanks() const = 0;
  /// The single local rank. Throws Error on a simulated mesh of more than one device.
  virtual int64_t rank() const = 0;
  virtual int64_t localSize() const = 0;  // ranks on this node
  virtual int64_t localRank() const = 0;
  /// Whether a launcher started this process.
  virtual bool isAvailable() const = 0;
  /// Whether CUDA tensors are carried as they are. Otherwise collectives copy them through host
  /// memory, and the host waits.
  virtual bool carriesCuda() const { return false; }
  int64_t deviceId() const { return rank(); }

  /// Blocks until every rank arrives. Throws PeerError when another rank failed, left or did not
  /// arrive within MESHFUSE_TIMEOUT seconds (default 300); the communicator is then closed and
  /// further calls throw at once.
  virtual void barrier() = 0;

  // Collectives. Every rank makes every call, in the same order: one outside of the team does
  // nothing, whatever tensors it passes, but counts the call. All ranks that make a call have the
  // same sizes, data type and, of their part of the mesh, the same team.
  //
  // Tensors are contiguous CPU or CUDA tensors of one data type (CUDA where carriesCuda(): work is
  // ordered on the current streams, the host does not wait, and reductions are those of the
  // backend, see docs/torchrun.md); element counts must fit, shapes
  // need not, but what is cut into chunks has an outermost axis (of those longer than 1) that the
  // team's size divides. `out` and `in` must not overlap. Throws Error before any message when that
  // is not so, and PeerError like barrier(); after a PeerError the contents of the tensors are
  // undefined.
  //
  // Moves keep every bit, of any data type. Reductions run in the order of the team, in float32 for
  // types up to 32 bits (complex64 for complex), in float64 for Double; they round once and give
  // the same bits on all ranks and in every repetition. Integers wrap around. Bool: Sum and Max are
  // Or, Prod and Min are And. Min and Max give NaN where a term is NaN. And, Or and Xor are for
  // integers and Bool, Min and Max not for complex, Avg not for integers and Bool (Error). A team
  // of one gets its input as it is, and no message.
  //
  // With `posted`, a call need not wait for the others: it may return when its first messages are
  // on their way, and sets *posted to what is left to do. Until then its tensors, which it keeps
  // alive, must not be touched. Calls end in the order in which they began: waiting for one ends
  // all those before it, and so does a call without `posted` that has messages. Every posted call
  // must be waited for, directly or through a later one, before its rank ends the execution.

  /// out = reduction over the team of in.
  void allReduce(LocalTensors out, LocalTensors in, const Team& team, ReduceKind kind,
                 Posted* posted = nullptr);
  /// in_out = reduction over the team of in_out. Other ranks may use either form.
  void allReduce(LocalTensors in_out, const Team& team, ReduceKind kind, Posted* posted = nullptr);
  /// out = the `in` of all members, one after the other (along dim 0).
  void allGather(LocalTensors out, LocalTensors in, const Team& team, Posted* posted = nullptr);
  /// out = this member's chunk (along dim 0) of the reduction over the team of `in`.
  void reduceScatter(LocalTensors out, LocalTensors in, const Team& team, ReduceKind kind,
                     Posted* posted = nullptr);
  /// Chunk i of `out` = what member i has as its chunk for this member (along dim 0).
  void allToAll(LocalTensors out, LocalTensors in, const Team& team, Posted* posted = nullptr);
  /// in_out = that of the member at place `root` of the team.
  void broadcast(LocalTensors in_out, int64_t root, const Team& team, Posted* posted = nullptr);
  /// As allGather, at the root only: the others have no `out`.
  void gather(LocalTensors out, LocalTensors in, int64_t root, const Team& team,
              Posted* posted = nullptr);
  /// out = this member's chunk (along dim 0) of the root's `in`: the others have no `in`.
  void scatter(LocalTensors out, LocalTensors in, int64_t root, const Team& team,
               Posted* posted = nullptr);
  /// As allReduce, into the `out` of the root: the others have none.
  void reduce(LocalTensors out, LocalTensors in, int64_t root, const Team& team, ReduceKind kind,
              Posted* posted = nullptr);
  /// Sends several messages at once. `in` has a tensor per pair that a local rank sends, `out` one
  /// per pair that a local rank receives, in the order of the pairs; each pair has its own size and
  /// data type.
  void sendRecv(LocalTensors out, LocalTensors in, std::span<const SendRecvPair> pairs,
                Posted* posted = nullptr);

  /// Tells the other ranks, without waiting for them, that this rank failed. Ranks that wait then
  /// throw PeerError with the reason.
  virtual void reportFailure(std::string_view reason) noexcept { (void)reason; }
  /// Tells all ranks that this one gave up an execution of which it does not know who takes part.
  /// A rank that waits for this one then throws PeerError, which closes the group; where all ranks
  /// give up an execution nobody waits, and the group goes on. See refuseExecution.
  virtual void reportRefusal(std::string_view reason) noexcept { (void)reason; }

  // Executions. The members of a team run one together: each begins it, agrees before its first
  // collective, and ends it; or refuses it. Members see executions with one another in the same
  // order. Ranks outside of the team need no call. Where one process has all ranks there is nothing
  // to compare, and these do nothing.

  /// Tells the other members what this rank is about to run; does not wait for them. Waits for
  /// executions of other threads. `proposal` must stay until the execution ends. Throws like a
  /// collective, and then has begun nothing.
  virtual void beginExecution(const Team& team, const Proposal& proposal) {
    (void)team, (void)proposal;
  }
  /// Waits until all members have begun the execution that this thread began. Returns if they run
  /// the same (all members do, then). Else throws, on all members: Error with the first difference,
  /// or PeerError if a member refused or abandoned the execution. The group goes on: nothing was
  /// communicated. Throws PeerError like barrier(), too. Does nothing when called again, or without
  /// an execution.
  virtual void agree() {}
  /// Ends the execution that this thread began.
  virtual void endExecution() noexcept {}
  /// The same after an exception. Members that wait for this rank in the execution's collectives
  /// throw PeerError, which closes the group.
  virtual void abandonExecution(std::string_view reason) noexcept { (void)reason; }
  /// Instead of beginExecution: this rank cannot run it. The other members throw PeerError in
  /// agree(), unless they refuse, too; the group goes on.
  virtual void refuseExecution(const Team& team, std::string_view reason) noexcept {
    (void)team, (void)reason;
  }

  /// Leaves the group; called once, at exit. `failed`: the process ends because of an error, so it
  /// must not wait for ranks that never come.
  virtual void shutdown(bool failed) noexcept { (void)failed; }

 protected:
  // What a backend does of a collective: the arguments are checked, the team has several members,
  // some are local, and there is something to send. A group of one needs none of these.

  /// A call in which no local rank has a message; it only keeps the order of calls.
  virtual void skipCall(std::string_view what) { (void)what; }
  /// Those transfers of a call in which a local rank takes part.
  virtual void runTransfers(const CollectiveCall& call, std::span<const Transfer> transfers);
  virtual void runBroadcast(const CollectiveCall& call, int64_t root);
  virtual void runAllReduce(const CollectiveCall& call, ReduceKind kind);
  virtual void runReduceScatter(const CollectiveCall& call, ReduceKind kind);
  virtual void runReduce(const CollectiveCall& call, int64_t root, ReduceKind kind);

 private:
  std::vector<int64_t> localMembers(const Team& team) const;
};

/// Called now and then by a rank that waits; may throw (Python: signals). Empty by default.
void setInterruptCheck(std::function<void()> check);
void checkInterrupt();

/// Largest message, from MESHFUSE_MESSAGE_PIECE_BYTES, default 2^30: longer ones go in pieces. Must
/// be equal on all ranks. Throws Error on a value that is not a positive integer below 2^31.
int64_t messagePieceBytes();

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
