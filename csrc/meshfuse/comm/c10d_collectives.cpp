// SPDX-License-Identifier: BSD-3-Clause
// Collectives of CPU tensors, as messages between pairs of ranks. The group's own are not used:
// they add in the type of the message, know few types, and need a group for each team.
#include <meshfuse/comm/c10d_call_proposal.h>
#include <meshfuse/comm/c10d_communicator.h>
#include <meshfuse/comm/reduction.h>

#include <algorithm>
#include <cstring>

#include <ATen/ops/from_blob.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshfuse {
namespace {

// Below: one message to every member costs less than two rounds of shorter ones.
constexpr int64_t kShort = 64 << 10;  // bytes
// How long a rank sleeps until the carrier wakes it, before it looks at other things, too.
constexpr double kNap = 0.02;  // seconds
// Of our messages, in groups that others use too.
constexpr int kTag = 0x6d66;
// How long a rank that lost a connection waits for the reason.
constexpr double kPatience = 1;  // seconds

/// Part `i` of `parts` of [0, total): {begin, count}.
std::pair<int64_t, int64_t> part(int64_t total, int64_t parts, int64_t i) {
  const int64_t size = total / parts, longer = total % parts;  // the first are longer by one
  return {i * size + std::min(i, longer), size + (i < longer ? 1 : 0)};
}

/// The messages of a job, in the carrier's thread.
class Messages {
 public:
  Messages(ProcessGroupPtr group, int64_t piece_bytes)
      : group_(std::move(group)), piece_bytes_(piece_bytes) {}

  void send(int64_t to, const std::byte* data, int64_t bytes) {
    post(const_cast<std::byte*>(data), bytes, [&](std::vector<at::Tensor>& piece) {
      return group_->send(piece, static_cast<int>(to), kTag);
    });
  }
  void receive(int64_t from, std::byte* data, int64_t bytes) {
    post(data, bytes, [&](std::vector<at::Tensor>& piece) {
      return group_->recv(piece, static_cast<int>(from), kTag);
    });
  }
  void wait() {
    for (const auto& work : works_)
      MESHFUSE_CHECK(!work || work->wait(), "the process group gave up a message");
    works_.clear();
  }

 private:
  template <class Post>
  void post(std::byte* data, int64_t bytes, Post&& one) {
    for (int64_t at = 0; at < bytes; at += piece_bytes_) {
      std::vector<at::Tensor> piece = {
          at::from_blob(data + at, {std::min(piece_bytes_, bytes - at)}, at::kByte)};
      works_.push_back(one(piece));
    }
  }

