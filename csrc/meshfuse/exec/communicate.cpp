// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/exec/communicate.h>

#include <algorithm>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace meshfuse {
namespace {

std::vector<int64_t> withLeading(int64_t n, c10::IntArrayRef sizes) {
  std::vector<int64_t> out = {n};
  out.insert(out.end(), sizes.begin(), sizes.end());
  return out;
}

/// Uninitialised memory in the wanted layout; row-major where that has holes or repeats elements.
at::Tensor emptyLike(const Layout& want, const at::TensorOptions& options) {
  int64_t last = 0, elements = 1;
  for (size_t i = 0; i < want.sizes.size(); ++i) {
    elements *= want.sizes[i];
    last += std::max<int64_t>(want.sizes[i] - 1, 0) * want.strides[i];
  }
  return elements > 0 && last + 1 == elements ? at::empty_strided(want.sizes, want.strides, options)
                                              : at::empty(want.sizes, options);
}

/// Whether `axis` is the outermost one in memory among the axes longer than 1, the others
/// row-major.
bool isOutermost(const Layout& layout, int64_t axis) {
  const auto place = static_cast<size_t>(axis);
  int64_t stride = 1;
  for (size_t i = layout.sizes.size(); i-- > 0;) {
    if (i == place || layout.sizes[i] == 1) continue;
    if (layout.strides[i] != stride) return false;
    stride *= layout.sizes[i];
  }
  return layout.sizes[place] <= 1 || layout.strides[place] == stride;
}

/// `t` with zeros after its last element of `axis`, up to `size` elements.
at::Tensor padded(const at::Tensor& t, int64_t axis, int64_t size) {
  if (t.size(axis) == size) return t;
  std::vector<int64_t> sizes = t.sizes().vec();
  sizes[static_cast<size_t>(axis)] = size;
  at::Tensor out = at::empty(sizes, t.options());
  out.narrow(axis, 0, t.size(axis)).copy_(t);
  out.narrow(axis, t.size(axis), size - t.size(axis)).zero_();
  return out;
}

at::Tensor trimmed(const at::Tensor& t, int64_t axis, int64_t size) {
  return t.size(axis) == size ? t : t.narrow(axis, 0, size);
}

/// The axis of a whole tensor that holds `digit`, as three axes: outer, devices, inner.
at::Tensor parted(const at::Tensor& whole, const ShardDigit& digit, int64_t devices) {
  return padded(whole, digit.axis, digit.outer * devices * digit.inner)
      .unflatten(digit.axis, {digit.outer, devices, digit.inner});
}

/// `parts` has the devices first and then a local tensor; gives the tensor whole along `digit`.
at::Tensor assembled(const at::Tensor& parts, const ShardDigit& digit, const Layout& want) {
  const at::Tensor apart =
      parts.unflatten(digit.axis + 1, {digit.outer, digit.inner}).movedim(0, digit.axis + 1);
  const int64_t whole = digit.outer * parts.size(0) * digit.inner;
  if (digit.outer == 1 && digit.axis == 0) {
    return trimmed(apart.flatten(0, 2), 0, digit.whole);  // no copy
  }
  if (whole != digit.whole)
    return trimmed(apart.flatten(digit.axis, digit.axis + 2), digit.axis, digit.whole);
  // One copy, into the layout that is wanted.
  at::Tensor out = emptyLike(want, parts.options());
  out.unflatten(digit.axis, {digit.outer, parts.size(0), digit.inner}).copy_(apart);
  return out;
}

/// The pieces of a whole tensor, one per device, devices first and dense: [devices, local sizes].
at::Tensor pieces(const at::Tensor& whole, const ShardDigit& digit, int64_t devices) {
  const at::Tensor first = parted(whole, digit, devices).movedim(digit.axis + 1, 0);
  return first.flatten(digit.axis + 1, digit.axis + 2).contiguous();
}

/// One collective of one team.
class TeamRun {
 public:
  TeamRun(const CommunicationStep& step, Communicator& comm, const Team& team,
          std::span<Participant> all)
      : step_(step), comm_(comm), team_(team) {
    for (size_t place = 0; place < team.devices.size(); ++place) {
      const auto it = std::ranges::find(all, team.devices[place], &Participant::device);
      if (it == all.end()) continue;
      members_.push_back(&*it);
      places_.push_back(static_cast<int64_t>(place));
    }
  }

