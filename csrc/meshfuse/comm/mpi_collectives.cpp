// SPDX-License-Identifier: BSD-3-Clause
// Collectives as messages between pairs of ranks. MPI's own are not used: they add in the type of
// the message and in an order of their choice, and making a communicator for a team blocks without
// looking whether its members are still there.
#include <meshfuse/comm/collective_call.h>
#include <meshfuse/comm/mpi_communicator.h>
#include <meshfuse/comm/reduction.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

// Below: one message to every member costs less than two rounds of shorter ones.
constexpr int64_t kShortReduction = 64 << 10;  // bytes that a rank receives
constexpr int64_t kShortBroadcast = 64 << 10;
// What a member reduces in one round. Rounds overlap, and their memory stays in the cache.
constexpr int64_t kRoundBytes = 256 << 10;
// Polling is work while messages are copied through shared memory: at least this fast.
constexpr double kSlowestBytesPerSecond = 200e6;

int tagOf(std::string_view what) {
  constexpr std::array<std::string_view, 9> kNames = {"allReduce", "allGather", "reduceScatter",
                                                      "allToAll",  "broadcast", "gather",
                                                      "scatter",   "reduce",    "sendRecv"};
  return static_cast<int>(std::ranges::find(kNames, what) - kNames.begin()) + 1;
}

}  // namespace

/// The messages of one collective call on this rank, and the memory that they use.
class MpiCommunicator::Messages {
 public:
  /// Messages that are waited for together.
  struct Batch {
    std::vector<MPI_Request> requests;
    std::vector<std::pair<int, int>> expected;  // per request: sender and size; {-1, 0} of a send
    std::vector<MPI_Status> statuses;
    int64_t bytes = 0;
  };

  Messages(MpiCommunicator& group, const CollectiveCall& call, int64_t number)
      : group_(group), call_(call), number_(number), tag_(tagOf(call.what)) {}
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  int64_t device(int64_t place) const { return call_.team.devices[static_cast<size_t>(place)]; }
  void send(Batch& batch, int64_t to, const std::byte* from, int64_t bytes);
  void receive(Batch& batch, int64_t from, std::byte* to, int64_t bytes);
  /// Waits for the messages of `batch`, which is empty then.
  void wait(Batch& batch);
  /// Memory for messages.
  std::byte* memory(int64_t bytes);

 private:
  bool done(Batch& batch);

  MpiCommunicator& group_;
  const CollectiveCall& call_;
  const int64_t number_;
  const int tag_;
  size_t pending_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

MpiCommunicator::Messages::~Messages() {
  if (pending_ == 0) return;
  // The call failed. MPI may still write into what is not received yet: better lost than freed.
  struct Lost {
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<std::byte[]>> memory;
  };
  auto* lost = new Lost{{}, std::move(memory_)};
  lost->tensors.insert(lost->tensors.end(), call_.out.begin(), call_.out.end());
  lost->tensors.insert(lost->tensors.end(), call_.in.begin(), call_.in.end());
}

void MpiCommunicator::Messages::send(Batch& batch, int64_t to, const std::byte* from,
                                     int64_t bytes) {
  const std::lock_guard lock(group_.mutex_);
  for (int64_t at = 0; at < bytes; at += group_.piece_bytes_) {
    const auto size = static_cast<int>(std::min(group_.piece_bytes_, bytes - at));
    checkMpi(MPI_Isend(from + at, size, MPI_BYTE, static_cast<int>(to), tag_, group_.data_,
                       &batch.requests.emplace_back(MPI_REQUEST_NULL)),
             "MPI_Isend");
    batch.expected.emplace_back(-1, 0);
    ++pending_;
  }
  batch.bytes += bytes;
}

void MpiCommunicator::Messages::receive(Batch& batch, int64_t from, std::byte* to, int64_t bytes) {
  const std::lock_guard lock(group_.mutex_);
  for (int64_t at = 0; at < bytes; at += group_.piece_bytes_) {
    const auto size = static_cast<int>(std::min(group_.piece_bytes_, bytes - at));
    checkMpi(MPI_Irecv(to + at, size, MPI_BYTE, static_cast<int>(from), tag_, group_.data_,
                       &batch.requests.emplace_back(MPI_REQUEST_NULL)),
             "MPI_Irecv");
    batch.expected.emplace_back(static_cast<int>(from), size);
    ++pending_;
  }
  batch.bytes += bytes;
}

void MpiCommunicator::Messages::wait(Batch& batch) {
  if (batch.requests.empty()) return;
  batch.statuses.resize(batch.requests.size());
  group_.wait([&] { return done(batch); }, call_.what, number_,
              static_cast<double>(batch.bytes) / kSlowestBytesPerSecond);
  pending_ -= batch.requests.size();
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const auto [from, size] = batch.expected[i];
    if (from < 0) continue;
    int received = 0;
    checkMpi(MPI_Get_count(&batch.statuses[i], MPI_BYTE, &received), "MPI_Get_count");
    MESHFUSE_CHECK(received == size, call_.what, ": rank ", from, " sent ", received,
                   " bytes where rank ", group_.rank_, " expects ", size,
                   ". All ranks must make the same calls with the same sizes and types.");
  }
  batch.requests.clear();
  batch.expected.clear();
  batch.bytes = 0;
}

