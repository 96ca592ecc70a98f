// SPDX-License-Identifier: BSD-3-Clause
// Short messages between ranks, outside of collectives. None needs an answer, and none blocks its
// sender.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace meshfuse {

/// One end of a channel, whose messages from one rank to another keep their order. Not thread-safe.
class Mailbox {
 public:
  virtual ~Mailbox() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sends `head` and `text`, which are copied, to another rank. The heads of all messages of a
  /// channel have the same size, at most 64 bytes.
  virtual void send(int to, std::span<const std::byte> head, std::string_view text) = 0;
  /// Takes a message that has arrived; returns its sender, or -1 if there is none.
  virtual int receive(std::span<std::byte> head, std::string& text) = 0;
  /// Moves messages on.
  virtual void progress() = 0;
  /// Whether all messages are out of our buffers; moves them on.
  virtual bool allSent() = 0;
  /// A rank whose process ended, as far as the transport notices; each only once, and after all
  /// that it sent.
  virtual std::optional<int> takeLost() { return std::nullopt; }
};

}  // namespace meshfuse
