// SPDX-License-Identifier: BSD-3-Clause
// How ranks connect: each listens, tells where, connects to all ranks below it, and is connected to
// by those above. A number that only the ranks of the group can know keeps others out.
#include <meshfuse/base/error.h>
#include <meshfuse/comm/socket_mesh.h>
#include <meshfuse/comm/waiting.h>

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace meshfuse {
namespace {

using Secret = std::array<char, 32>;

struct Hello {
  Secret secret;  // of the one that listens
  int32_t rank;   // that connects
};
constexpr char kWelcome = 'w';

/// A socket that is closed unless it is released.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

Secret makeSecret() {
  std::array<unsigned char, 16> random{};
  MESHFUSE_CHECK(getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size()),
                 "Communicator: no random numbers: ", std::strerror(errno),
                 ". Allow this process the system call getrandom.");
  Secret text{};
  for (size_t i = 0; i < random.size(); ++i) {
    text[2 * i] = "0123456789abcdef"[random[i] >> 4U];
    text[2 * i + 1] = "0123456789abcdef"[random[i] & 15U];
  }
  return text;
}

/// Equal for processes that share their network interfaces.
std::string nodeName() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = "", host[256] = "";
  if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0) network[0] = '\0';
  gethostname(host, sizeof host - 1);
  return concat(host, '/', boot, '/', network);
}

/// Listens on all interfaces; returns the port, too.
std::pair<Socket, int> listenAnywhere(int backlog) {
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    const int no = 0;
    if (family == AF_INET6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* address = reinterpret_cast<sockaddr*>(&any);
    if (bind(socket.get(), address, size) != 0 || listen(socket.get(), backlog) != 0) continue;
    if (getsockname(socket.get(), address, &size) != 0) continue;
    const auto port = family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&any)->sin6_port
                                         : reinterpret_cast<sockaddr_in*>(&any)->sin_port;
    return {std::move(socket), ntohs(port)};
  }
  fail("Communicator: this process cannot listen on a TCP port: ", std::strerror(errno),
       ". The ranks need TCP connections between one another.");
}

/// Numeric addresses of this node that other nodes may reach.
std::vector<std::string> ownAddresses() {
  std::vector<std::string> all;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return all;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    char text[NI_MAXHOST];
    if (getnameinfo(i->ifa_addr, static_cast<socklen_t>(size), text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0)
      continue;
    const std::string_view address(text);
    const bool elsewhere = address.starts_with("127.") || address == "::1" ||
                           address.starts_with("fe80:");  // loopback, and link-local
    if (!elsewhere) all.emplace_back(address);
  }
  freeifaddrs(first);
  return all;
}

/// Sends all of `bytes`; they fit into the buffer of a new connection.
bool sendAll(int socket, const void* bytes, size_t size) {
  return ::send(socket, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

}  // namespace

struct SocketMesh::Address {
  std::string node;
  Secret secret{};
  int port = 0;
  std::vector<std::string> hosts;

  std::string text() const {
    std::string all =
        concat(node, '\n', std::string_view(secret.data(), secret.size()), '\n', port, '\n');
    for (const std::string& host : hosts) all += host + '\n';
    return all;
  }
  static Address parse(const std::string& text) {
    Address address;
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, address.node);
    std::getline(lines, line);
    std::copy_n(line.begin(), std::min(line.size(), address.secret.size()), address.secret.begin());
    std::getline(lines, line);
    std::from_chars(line.data(), line.data() + line.size(),
                    address.port);  // 0: none, no connection
    while (std::getline(lines, line)) address.hosts.push_back(line);
    return address;
  }
};

/// One rank's way into the group.
class SocketMesh::Joining {
 public:
  Joining(SocketMesh& mesh, MeetingPoint& meeting, double timeout)
      : mesh_(mesh), meeting_(meeting), timeout_(timeout) {
    auto [socket, port] = listenAnywhere(mesh.size_);
    listener_ = std::move(socket);
    self_ = {nodeName(), makeSecret(), port, ownAddresses()};
    meeting.put(key(mesh.rank_), self_.text());
  }

  void run() {
    mesh_.nodes_.assign(static_cast<size_t>(mesh_.size_), self_.node);
    for (int r = 0; r < mesh_.size_; ++r) {
      if (r == mesh_.rank_) continue;
      waitFor([&] { return findAddress(r); });
    }
    for (int r = 0; r < mesh_.rank_; ++r) connectTo(r);
    waitFor([&] {
      welcome();
      return missing().empty();
    });
  }

 private:
  static std::string key(int rank) { return concat("rank", rank); }