bool MpiCommunicator::Messages::done(Batch& batch) {
  int flag = 0;
  const int status = MPI_Testall(static_cast<int>(batch.requests.size()), batch.requests.data(),
                                 &flag, batch.statuses.data());
  if (status == MPI_ERR_IN_STATUS)
    for (const MPI_Status& s : batch.statuses) {
      MESHFUSE_CHECK(s.MPI_ERROR != MPI_ERR_TRUNCATE, call_.what, ": rank ", s.MPI_SOURCE,
                     " sent more bytes than rank ", group_.rank_,
                     " expects. All ranks must make the same calls with the same sizes and types.");
      if (s.MPI_ERROR != MPI_ERR_PENDING) checkMpi(s.MPI_ERROR, "MPI_Testall");
    }
  checkMpi(status, "MPI_Testall");
  return flag != 0;
}

std::byte* MpiCommunicator::Messages::memory(int64_t bytes) {
  // Uninitialised: writing zeros first would double the time.
  return memory_.emplace_back(new std::byte[static_cast<size_t>(bytes)]).get();
}

void MpiCommunicator::runTransfers(const CollectiveCall& call,
                                   std::span<const Transfer> transfers) {
  runCall(call.what, &call.team, [&](int64_t number) {
    Messages messages(*this, call, number);
    Messages::Batch batch;
    for (const Transfer& t : transfers)
      if (t.from != rank_) messages.receive(batch, t.from, t.target, t.bytes);
    for (const Transfer& t : transfers)
      if (t.to != rank_) messages.send(batch, t.to, t.source, t.bytes);
    for (const Transfer& t : transfers)
      if (t.from == t.to) std::memcpy(t.target, t.source, static_cast<size_t>(t.bytes));
    messages.wait(batch);
  });
}

// --- Broadcast -----------------------------------------------------------------------------------

namespace {

/// Part `i` of `parts` of [0, total), in whole units: {begin, count}.
std::pair<int64_t, int64_t> part(int64_t total, int64_t parts, int64_t i) {
  const int64_t size = total / parts, longer = total % parts;  // the first are longer by one
  return {i * size + std::min(i, longer), size + (i < longer ? 1 : 0)};
}

}  // namespace

void MpiCommunicator::runBroadcast(const CollectiveCall& call, int64_t root) {
  runCall(call.what, &call.team, [&](int64_t number) {
    Messages messages(*this, call, number);
    const int64_t n = call.team.size(), me = call.local[0];
    const auto bytes = static_cast<int64_t>(call.out[0].nbytes());
    // The root only reads: its memory may be shared with others that read.
    auto* data = me == root
                     ? static_cast<std::byte*>(const_cast<void*>(call.in[0].const_data_ptr()))
                     : static_cast<std::byte*>(call.out[0].mutable_data_ptr());
    Messages::Batch in, out;
    if (n == 2 || bytes <= kShortBroadcast) {  // along a binary tree over the places after the root
      const int64_t place = (me - root + n) % n;
      int64_t reach = 1;  // how many places further the first child is
      while (reach < n && (place & reach) == 0) reach *= 2;
      if (place > 0) messages.receive(in, messages.device((place - reach + root) % n), data, bytes);
      messages.wait(in);
      for (reach /= 2; reach > 0; reach /= 2)
        if (place + reach < n)
          messages.send(out, messages.device((place + reach + root) % n), data, bytes);
      return messages.wait(out);
    }
    // Each member passes its part on to all others; the root sends no more than twice the data.
    const auto pieceOf = [&](int64_t place) { return part(bytes, n, place); };
    const auto [begin, count] = pieceOf(me);
    if (me == root) {
      for (int64_t to = 0; to < n; ++to)
        if (const auto [b, c] = pieceOf(to); to != root)
          messages.send(out, messages.device(to), data + b, c);
    } else {
      messages.receive(in, messages.device(root), data + begin, count);
      for (int64_t from = 0; from < n; ++from)
        if (const auto [b, c] = pieceOf(from); from != me)
          messages.receive(out, messages.device(from), data + b, c);
      messages.wait(in);
    }
    for (int64_t to = 0; to < n; ++to)
      if (to != me && to != root) messages.send(out, messages.device(to), data + begin, count);
    messages.wait(out);
  });
}

// --- Reductions ----------------------------------------------------------------------------------

// Every member reduces a part, in the order of the team, from what the others send it: all get the
// same bits, since each element is computed once (or, when short, everywhere in the same way).
struct ReductionLayout {
  /// Elements {begin, count} of the input that the member at `place` reduces in `round`.
  std::function<std::pair<int64_t, int64_t>(int64_t place, int64_t round)> share;
  int64_t rounds = 1;
  int64_t out_begin = 0;   // element of the input that goes to the front of this rank's output
  bool give_back = false;  // the reduced parts go to all members
};

