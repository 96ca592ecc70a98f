// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other outside of collectives: "I failed", "I leave", "I wait in call n".
// No message needs an answer, and none blocks its sender.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <vector>

namespace meshfuse {

/// Throws Error when `status` is not MPI_SUCCESS.
void checkMpi(int status, const char* function);

/// The front of a text, short enough to be sent eagerly, without waiting for the receiver, by every
/// transport.
std::string_view shortReason(std::string_view reason);

/// One end of the control channel. Not thread-safe: the communicator's lock guards it.
class MpiControl {
 public:
  enum class Kind : int32_t { Failure, Leaving, Waiting, Refusal };

  /// What this rank knows of another one.
  struct Peer {
    bool failed = false;
    bool left = false;
    int64_t completed = 0;   // calls it had completed when it failed or left
    int64_t waiting_in = 0;  // the latest call in which it said that it waits
    int64_t barrier = 0;     // the latest barrier, counted from 1, in which it said that it waits
    int32_t culprit = -1;    // whom it blames: itself, one it gave up on, or who made it leave
    std::string reason;      // of its failure
    int64_t refusals = 0;    // executions that it gave up before communicating
    int64_t refused_at = 0;  // calls it had completed when it did so last
    std::string refusal;     // why
  };

  /// `comm` belongs to the caller and must carry nothing else.
  explicit MpiControl(MPI_Comm comm);
  ~MpiControl();
  MpiControl(const MpiControl&) = delete;
  MpiControl& operator=(const MpiControl&) = delete;

  /// Sends to every other rank. `call`: calls completed.
  void announce(Kind kind, int64_t call, int32_t culprit = -1, std::string_view reason = {});
  /// Sends Waiting; `barrier`: the number of the barrier in which this rank waits, or 0.
  void announceWaiting(int64_t call, int64_t barrier);
  /// Tells every other rank what is known of the failure or departure of `about`.
  void passOn(int about);
  /// Takes in what has arrived.
  void poll();
  /// Whether all that was announced is out of our buffers.
  bool allSent();
  /// Indexed by rank; the own entry stays empty.
  const std::vector<Peer>& peers() const { return peers_; }

 private:
  struct Sending {  // MPI reads `bytes` until the requests are done: the address must not change
    std::string bytes;
    std::vector<MPI_Request> requests;
  };
  struct Header;
  void send(const Header& header, std::string_view reason);
  void take(const std::string& bytes);

  MPI_Comm comm_;
  int rank_ = 0;
  std::vector<Peer> peers_;
  std::list<Sending> sending_;
};

}  // namespace meshfuse