  ProcessGroupPtr group_;
  int64_t piece_bytes_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace

void C10dCommunicator::carry(const CollectiveCall& call, std::function<void()> job) {
  std::vector<at::Tensor> kept(call.out.begin(), call.out.end());
  kept.insert(kept.end(), call.in.begin(), call.in.end());
  runCall(call.what, &call.team, [&](int64_t number) {
    const auto running =
        carrier_.start([kept = std::move(kept), work = std::move(job)] { work(); });
    running->sleep(kNap);
    wait([&] { return running->done(kPatience); }, call.what, number);
    if (!running->failure().empty())
      closeBecauseOfTransport(call.what, number,
                              concat("the process group reports: ", running->failure()));
  });
}

void C10dCommunicator::runTransfers(const CollectiveCall& call,
                                    std::span<const Transfer> transfers) {
  const CallProposal proposal(rank_, call, transfers);
  const SingleCall single(*this, call, proposal);
  if (onCuda(call)) return cudaTransfers(call, transfers);
  carry(call, [moves = std::vector<Transfer>(transfers.begin(), transfers.end()), me = rank_,
               group = cpu_, piece = piece_bytes_] {
    Messages messages(group, piece);
    for (const Transfer& t : moves)
      if (t.from != me) messages.receive(t.from, t.target, t.bytes);
    for (const Transfer& t : moves)
      if (t.to != me) messages.send(t.to, t.source, t.bytes);
    for (const Transfer& t : moves)
      if (t.from == t.to) std::memcpy(t.target, t.source, static_cast<size_t>(t.bytes));
    messages.wait();
  });
}

void C10dCommunicator::runBroadcast(const CollectiveCall& call, int64_t root) {
  const CallProposal proposal(rank_, call, concat("from place ", root));
  const SingleCall single(*this, call, proposal);
  if (onCuda(call))
    return runOnCuda(call, [&](c10d::ProcessGroup& group) {
      std::vector<at::Tensor> bytes = {call.out[0].view({-1}).view(at::kByte)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group.broadcast(bytes, options)->wait();
    });
  const int64_t me = call.local[0];
  const auto bytes = static_cast<int64_t>(call.out[0].nbytes());
  // The root only reads: its memory may be shared with others that read.
  auto* data = me == root ? static_cast<std::byte*>(const_cast<void*>(call.in[0].const_data_ptr()))
                          : static_cast<std::byte*>(call.out[0].mutable_data_ptr());
  carry(call, [=, devices = call.team.devices, group = cpu_, piece = piece_bytes_] {
    Messages messages(group, piece);
    const auto n = static_cast<int64_t>(devices.size());
    const auto device = [&](int64_t place) { return devices[static_cast<size_t>(place)]; };
    if (n == 2 || bytes <= kShort) {
      if (me != root) messages.receive(device(root), data, bytes);
      for (int64_t to = 0; to < n && me == root; ++to)
        if (to != root) messages.send(device(to), data, bytes);
      return messages.wait();
    }
    // Each member passes a part on to all others; the root sends no more than twice the data.
    const auto [begin, count] = part(bytes, n, me);
    if (me == root) {
      for (int64_t to = 0; to < n; ++to)
        if (const auto [b, c] = part(bytes, n, to); to != root)
          messages.send(device(to), data + b, c);
    } else {
      messages.receive(device(root), data + begin, count);
      messages.wait();
    }
    for (int64_t other = 0; other < n; ++other) {
      if (other == me) continue;
      const auto [b, c] = part(bytes, n, other);
      if (me != root) messages.receive(device(other), data + b, c);
      if (other != root) messages.send(device(other), data + begin, count);
    }
    messages.wait();
  });
}

// --- Reductions ----------------------------------------------------------------------------------

// Every member reduces its share, elements {begin, count} of the input, in the order of the team,
// from what the others send it; then, if `give_back`, sends the result to all.
void C10dCommunicator::reduceParts(const CollectiveCall& call, ReduceKind kind,
                                   std::span<const std::pair<int64_t, int64_t>> shares,
                                   bool give_back) {
  const bool in_place = call.out.data() == call.in.data();
  auto* out = call.out.empty() ? nullptr : static_cast<std::byte*>(call.out[0].mutable_data_ptr());
  const auto* in = in_place ? out : static_cast<const std::byte*>(call.in[0].const_data_ptr());
  const bool whole = !call.out.empty() && call.out[0].numel() == call.in[0].numel();
  carry(call, [=, me = call.local[0], type = call.in[0].scalar_type(),
               width = static_cast<int64_t>(call.in[0].element_size()),
               parts = std::vector<std::pair<int64_t, int64_t>>(shares.begin(), shares.end()),
               devices = call.team.devices, group = cpu_, piece = piece_bytes_] {
    Messages messages(group, piece);
    const size_t n = devices.size(), self = static_cast<size_t>(me);
    const auto [begin, count] = parts[self];
    const std::unique_ptr<std::byte[]> memory(
        new std::byte[static_cast<size_t>(count * width) * (n - 1)]);
    std::vector<const std::byte*> terms(n);
    std::byte* next = memory.get();
    for (size_t from = 0; from < n; ++from) {
      if (from == self) {
        terms[from] = in + begin * width;
        continue;
      }
      messages.receive(devices[from], next, count * width);
      terms[from] = next;
      next += count * width;
    }
    for (size_t to = 0; to < n; ++to)
      if (const auto [b, c] = parts[to]; to != self)
        messages.send(devices[to], in + b * width, c * width);
    messages.wait();
    std::byte* sum = whole ? out + begin * width : out;
    if (count > 0) reduceInOrder(sum, terms, count, type, kind);
    if (!give_back) return;
    for (size_t other = 0; other < n; ++other) {
      if (other == self) continue;
      const auto [b, c] = parts[other];
      messages.receive(devices[other], out + b * width, c * width);
      messages.send(devices[other], sum, count * width);
    }
    messages.wait();
  });
}

void C10dCommunicator::runAllReduce(const CollectiveCall& call, ReduceKind kind) {
  const CallProposal proposal(rank_, call, name(kind));
  const SingleCall single(*this, call, proposal);
  if (onCuda(call)) return cudaReduce(call, kind, -1);
  const int64_t n = call.team.size(), total = call.in[0].numel();
  const bool is_short = total * static_cast<int64_t>(call.in[0].element_size()) * (n - 1) <= kShort;
  std::vector<std::pair<int64_t, int64_t>> shares;  // when short: all reduce the whole alike
  shares.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    shares.push_back(is_short ? std::pair{int64_t{0}, total} : part(total, n, i));
  reduceParts(call, kind, shares, !is_short);
}

void C10dCommunicator::runReduceScatter(const CollectiveCall& call, ReduceKind kind) {
  const CallProposal proposal(rank_, call, name(kind));
  const SingleCall single(*this, call, proposal);
  if (onCuda(call)) return cudaReduceScatter(call, kind);
  const int64_t chunk = call.out[0].numel();
  std::vector<std::pair<int64_t, int64_t>> shares;
  shares.reserve(static_cast<size_t>(call.team.size()));
  for (int64_t i = 0; i < call.team.size(); ++i) shares.emplace_back(i * chunk, chunk);
  reduceParts(call, kind, shares, false);
}

void C10dCommunicator::runReduce(const CollectiveCall& call, int64_t root, ReduceKind kind) {
  const CallProposal proposal(rank_, call, concat(name(kind), " at place ", root));
  const SingleCall single(*this, call, proposal);
  if (onCuda(call)) return cudaReduce(call, kind, root);
  std::vector<std::pair<int64_t, int64_t>> shares(call.team.devices.size());
  shares[static_cast<size_t>(root)] = {0, call.in[0].numel()};
  reduceParts(call, kind, shares, false);
}

}  // namespace meshfuse