void MpiCommunicator::runReduction(const CollectiveCall& call, ReduceKind kind,
                                   const ReductionLayout& layout) {
  runCall(call.what, &call.team, [&](int64_t number) {
    Messages messages(*this, call, number);
    const int64_t n = call.team.size(), me = call.local[0];
    const auto width = static_cast<int64_t>(call.in[0].element_size());
    const bool in_place = call.out.data() == call.in.data();
    auto* out =
        call.out.empty() ? nullptr : static_cast<std::byte*>(call.out[0].mutable_data_ptr());
    const auto* in = in_place ? out : static_cast<const std::byte*>(call.in[0].const_data_ptr());
    int64_t longest = 0;
    for (int64_t round = 0; round < layout.rounds; ++round)
      longest = std::max(longest, layout.share(me, round).second);
    // Two halves: what arrives for the next round, and what is being reduced.
    std::byte* memory = longest > 0 ? messages.memory(2 * (n - 1) * longest * width) : nullptr;
    const auto slot = [&](int64_t round, int64_t i) {
      return memory + ((round % 2) * (n - 1) + i) * longest * width;
    };
    std::array<Messages::Batch, 2> parts, sums;

    const auto exchange = [&](int64_t round) {
      const auto count = layout.share(me, round).second;
      Messages::Batch& batch = parts[static_cast<size_t>(round % 2)];
      for (int64_t from = 0, i = 0; from < n; ++from)
        if (from != me)
          messages.receive(batch, messages.device(from), slot(round, i++), count * width);
      for (int64_t to = 0; to < n; ++to)
        if (const auto [b, c] = layout.share(to, round); to != me)
          messages.send(batch, messages.device(to), in + b * width, c * width);
    };
    exchange(0);
    std::vector<const std::byte*> terms(static_cast<size_t>(n));
    for (int64_t round = 0; round < layout.rounds; ++round) {
      if (round + 1 < layout.rounds) exchange(round + 1);
      messages.wait(parts[static_cast<size_t>(round % 2)]);
      const auto [begin, count] = layout.share(me, round);
      std::byte* sum = count > 0 ? out + (begin - layout.out_begin) * width : nullptr;
      if (count > 0) {
        for (int64_t from = 0, i = 0; from < n; ++from)
          terms[static_cast<size_t>(from)] = from == me ? in + begin * width : slot(round, i++);
        reduceInOrder(sum, terms, count, call.in[0].scalar_type(), kind);
      }
      if (!layout.give_back) continue;
      Messages::Batch& batch = sums[static_cast<size_t>(round % 2)];
      messages.wait(batch);
      for (int64_t from = 0; from < n; ++from)
        if (const auto [b, c] = layout.share(from, round); from != me)
          messages.receive(batch, messages.device(from), out + b * width, c * width);
      for (int64_t to = 0; to < n; ++to)
        if (to != me) messages.send(batch, messages.device(to), sum, count * width);
    }
    for (Messages::Batch& batch : sums) messages.wait(batch);
  });
}

namespace {

/// Elements that a member reduces in one round.
int64_t elementsOfRound(const at::Tensor& in) {
  return std::max(kRoundBytes / static_cast<int64_t>(in.element_size()), int64_t{1});
}

}  // namespace

void MpiCommunicator::runAllReduce(const CollectiveCall& call, ReduceKind kind) {
  const int64_t n = call.team.size(), total = call.in[0].numel();
  const auto width = static_cast<int64_t>(call.in[0].element_size());
  if (total * width * (n - 1) <= kShortReduction)
    return runReduction(call, kind,
                        {.share = [&](int64_t, int64_t) { return std::pair{int64_t{0}, total}; }});
  const int64_t window = elementsOfRound(call.in[0]) * n;
  runReduction(call, kind,
               {.share =
                    [&](int64_t place, int64_t round) {
                      const int64_t front = round * window;
                      const auto [b, c] = part(std::min(window, total - front), n, place);
                      return std::pair{front + b, c};
                    },
                .rounds = (total + window - 1) / window,
                .give_back = true});
}

void MpiCommunicator::runReduceScatter(const CollectiveCall& call, ReduceKind kind) {
  const int64_t chunk = call.out[0].numel();
  const int64_t window = elementsOfRound(call.in[0]);
  runReduction(call, kind,
               {.share =
                    [&](int64_t place, int64_t round) {
                      const int64_t begin = round * window;
                      return std::pair{place * chunk + begin, std::min(window, chunk - begin)};
                    },
                .rounds = (chunk + window - 1) / window,
                .out_begin = call.local[0] * chunk});
}

void MpiCommunicator::runReduce(const CollectiveCall& call, int64_t root, ReduceKind kind) {
  const int64_t total = call.in[0].numel();
  const int64_t window = elementsOfRound(call.in[0]);
  runReduction(call, kind,
               {.share =
                    [&](int64_t place, int64_t round) {
                      const int64_t begin = round * window;
                      return std::pair{begin, place == root ? std::min(window, total - begin) : 0};
                    },
                .rounds = (total + window - 1) / window});
}

}  // namespace meshfuse