  /// Begins the collective; with `posted`, as the communicator's collectives do.
  void begin(Posted* posted) {
    posted_ = posted;
    switch (step_.info.kind) {
      case CommunicationKind::AllReduce:
        return allReduce();
      case CommunicationKind::ReduceScatter:
        return reduceScatter();
      case CommunicationKind::AllGather:
        return allGather();
      case CommunicationKind::LocalSlice:
        return slice();
      case CommunicationKind::AllToAll:
        return allToAll();
      default:
        MESHFUSE_ASSERT(false, name(step_.info.kind), " is not a collective of teams");
    }
  }

  /// After the collective: sets the results.
  void end() {
    for (size_t i = 0; i < out_.size(); ++i) members_[i]->result = resultOf(out_[i], *members_[i]);
  }

  /// Partial results of all members, at the root.
  void reduce(int64_t root) {
    auto data = each([&](const Participant& m) { return partial(m.operand).contiguous(); });
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (places_[i] != root) continue;
      out.push_back(at::empty_like(data[i], at::MemoryFormat::Contiguous));
      members_[i]->result = out.back();
    }
    comm_.reduce(out, data, root, team_, step_.info.reduce);
  }

  /// The root's tensor (`source` of it), to all others.
  void broadcast(const at::TensorOptions& options) {
    if (team_.size() == 1) return;
    std::vector<at::Tensor> data;
    for (size_t i = 0; i < members_.size(); ++i) {
      Participant& m = *members_[i];
      if (places_[i] == 0) {
        data.push_back((m.result.defined() ? m.result : m.operand).contiguous());
      } else {
        data.push_back(at::empty(m.want->sizes, options));
        m.result = data.back();
      }
    }
    comm_.broadcast(data, 0, team_);
  }

 private:
  template <class F>
  std::vector<at::Tensor> each(F f) const {
    std::vector<at::Tensor> out;
    out.reserve(members_.size());
    for (const Participant* m : members_) out.push_back(f(*m));
    return out;
  }
  /// What a member gets, from what the collective wrote.
  at::Tensor resultOf(const at::Tensor& t, const Participant& m) const {
    switch (step_.info.kind) {
      case CommunicationKind::ReduceScatter:
        return scattered(t, m);
      case CommunicationKind::AllGather:
        return gathersInPlace(m) ? t.movedim(0, step_.in.axis) : assembled(t, step_.in, *m.want);
      default:
        return exchanged(t, m);
    }
  }

  /// Partial results without the axis that counts them.
  at::Tensor partial(const at::Tensor& t) const { return t.squeeze(step_.partial_axis); }

  void allReduce() {
    // Dense buffers in the wanted layout: all members have the same one.
    auto out = each([](const Participant& m) { return emptyLike(*m.want, m.operand.options()); });
    auto in = each([&](const Participant& m) { return partial(m.operand); });
    for (size_t i = 0; i < out.size(); ++i) {
      if (!sameInMemory(in[i], out[i])) in[i] = at::empty_like(out[i]).copy_(in[i]);
      members_[i]->result = out[i];
      out[i] = flat(out[i]);
      in[i] = flat(in[i]);
    }
    comm_.allReduce(out, in, team_, step_.info.reduce, posted_);
  }
  /// A dense tensor as a row of its elements in the order of its memory.
  static at::Tensor flat(const at::Tensor& t) { return t.as_strided({t.numel()}, {1}); }
  /// Whether equal places in memory hold the same element; `dense` is dense.
  static bool sameInMemory(const at::Tensor& t, const at::Tensor& dense) {
    if (t.sizes() != dense.sizes() || t.is_conj() || t.is_neg()) return false;
    for (int64_t i = 0; i < t.dim(); ++i) {
      if (t.size(i) > 1 && t.stride(i) != dense.stride(i)) return false;
    }
    return true;
  }

