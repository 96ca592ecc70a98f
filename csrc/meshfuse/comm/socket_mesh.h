// SPDX-License-Identifier: BSD-3-Clause
// TCP connections between all ranks, for short messages. They need no thread, a rank that waits can
// look at other things, too, and the end of a process is seen at once.
#pragma once
#include <meshfuse/comm/mailbox.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace meshfuse {

/// Where ranks leave what others need to find them.
class MeetingPoint {
 public:
  virtual ~MeetingPoint() = default;
  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Does not wait: nullopt while nobody has put the key.
  virtual std::optional<std::string> find(const std::string& key) = 0;
};

/// Not thread-safe.
class SocketMesh : public std::enable_shared_from_this<SocketMesh> {
 public:
  /// Channels of messages; those of one do not wait for those of another.
  enum class Channel : uint32_t { Control, Agreement, Barrier };

  /// Returns when all ranks are connected. Throws Error after `timeout` seconds, with the ranks
  /// that did not come.
  static std::shared_ptr<SocketMesh> join(int rank, int size, MeetingPoint& meeting,
                                          double timeout);
  ~SocketMesh();
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  /// One per channel; it keeps the connections open.
  std::unique_ptr<Mailbox> mailbox(Channel channel);
  /// By rank: names that are equal for ranks on one node.
  const std::vector<std::string>& nodes() const { return nodes_; }

 private:
  class ChannelMailbox;
  struct Peer {
    int socket = -1;
    std::string out, in;
    bool lost = false;
  };
  struct Message {
    int from;
    std::string bytes;
  };
  struct Address;  // of a rank
  class Joining;

  SocketMesh(int rank, int size);
  void connectAll(MeetingPoint& meeting, double timeout);
  void adopt(int rank, int socket);
  void send(Channel channel, int to, std::span<const std::byte> head, std::string_view text);
  int receive(Channel channel, std::span<std::byte> head, std::string& text);
  void poll();
  void read(int rank);
  void take(int rank);
  void flush(Peer& peer);
  bool flushAll();
  std::optional<int> takeLost();
  void lose(int rank);

  const int rank_, size_;
  int events_ = -1;  // epoll
  std::vector<Peer> peers_;
  std::vector<std::string> nodes_;
  std::deque<Message> messages_[3];  // by channel
  std::deque<int> lost_;
  size_t unsent_ = 0;  // peers with something in `out`
};

}  // namespace meshfuse
