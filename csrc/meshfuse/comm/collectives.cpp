// SPDX-License-Identifier: BSD-3-Clause
// What collectives have in common on all backends: the checks, and the moves of bytes that they are
// made of.
#include <ATen/core/Tensor.h>  // first: std::span looks at it as soon as one is named

#include <meshfuse/base/error.h>
#include <meshfuse/comm/collective_call.h>
#include <meshfuse/comm/host_copies.h>
#include <meshfuse/comm/reduction.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace meshfuse {
namespace {

std::string list(std::span<const int64_t> values) {
  std::string text;
  for (const int64_t v : values) text += concat(text.empty() ? "" : ", ", v);
  return text;
}
std::string shape(const at::Tensor& t) { return concat("[", list(t.sizes()), "]"); }

std::atomic<int64_t> calls_begun{0};

/// Checks the members of a team, which may be none.
void checkTeam(std::string_view what, const Team& team, int64_t world) {
  std::vector<bool> seen(static_cast<size_t>(world));
  for (const int64_t d : team.devices) {
    MESHFUSE_CHECK(d >= 0 && d < world, what, ": device ", d, " of the team {", list(team.devices),
                   "} does not exist; the group has ", world, world == 1 ? " rank" : " ranks",
                   ". Start more ranks or use a smaller mesh.");
    MESHFUSE_CHECK(!seen[static_cast<size_t>(d)], what, ": device ", d,
                   " comes more than once in the team {", list(team.devices),
                   "}. Name each device once.");
    seen[static_cast<size_t>(d)] = true;
  }
}

/// Counts the call and checks its team.
void beginCall(std::string_view what, const Team& team, int64_t world) {
  calls_begun.fetch_add(1, std::memory_order_relaxed);
  MESHFUSE_CHECK(team.size() > 0, what, ": the team has no members. Name at least one device.");
  checkTeam(what, team, world);
}

void checkRoot(std::string_view what, int64_t root, const Team& team) {
  MESHFUSE_CHECK(root >= 0 && root < team.size(), what, ": root ", root,
                 " is not a place in the team {", list(team.devices), "} of ", team.size(),
                 ". It counts within the team, from 0.");
}

void checkLocal(std::string_view what, const char* role, LocalTensors tensors, size_t wanted) {
  MESHFUSE_CHECK(tensors.size() == wanted, what, ": ", tensors.size(), " tensors as ", role,
                 ", but the ranks of this process have ", wanted,
                 " of them in this call. Pass one per local rank that has one, in team order.");
  for (const at::Tensor& t : tensors) {
    MESHFUSE_CHECK(!t.defined() || t.is_cpu() || t.is_cuda(), what, ": ", role, " is on device ",
                   t.device().str(),
                   ", but collectives take CPU and CUDA tensors only. Move it to the CPU first.");
  }
}

void checkTensor(std::string_view what, const char* role, const at::Tensor& t) {
  MESHFUSE_CHECK(t.defined(), what, ": ", role, " is an undefined tensor. Allocate it first.");
  MESHFUSE_CHECK(t.layout() != at::kStrided || t.has_storage(), what, ": ", role, " of size ",
                 shape(t),
                 " has no memory, as inside of a transform of torch.func (vmap, grad, jvp, ...). "
                 "These reach into what one device computes, not into communications. "
                 "Communicate outside of the transform.");
  MESHFUSE_CHECK(t.layout() == at::kStrided && t.is_contiguous() && !t.is_conj() && !t.is_neg(),
                 what, ": ", role, " of size ", shape(t),
                 " is not contiguous (or is a conjugate view). Use contiguous() first, and "
                 "resolve_conj() for complex tensors.");
}

/// All of `tensors` are usable and like the first of them.
void checkAlike(std::string_view what, const char* role, LocalTensors tensors) {
  for (const at::Tensor& t : tensors) {
    checkTensor(what, role, t);
    const at::Tensor& first = tensors.front();
    MESHFUSE_CHECK(t.scalar_type() == first.scalar_type() && t.numel() == first.numel(), what, ": ",
                   role, " differs between ranks: ", first.scalar_type(), " ", shape(first),
                   " and ", t.scalar_type(), " ", shape(t),
                   ". All ranks need the same size and data type.");
    MESHFUSE_CHECK(t.is_cpu() == first.is_cpu(), what, ": ", role, " is on ", first.device().str(),
                   " for one rank and on ", t.device().str(),
                   " for another. Put all on CUDA or all on the CPU.");
  }
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a0 = static_cast<const std::byte*>(a.const_data_ptr());
  const auto* b0 = static_cast<const std::byte*>(b.const_data_ptr());
  return a.nbytes() > 0 && b.nbytes() > 0 && a0 < b0 + b.nbytes() && b0 < a0 + a.nbytes();
}

/// `out_times` * elements of out == `in_times` * elements of in.
void checkFit(std::string_view what, LocalTensors out, LocalTensors in, int64_t out_times,
              int64_t in_times) {
  checkAlike(what, "out", out);
  checkAlike(what, "in", in);
  if (out.empty() || in.empty()) return;
  const at::Tensor &o = out.front(), &i = in.front();
  MESHFUSE_CHECK(o.scalar_type() == i.scalar_type(), what, ": out has type ", o.scalar_type(),
                 " and in has type ", i.scalar_type(), ". Give both the same type.");
  MESHFUSE_CHECK(o.device() == i.device(), what, ": out is on device ", o.device().str(),
                 " and in on ", i.device().str(), ". Put both on the same device.");
  MESHFUSE_CHECK(o.numel() * out_times == i.numel() * in_times, what, ": out of size ", shape(o),
                 " does not fit in of size ", shape(i), ": it needs ",
                 in_times > 1 ? concat(in_times, " times the elements of in")
                 : out_times > 1
                     ? concat("one of ", out_times, " equal parts of the elements of in")
                     : std::string("as many elements as in"),
                 ". Check the sizes against the team.");
  for (const at::Tensor& a : out)
    for (const at::Tensor& b : in)
      MESHFUSE_CHECK(!overlap(a, b), what,
                     ": out and in share memory. Allocate out separately, or clone in.");
}

/// What is cut into `parts` chunks has an outermost axis that they divide.
void checkChunks(std::string_view what, const char* role, LocalTensors tensors, int64_t parts) {
  for (const at::Tensor& t : tensors) {
    const at::IntArrayRef sizes = t.sizes();
    const auto longer = std::ranges::find_if(sizes, [](int64_t s) { return s != 1; });
    const int64_t outermost = longer == sizes.end() ? 1 : *longer;
    MESHFUSE_CHECK(outermost % parts == 0 || t.numel() == 0, what, ": ", role, " of size ",
                   shape(t), " cannot be cut into ", parts, " chunks: its outermost axis has ",
                   outermost, " elements. Use a size that ", parts, " divides.");
  }
}

const std::byte* source(const at::Tensor& t) {
  return static_cast<const std::byte*>(t.const_data_ptr());
}
std::byte* target(const at::Tensor& t) { return static_cast<std::byte*>(t.mutable_data_ptr()); }
int64_t bytesOf(const at::Tensor& t) { return static_cast<int64_t>(t.nbytes()); }

void copy(const at::Tensor& out, const at::Tensor& in) {
  if (!out.is_cpu()) {
    out.view(-1).copy_(in.view(-1), /*non_blocking=*/true);  // in the order of the current stream
  } else if (out.nbytes() > 0) {
    std::memcpy(target(out), source(in), in.nbytes());
  }
}

void copyAll(LocalTensors out, LocalTensors in) {
  for (size_t i = 0; i < out.size(); ++i) copy(out[i], in[i]);
}

/// Pointers of a team's members into their tensors; nullptr where a member is not local.
template <class Pointer, class Get>
std::vector<Pointer> pointers(const Team& team, std::span<const int64_t> holders,
                              LocalTensors tensors, Get get) {
  std::vector<Pointer> all(team.devices.size(), nullptr);
  for (size_t i = 0; i < holders.size(); ++i)
    all[static_cast<size_t>(holders[i])] = get(tensors[i]);
  return all;
}

/// Collects transfers between places of a team, those of local members only.
class Transfers {
 public:
  Transfers(const CollectiveCall& call, std::span<const int64_t> out_holders,
            std::span<const int64_t> in_holders)
      : team_(call.team),
        sources_(pointers<const std::byte*>(call.team, in_holders, call.in, source)),
        targets_(pointers<std::byte*>(call.team, out_holders, call.out, target)) {
    is_local_.resize(call.team.devices.size());
    for (const int64_t place : call.local) is_local_[static_cast<size_t>(place)] = true;
  }
  void add(int64_t from, int64_t from_offset, int64_t to, int64_t to_offset, int64_t bytes) {
    const auto f = static_cast<size_t>(from), t = static_cast<size_t>(to);
    if (bytes == 0 || !(is_local_[f] || is_local_[t])) return;
    all_.push_back({.from = team_.devices[f],
                    .to = team_.devices[t],
                    .source = sources_[f] ? sources_[f] + from_offset : nullptr,
                    .target = targets_[t] ? targets_[t] + to_offset : nullptr,
                    .bytes = bytes});
  }
  std::span<const Transfer> all() const { return all_; }

