// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other outside of collectives: "I failed", "I leave", "I wait in call n".
// No message needs an answer, and none blocks its sender.
#pragma once
#include <meshfuse/comm/mailbox.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshfuse {

/// The front of a text, short enough to be sent eagerly, without waiting for the receiver, by every
/// transport.
std::string_view shortReason(std::string_view reason);

/// One end of the control channel. Not thread-safe: the communicator's lock guards it.
class ControlChannel {
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

  /// `mailbox` must carry nothing else.
  explicit ControlChannel(std::unique_ptr<Mailbox> mailbox);

  /// Sends to every other rank. `call`: calls completed.
  void announce(Kind kind, int64_t call, int32_t culprit = -1, std::string_view reason = {});
  /// Sends Waiting; `barrier`: the number of the barrier in which this rank waits, or 0.
  void announceWaiting(int64_t call, int64_t barrier);
  /// Tells every other rank what is known of the failure or departure of `about`.
  void passOn(int about);
  /// Takes in what has arrived.
  void poll();
  /// Whether all that was announced is out of our buffers.
  bool allSent() { return mailbox_->allSent(); }
  /// Indexed by rank; the own entry stays empty.
  const std::vector<Peer>& peers() const { return peers_; }

 private:
  struct Header;
  void send(const Header& header, std::string_view reason);
  void take(const Header& header, std::string text);
  void takeLost(int rank);

  std::unique_ptr<Mailbox> mailbox_;
  const int rank_;
  std::vector<Peer> peers_;
};

}  // namespace meshfuse