  void reduceScatter() {
    auto data = each([&](const Participant& m) {
      const at::Tensor whole = partial(m.operand);
      if (!movesCut(m)) return pieces(whole, step_.out, step_.devices);
      return padded(whole, step_.out.axis, step_.devices * step_.out.inner)
          .movedim(step_.out.axis, 0)
          .contiguous();
    });
    out_ = each([&](const Participant& m) {
      std::vector<int64_t> sizes = m.want->sizes;
      const int64_t axis = step_.out.axis;
      sizes[static_cast<size_t>(axis)] = step_.out.outer * step_.out.inner;
      if (!movesCut(m)) return at::empty(withLeading(1, sizes), m.operand.options());
      std::rotate(sizes.begin(), sizes.begin() + axis, sizes.begin() + axis + 1);
      return at::empty(sizes, m.operand.options());
    });
    comm_.reduceScatter(out_, data, team_, step_.info.reduce, posted_);
  }
  at::Tensor scattered(const at::Tensor& t, const Participant& m) const {
    const int64_t axis = step_.out.axis;
    const at::Tensor part = movesCut(m) ? t.movedim(0, axis) : t.squeeze(0);
    return trimmed(part, axis, m.want->sizes[static_cast<size_t>(axis)]);
  }

  /// Whether the wanted layout is that of a buffer with the cut axis outermost, which saves a copy.
  bool movesCut(const Participant& m) const {
    return step_.out.outer == 1 && step_.out.axis > 0 && isOutermost(*m.want, step_.out.axis);
  }

  void allGather() {
    const ShardDigit& digit = step_.in;
    auto data = each([&](const Participant& m) {
      const at::Tensor part = padded(m.operand, digit.axis, digit.outer * digit.inner);
      if (gathersInPlace(m)) return part.movedim(digit.axis, 0).contiguous();
      return part.contiguous().unsqueeze(0);
    });
    for (const at::Tensor& t : data) {
      std::vector<int64_t> sizes = t.sizes().vec();
      sizes[0] *= step_.devices;
      out_.push_back(at::empty(sizes, t.options()));
    }
    comm_.allGather(out_, data, team_, posted_);
  }
  /// Whether the buffer of the collective is the result, its gathered axis outermost.
  bool gathersInPlace(const Participant& m) const {
    const ShardDigit& digit = step_.in;
    return digit.whole == digit.outer * digit.inner * step_.devices && digit.outer == 1 &&
           isOutermost(*m.want, digit.axis);
  }

  void slice() {
    for (size_t i = 0; i < members_.size(); ++i) {
      Participant& m = *members_[i];
      const ShardDigit& digit = step_.out;
      if (digit.axis < 0) {
        m.result = m.operand;
      } else if (digit.outer == 1) {
        const int64_t first = std::min(places_[i] * digit.inner, digit.whole);
        m.result = m.operand.narrow(digit.axis, first, std::min(digit.inner, digit.whole - first));
      } else {
        m.result = parted(m.operand, digit, step_.devices)
                       .select(digit.axis + 1, places_[i])
                       .flatten(digit.axis, digit.axis + 1);
      }
    }
  }