 private:
  const Team& team_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
  std::vector<bool> is_local_;
  std::vector<Transfer> all_;
};

/// The root, where it is local.
std::vector<int64_t> holdersAt(int64_t root, std::span<const int64_t> local) {
  if (std::ranges::find(local, root) == local.end()) return {};
  return {root};
}

/// Makes the call on copies in host memory, if it has CUDA tensors that the backend does not carry.
template <class Call>
bool throughHost(const Communicator& group, const Team& team, LocalTensors out, LocalTensors in,
                 Call call) {
  if (!HostCopies::needed(group, team, out, in)) return false;
  HostCopies host(out, in);
  call(host.out(), host.in());
  host.giveBack();
  return true;
}
template <class Call>
bool throughHost(const Communicator& group, const Team& team, LocalTensors in_out, Call call) {
  if (!HostCopies::needed(group, team, in_out, {})) return false;
  HostCopies host(in_out);
  call(host.out());
  host.giveBack();
  return true;
}

[[noreturn]] void noTransport(std::string_view what) {
  MESHFUSE_ASSERT(false, what, ": this backend has no transport");
}

}  // namespace

int64_t collectiveCalls() { return calls_begun.load(std::memory_order_relaxed); }

void Communicator::runTransfers(const CollectiveCall& call, std::span<const Transfer>) {
  noTransport(call.what);
}
void Communicator::runBroadcast(const CollectiveCall& call, int64_t) { noTransport(call.what); }
void Communicator::runAllReduce(const CollectiveCall& call, ReduceKind) { noTransport(call.what); }
void Communicator::runReduceScatter(const CollectiveCall& call, ReduceKind) {
  noTransport(call.what);
}
void Communicator::runReduce(const CollectiveCall& call, int64_t, ReduceKind) {
  noTransport(call.what);
}