  /// Ranks that have not come so far.
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int r = 0; r < mesh_.size_; ++r)
      if (r != mesh_.rank_ && mesh_.peers_[static_cast<size_t>(r)].socket < 0) ranks.push_back(r);
    return ranks;
  }

  void waitFor(const std::function<bool()>& done) {
    Backoff backoff;
    while (!done()) {
      backoff.pause();
      waited_ = base_ + backoff.elapsed();
      if (waited_ > timeout_) giveUp();
    }
    base_ = waited_;
  }

  [[noreturn]] void giveUp() const {
    std::string who;
    for (const int r : missing())
      if (!addresses_.contains(r)) who += concat(who.empty() ? "" : ", ", r);
    const bool unreachable = who.empty();
    for (const int r : missing())
      if (unreachable) who += concat(who.empty() ? "" : ", ", r);
    fail("Communicator: rank ", mesh_.rank_, " of ", mesh_.size_, " timed out after ", timeout_,
         " s (MESHFUSE_TIMEOUT) while it joined the group: ",
         unreachable ? "no TCP connection to rank " : "nothing was heard of rank ", who,
         unreachable ? ". Open the ports between the nodes."
                     : ". All ranks must use the communicator, for example by "
                       "meshfuse.Communicator.instance().");
  }

  bool findAddress(int r) {
    const auto found = meeting_.find(key(r));
    if (!found) return false;
    const Address& address = addresses_[r] = Address::parse(*found);
    mesh_.nodes_[static_cast<size_t>(r)] = address.node;
    return true;
  }

  void connectTo(int r) {
    const Address& address = addresses_.at(r);
    std::vector<std::string> hosts = address.hosts;
    if (address.node == self_.node) hosts.insert(hosts.begin(), {"127.0.0.1", "::1"});
    if (hosts.empty()) hosts.emplace_back("127.0.0.1");
    for (size_t i = 0;; ++i) {  // waitFor ends it
      if (i > 0 && i % hosts.size() == 0) pauseOnce();
      Socket socket = connected(hosts[i % hosts.size()], address.port);
      if (!socket) continue;
      const Hello hello{address.secret, mesh_.rank_};
      if (!sendAll(socket.get(), &hello, sizeof hello)) continue;
      if (!isWelcome(socket.get())) continue;
      return mesh_.adopt(r, socket.release());
    }
  }

  void pauseOnce() {
    bool again = true;
    waitFor([&] { return !std::exchange(again, false); });
  }

  /// An invalid socket if there is no connection in 2 s.
  Socket connected(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), concat(port).c_str(), &hints, &found) != 0) return Socket();
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
    Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return Socket();
    if (connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS)
      return Socket();
    pollfd ready{socket.get(), POLLOUT, 0};
    constexpr int kMilliseconds = 2000;
    if (::poll(&ready, 1, kMilliseconds) != 1) return Socket();
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? std::move(socket) : Socket();
  }

  /// Whether the other side takes this rank in. It may be busy with its own connections.
  bool isWelcome(int socket) {
    char answer = 0;
    ssize_t n = 0;
    waitFor([&] {
      n = recv(socket, &answer, 1, MSG_DONTWAIT);
      return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    });
    return n == 1 && answer == kWelcome;
  }

  /// Takes in those who connect to this rank.
  void welcome() {
    for (;;) {
      Socket socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) break;
      strangers_.push_back(std::move(socket));
    }
    std::erase_if(strangers_, [this](Socket& stranger) {
      Hello hello;
      const ssize_t n = recv(stranger.get(), &hello, sizeof hello, MSG_DONTWAIT | MSG_PEEK);
      if (n < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
      if (n == 0) return true;
      if (std::cmp_less(n, sizeof hello)) return false;
      recv(stranger.get(), &hello, sizeof hello, MSG_DONTWAIT);
      const bool expected = hello.secret == self_.secret && hello.rank > mesh_.rank_ &&
                            hello.rank < mesh_.size_ &&
                            mesh_.peers_[static_cast<size_t>(hello.rank)].socket < 0;
      if (expected && sendAll(stranger.get(), &kWelcome, 1))
        mesh_.adopt(hello.rank, stranger.release());
      return true;
    });
  }

  SocketMesh& mesh_;
  MeetingPoint& meeting_;
  const double timeout_;
  double base_ = 0, waited_ = 0;  // seconds
  Socket listener_;
  Address self_;
  std::map<int, Address> addresses_;
  std::vector<Socket> strangers_;
};

void SocketMesh::connectAll(MeetingPoint& meeting, double timeout) {
  Joining(*this, meeting, timeout).run();
}

}  // namespace meshfuse