  void allToAll() {
    auto data = each([&](const Participant& m) {
      return pieces(padded(m.operand, step_.in.axis, step_.in.outer * step_.in.inner), step_.out,
                    step_.devices);
    });
    for (const at::Tensor& t : data) out_.push_back(at::empty_like(t));
    comm_.allToAll(out_, data, team_, posted_);
  }
  at::Tensor exchanged(const at::Tensor& t, const Participant& m) const {
    const auto axis = static_cast<size_t>(step_.out.axis);
    Layout want = *m.want;
    const int64_t part = want.sizes[axis];
    if (part == step_.out.outer * step_.out.inner) return assembled(t, step_.in, want);
    want.sizes[axis] = step_.out.outer * step_.out.inner;  // uneven: trimmed after it
    int64_t stride = 1;
    for (size_t i = want.sizes.size(); i-- > 0;) {
      want.strides[i] = stride;
      stride *= std::max<int64_t>(want.sizes[i], 1);
    }
    return trimmed(assembled(t, step_.in, want), step_.out.axis, part);
  }

  const CommunicationStep& step_;
  Communicator& comm_;
  const Team& team_;
  std::vector<Participant*> members_;  // local ones, in order of the team
  std::vector<int64_t> places_;        // of them
  std::vector<at::Tensor> out_;        // what the collective writes, where that is not the result
  Posted* posted_ = nullptr;
};

at::Tensor partOf(const at::Tensor& t, const std::vector<AxisPart>& parts) {
  at::Tensor out = t;
  for (size_t axis = 0; axis < parts.size(); ++axis) {
    const auto a = static_cast<int64_t>(axis);
    const AxisPart& part = parts[axis];
    if (part.list.empty()) {
      if (part.length != out.size(a)) out = out.narrow(a, part.start, part.length);
    } else {
      out = out.index_select(a, at::tensor(part.list, t.options().dtype(at::kLong)));
    }
  }
  return out;
}

void putPart(const at::Tensor& target, const std::vector<AxisPart>& parts,
             const at::Tensor& piece) {
  at::Tensor place = target;
  std::vector<at::Tensor> lists;
  bool ranges = true;
  for (size_t axis = 0; axis < parts.size(); ++axis) {
    const auto a = static_cast<int64_t>(axis);
    ranges = ranges && parts[axis].list.empty();
    if (parts[axis].list.empty()) place = place.narrow(a, parts[axis].start, parts[axis].length);
  }
  if (ranges) {
    place.copy_(piece.view(place.sizes()));
    return;
  }
  // Axes with lists: their product is addressed through one flat index per element.
  at::Tensor index = at::zeros({1}, target.options().dtype(at::kLong));
  for (size_t axis = 0; axis < parts.size(); ++axis) {
    const AxisPart& part = parts[axis];
    const auto options = target.options().dtype(at::kLong);
    const at::Tensor positions = part.list.empty()
                                     ? at::arange(part.start, part.start + part.length, options)
                                     : at::tensor(part.list, options);
    index =
        index.mul(target.size(static_cast<int64_t>(axis))).unsqueeze(-1).add(positions).flatten();
  }
  target.view(-1).index_copy_(0, index, piece.reshape(-1));
}

std::vector<int64_t> sizesOf(const std::vector<AxisPart>& parts) {
  std::vector<int64_t> sizes;
  sizes.reserve(parts.size());
  for (const AxisPart& part : parts) sizes.push_back(part.length);
  return sizes;
}

/// Pieces from device to device: what stays is copied, the rest goes in one exchange of messages.
class Exchange {
 public:
  Exchange(const CommunicationStep& step, std::span<Participant> all,
           const at::TensorOptions& options)
      : step_(step), all_(all), options_(options) {}

  void begin(Communicator& comm, Posted* posted) {
    std::vector<SendRecvPair> pairs;
    std::vector<at::Tensor> in;
    for (const Piece& piece : step_.pieces) {
      Participant *from = local(piece.from), *to = local(piece.to);
      if (piece.from == piece.to) continue;
      pairs.push_back({piece.from, piece.to});
      if (from != nullptr) in.push_back(partOf(from->operand, piece.source).contiguous());
      if (to != nullptr) {
        out_.push_back(at::empty(sizesOf(piece.target), options_));
        arrivals_.emplace_back(to, &piece);
      }
    }
    // A rank that does not know the sizes has no pieces: their number does not decide on the call.
    if (step_.info.kind != CommunicationKind::LocalSlice) comm.sendRecv(out_, in, pairs, posted);
  }