std::vector<int64_t> Communicator::localMembers(const Team& team) const {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < team.size(); ++i)
    if (std::ranges::find(localRanks(), team.devices[static_cast<size_t>(i)]) != localRanks().end())
      places.push_back(i);
  return places;
}

void Communicator::allReduce(LocalTensors out, LocalTensors in, const Team& team, ReduceKind kind,
                             Posted* posted) {
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { allReduce(o, i, team, kind); }))
    return;
  constexpr std::string_view kWhat = "allReduce";
  beginCall(kWhat, team, size());
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  checkLocal(kWhat, "out", out, local.size());
  checkLocal(kWhat, "in", in, local.size());
  checkFit(kWhat, out, in, 1, 1);
  checkReducible(kWhat, in[0].scalar_type(), kind);
  if (team.size() == 1) copyAll(out, in);
  if (team.size() == 1 || in[0].nbytes() == 0) return skipCall(kWhat);
  runAllReduce({kWhat, team, local, out, in, posted}, kind);
}

void Communicator::allReduce(LocalTensors in_out, const Team& team, ReduceKind kind,
                             Posted* posted) {
  if (throughHost(*this, team, in_out, [&](auto t) { allReduce(t, team, kind); })) return;
  constexpr std::string_view kWhat = "allReduce";
  beginCall(kWhat, team, size());
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  checkLocal(kWhat, "in_out", in_out, local.size());
  checkAlike(kWhat, "in_out", in_out);
  checkReducible(kWhat, in_out[0].scalar_type(), kind);
  if (team.size() == 1 || in_out[0].nbytes() == 0) return skipCall(kWhat);
  runAllReduce({kWhat, team, local, in_out, in_out, posted}, kind);
}

