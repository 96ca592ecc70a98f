// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/socket_mesh.h>

#include <netinet/in.h>  // NOLINT(misc-include-cleaner): IPPROTO_TCP
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace meshfuse {
namespace {

struct Frame {
  uint32_t bytes;  // that follow
  uint32_t channel;
};

bool wouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

class SocketMesh::ChannelMailbox final : public Mailbox {
 public:
  ChannelMailbox(std::shared_ptr<SocketMesh> mesh, Channel channel)
      : mesh_(std::move(mesh)), channel_(channel) {}
  int rank() const override { return mesh_->rank_; }
  int size() const override { return mesh_->size_; }
  void send(int to, std::span<const std::byte> head, std::string_view text) override {
    mesh_->send(channel_, to, head, text);
  }
  int receive(std::span<std::byte> head, std::string& text) override {
    return mesh_->receive(channel_, head, text);
  }
  void progress() override { mesh_->flushAll(); }
  bool allSent() override { return mesh_->flushAll(); }
  std::optional<int> takeLost() override {
    return channel_ == Channel::Control ? mesh_->takeLost() : std::nullopt;
  }

 private:
  std::shared_ptr<SocketMesh> mesh_;
  Channel channel_;
};

SocketMesh::SocketMesh(int rank, int size)
    : rank_(rank),
      size_(size),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      peers_(static_cast<size_t>(size)) {
  MESHFUSE_CHECK(events_ >= 0, "Communicator: no epoll: ", std::strerror(errno),
                 ". Allow this process more open files (ulimit -n).");
}

SocketMesh::~SocketMesh() {
  for (const Peer& peer : peers_)
    if (peer.socket >= 0) close(peer.socket);
  if (events_ >= 0) close(events_);
}

std::shared_ptr<SocketMesh> SocketMesh::join(int rank, int size, MeetingPoint& meeting,
                                             double timeout) {
  std::shared_ptr<SocketMesh> mesh(new SocketMesh(rank, size));
  mesh->connectAll(meeting, timeout);
  return mesh;
}

std::unique_ptr<Mailbox> SocketMesh::mailbox(Channel channel) {
  return std::make_unique<ChannelMailbox>(shared_from_this(), channel);
}

/// Takes a connection to a rank, non-blocking from now on.
void SocketMesh::adopt(int rank, int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  peers_.at(static_cast<size_t>(rank)).socket = socket;
  epoll_event event{.events = EPOLLIN, .data = {.fd = rank}};
  MESHFUSE_CHECK(epoll_ctl(events_, EPOLL_CTL_ADD, socket, &event) == 0,
                 "Communicator: epoll_ctl: ", std::strerror(errno),
                 ". Allow this user more watches (sysctl fs.epoll.max_user_watches) or memory.");
}

void SocketMesh::send(Channel channel, int to, std::span<const std::byte> head,
                      std::string_view text) {
  Peer& peer = peers_.at(static_cast<size_t>(to));
  if (peer.lost) return;
  const Frame frame{static_cast<uint32_t>(head.size() + text.size()),
                    static_cast<uint32_t>(channel)};
  if (peer.out.empty()) ++unsent_;
  peer.out.append(reinterpret_cast<const char*>(&frame), sizeof frame);
  peer.out.append(reinterpret_cast<const char*>(head.data()), head.size());
  peer.out += text;
  flush(peer);
}

void SocketMesh::flush(Peer& peer) {
  size_t sent = 0;
  while (sent < peer.out.size()) {
    const ssize_t n =
        ::send(peer.socket, peer.out.data() + sent, peer.out.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && wouldBlock()) break;
    // Reading will find the connection broken, after what the rank had sent.
    sent = n < 0 ? peer.out.size() : sent + static_cast<size_t>(n);
  }
  peer.out.erase(0, sent);
  if (peer.out.empty()) --unsent_;
}

bool SocketMesh::flushAll() {
  if (unsent_ == 0) return true;
  for (Peer& peer : peers_)
    if (!peer.out.empty()) flush(peer);
  return unsent_ == 0;
}

int SocketMesh::receive(Channel channel, std::span<std::byte> head, std::string& text) {
  auto& queue = messages_[static_cast<size_t>(channel)];
  if (queue.empty()) poll();
  if (queue.empty()) return -1;
  const Message message = std::move(queue.front());
  queue.pop_front();
  MESHFUSE_ASSERT(message.bytes.size() >= head.size(), "message of ", message.bytes.size(),
                  " bytes");
  std::memcpy(head.data(), message.bytes.data(), head.size());
  text.assign(message.bytes, head.size());
  return message.from;
}

void SocketMesh::poll() {
  epoll_event ready[16];
  const int count = epoll_wait(events_, ready, std::size(ready), 0);
  for (int i = 0; i < count; ++i) read(ready[i].data.fd);
}

void SocketMesh::read(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  char buffer[16384];
  for (;;) {
    const ssize_t n = recv(peer.socket, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && wouldBlock()) break;
    if (n <= 0) {
      take(rank);
      return lose(rank);
    }
    peer.in.append(buffer, static_cast<size_t>(n));
    if (static_cast<size_t>(n) < sizeof buffer) break;
  }
  take(rank);
}

void SocketMesh::take(int rank) {
  std::string& in = peers_[static_cast<size_t>(rank)].in;
  size_t at = 0;
  Frame frame;
  while (in.size() - at >= sizeof frame) {
    std::memcpy(&frame, in.data() + at, sizeof frame);
    if (in.size() - at < sizeof frame + frame.bytes) break;
    MESHFUSE_ASSERT(frame.channel < std::size(messages_), "message on channel ", frame.channel);
    messages_[frame.channel].push_back({rank, in.substr(at + sizeof frame, frame.bytes)});
    at += sizeof frame + frame.bytes;
  }
  in.erase(0, at);
}

void SocketMesh::lose(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.lost = true;
  if (!peer.out.empty()) --unsent_;
  peer.out.clear();
  epoll_ctl(events_, EPOLL_CTL_DEL, peer.socket, nullptr);
  lost_.push_back(rank);
}

std::optional<int> SocketMesh::takeLost() {
  if (lost_.empty()) return std::nullopt;
  const int rank = lost_.front();
  lost_.pop_front();
  return rank;
}

}  // namespace meshfuse