  /// After the messages: sets the results.
  void end() {
    for (const Piece& piece : step_.pieces) {
      Participant* m = local(piece.to);
      if (piece.from == piece.to && m != nullptr)
        place(*m, piece, partOf(m->operand, piece.source));
    }
    for (size_t i = 0; i < out_.size(); ++i)
      place(*arrivals_[i].first, *arrivals_[i].second, out_[i]);
    for (Participant& m : all_) {
      if (step_.to->has(m.device) && !m.result.defined())
        m.result = at::empty(m.want->sizes, options_);
    }
  }

 private:
  Participant* local(int64_t device) const {
    const auto it = std::ranges::find(all_, device, &Participant::device);
    return it == all_.end() ? nullptr : &*it;
  }
  void place(Participant& m, const Piece& piece, const at::Tensor& t) const {
    if (piece.fills_target) {
      m.result = t;
      return;
    }
    if (!m.result.defined()) m.result = at::empty(m.want->sizes, options_);
    putPart(m.result, piece.target, t);
  }

  const CommunicationStep& step_;
  std::span<Participant> all_;
  at::TensorOptions options_;
  std::vector<at::Tensor> out_;
  std::vector<std::pair<Participant*, const Piece*>> arrivals_;
};

/// What a device has already becomes its result.
void keepOwn(const CommunicationStep& step, std::span<Participant> all) {
  for (Participant& m : all) {
    if (step.to->has(m.device) && m.operand.defined() && !m.result.defined()) m.result = m.operand;
  }
}

}  // namespace

void communicate(const CommunicationStep& step, Communicator& comm,
                 std::span<Participant> participants, const at::TensorOptions& options) {
  const auto inTeams = [&](auto run) {
    for (const Team& team : *step.teams) run(TeamRun(step, comm, team, participants));
  };
  if (step.isExchange()) {
    Exchange exchange(step, participants, options);
    exchange.begin(comm, nullptr);
    return exchange.end();
  }
  switch (step.info.kind) {
    case CommunicationKind::Broadcast:
      inTeams([&](TeamRun team) { team.broadcast(options); });
      return keepOwn(step, participants);
    case CommunicationKind::Reduce: {
      TeamRun(step, comm, (*step.teams)[0], participants).reduce(step.root);
      TeamRun(step, comm, (*step.teams)[1], participants).broadcast(options);
      for (Participant& m : participants) {
        if (!step.to->has(m.device)) m.result.reset();
      }
      return;
    }
    default:
      return inTeams([](TeamRun team) {
        team.begin(nullptr);
        team.end();
      });
  }
}

struct PostedCommunication::State {
  Participant participant;
  std::optional<TeamRun> team;
  std::optional<Exchange> exchange;
  Posted posted;
};

PostedCommunication::PostedCommunication(const CommunicationStep& step, Communicator& comm,
                                         Participant participant, const at::TensorOptions& options)
    : state_(std::make_unique<State>()) {
  state_->participant = std::move(participant);
  const std::span<Participant> all{&state_->participant, 1};
  if (step.isExchange()) {
    state_->exchange.emplace(step, all, options).begin(comm, &state_->posted);
  } else {
    state_->team.emplace(step, comm, (*step.teams)[0], all).begin(&state_->posted);
  }
}
PostedCommunication::PostedCommunication(PostedCommunication&&) noexcept = default;
PostedCommunication& PostedCommunication::operator=(PostedCommunication&&) noexcept = default;
PostedCommunication::~PostedCommunication() = default;

void PostedCommunication::wait() {
  if (const Posted work = std::move(state_->posted)) work->wait();
}

at::Tensor PostedCommunication::finish() {
  wait();
  if (state_->team) state_->team->end();
  if (state_->exchange) state_->exchange->end();
  return std::move(state_->participant.result);
}

}  // namespace meshfuse