void Communicator::allGather(LocalTensors out, LocalTensors in, const Team& team, Posted* posted) {
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { allGather(o, i, team); })) return;
  constexpr std::string_view kWhat = "allGather";
  beginCall(kWhat, team, size());
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  checkLocal(kWhat, "out", out, local.size());
  checkLocal(kWhat, "in", in, local.size());
  checkFit(kWhat, out, in, 1, team.size());
  checkChunks(kWhat, "out", out, team.size());
  if (team.size() == 1) copyAll(out, in);
  if (team.size() == 1 || in[0].nbytes() == 0) return skipCall(kWhat);
  const CollectiveCall call{kWhat, team, local, out, in, posted};
  const int64_t bytes = bytesOf(in[0]);
  Transfers moves(call, local, local);
  for (int64_t from = 0; from < team.size(); ++from)
    for (int64_t to = 0; to < team.size(); ++to) moves.add(from, 0, to, from * bytes, bytes);
  runTransfers(call, moves.all());
}

void Communicator::reduceScatter(LocalTensors out, LocalTensors in, const Team& team,
                                 ReduceKind kind, Posted* posted) {
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { reduceScatter(o, i, team, kind); }))
    return;
  constexpr std::string_view kWhat = "reduceScatter";
  beginCall(kWhat, team, size());
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  checkLocal(kWhat, "out", out, local.size());
  checkLocal(kWhat, "in", in, local.size());
  checkFit(kWhat, out, in, team.size(), 1);
  checkChunks(kWhat, "in", in, team.size());
  checkReducible(kWhat, in[0].scalar_type(), kind);
  if (team.size() == 1) copyAll(out, in);
  if (team.size() == 1 || in[0].nbytes() == 0) return skipCall(kWhat);
  runReduceScatter({kWhat, team, local, out, in, posted}, kind);
}

void Communicator::allToAll(LocalTensors out, LocalTensors in, const Team& team, Posted* posted) {
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { allToAll(o, i, team); })) return;
  constexpr std::string_view kWhat = "allToAll";
  beginCall(kWhat, team, size());
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  checkLocal(kWhat, "out", out, local.size());
  checkLocal(kWhat, "in", in, local.size());
  checkFit(kWhat, out, in, 1, 1);
  checkChunks(kWhat, "in", in, team.size());
  if (team.size() == 1) copyAll(out, in);
  if (team.size() == 1 || in[0].nbytes() == 0) return skipCall(kWhat);
  const CollectiveCall call{kWhat, team, local, out, in, posted};
  const int64_t bytes = bytesOf(in[0]) / team.size();
  Transfers moves(call, local, local);
  for (int64_t from = 0; from < team.size(); ++from)
    for (int64_t to = 0; to < team.size(); ++to)
      moves.add(from, to * bytes, to, from * bytes, bytes);
  runTransfers(call, moves.all());
}

void Communicator::broadcast(LocalTensors in_out, int64_t root, const Team& team, Posted* posted) {
  if (throughHost(*this, team, in_out, [&](auto t) { broadcast(t, root, team); })) return;
  constexpr std::string_view kWhat = "broadcast";
  beginCall(kWhat, team, size());
  checkRoot(kWhat, root, team);
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  checkLocal(kWhat, "in_out", in_out, local.size());
  checkAlike(kWhat, "in_out", in_out);
  if (team.size() == 1 || in_out[0].nbytes() == 0) return skipCall(kWhat);
  runBroadcast({kWhat, team, local, in_out, in_out, posted}, root);
}

void Communicator::gather(LocalTensors out, LocalTensors in, int64_t root, const Team& team,
                          Posted* posted) {
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { gather(o, i, root, team); })) return;
  constexpr std::string_view kWhat = "gather";
  beginCall(kWhat, team, size());
  checkRoot(kWhat, root, team);
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  const std::vector<int64_t> at_root = holdersAt(root, local);
  checkLocal(kWhat, "out", out, at_root.size());
  checkLocal(kWhat, "in", in, local.size());
  checkFit(kWhat, out, in, 1, team.size());
  checkChunks(kWhat, "out", out, team.size());
  if (team.size() == 1) copyAll(out, in);
  if (team.size() == 1 || in[0].nbytes() == 0) return skipCall(kWhat);
  const CollectiveCall call{kWhat, team, local, out, in, posted};
  const int64_t bytes = bytesOf(in[0]);
  Transfers moves(call, at_root, local);
  for (int64_t from = 0; from < team.size(); ++from) moves.add(from, 0, root, from * bytes, bytes);
  runTransfers(call, moves.all());
}

void Communicator::scatter(LocalTensors out, LocalTensors in, int64_t root, const Team& team,
                           Posted* posted) {
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { scatter(o, i, root, team); })) return;
  constexpr std::string_view kWhat = "scatter";
  beginCall(kWhat, team, size());
  checkRoot(kWhat, root, team);
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  const std::vector<int64_t> at_root = holdersAt(root, local);
  checkLocal(kWhat, "out", out, local.size());
  checkLocal(kWhat, "in", in, at_root.size());
  checkFit(kWhat, out, in, team.size(), 1);
  checkChunks(kWhat, "in", in, team.size());
  if (team.size() == 1) copyAll(out, in);
  if (team.size() == 1 || out[0].nbytes() == 0) return skipCall(kWhat);
  const CollectiveCall call{kWhat, team, local, out, in, posted};
  const int64_t bytes = bytesOf(out[0]);
  Transfers moves(call, local, at_root);
  for (int64_t to = 0; to < team.size(); ++to) moves.add(root, to * bytes, to, 0, bytes);
  runTransfers(call, moves.all());
}

void Communicator::reduce(LocalTensors out, LocalTensors in, int64_t root, const Team& team,
                          ReduceKind kind, Posted* posted) {
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { reduce(o, i, root, team, kind); }))
    return;
  constexpr std::string_view kWhat = "reduce";
  beginCall(kWhat, team, size());
  checkRoot(kWhat, root, team);
  const std::vector<int64_t> local = localMembers(team);
  if (local.empty()) return skipCall(kWhat);
  checkLocal(kWhat, "out", out, holdersAt(root, local).size());
  checkLocal(kWhat, "in", in, local.size());
  checkFit(kWhat, out, in, 1, 1);
  checkReducible(kWhat, in[0].scalar_type(), kind);
  if (team.size() == 1) copyAll(out, in);
  if (team.size() == 1 || in[0].nbytes() == 0) return skipCall(kWhat);
  runReduce({kWhat, team, local, out, in, posted}, root, kind);
}

void Communicator::sendRecv(LocalTensors out, LocalTensors in, std::span<const SendRecvPair> pairs,
                            Posted* posted) {
  constexpr std::string_view kWhat = "sendRecv";
  const auto is_local = [&](int64_t d) {
    return std::ranges::find(localRanks(), d) != localRanks().end();
  };
  Team team;  // whom this call is about
  size_t sent = 0, received = 0;
  for (const auto& [from, to] : pairs) {
    for (const int64_t d : {from, to})
      if (std::ranges::find(team.devices, d) == team.devices.end()) team.devices.push_back(d);
    sent += is_local(from) ? 1 : 0;
    received += is_local(to) ? 1 : 0;
  }
  if (throughHost(*this, team, out, in, [&](auto o, auto i) { sendRecv(o, i, pairs); })) return;
  calls_begun.fetch_add(1, std::memory_order_relaxed);  // a call without messages, too
  checkTeam(kWhat, team, size());
  if (sent + received == 0) return skipCall(kWhat);
  checkLocal(kWhat, "in", in, sent);
  checkLocal(kWhat, "out", out, received);
  for (const at::Tensor& t : in) checkTensor(kWhat, "in", t);
  for (const at::Tensor& t : out) checkTensor(kWhat, "out", t);

  std::vector<Transfer> moves;
  std::vector<std::pair<at::Tensor, at::Tensor>> within;  // this process: out, in
  size_t next_in = 0, next_out = 0;
  for (const auto& [from, to] : pairs) {
    LocalTensors i, o;
    if (is_local(from)) i = in.subspan(next_in++, 1);
    if (is_local(to)) o = out.subspan(next_out++, 1);
    if (i.empty() && o.empty()) continue;
    checkFit(kWhat, o, i, 1, 1);
    const int64_t bytes = bytesOf(i.empty() ? o[0] : i[0]);
    if (bytes == 0) continue;
    if (!i.empty() && !o.empty()) within.emplace_back(o[0], i[0]);
    moves.push_back({.from = from,
                     .to = to,
                     .source = i.empty() ? nullptr : source(i[0]),
                     .target = o.empty() ? nullptr : target(o[0]),
                     .bytes = bytes});
  }
  const bool needs_others =
      std::ranges::any_of(moves, [](const Transfer& m) { return m.from != m.to; });
  if (!needs_others) {
    for (const auto& [o, i] : within) copy(o, i);
    return skipCall(kWhat);
  }
  const std::vector<int64_t> local = localMembers(team);
  runTransfers({kWhat, team, local, out, in, posted}, moves);
}

}  // namespace meshfuse
