// SPDX-License-Identifier: BSD-3-Clause
// Collectives as messages between pairs of ranks. MPI's own are not used: they add in the type of
// the message and in an order of their choice, and making a communicator for a team blocks without
// looking whether its members are still there.
#include <meshfuse/comm/mpi_job.h>
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

/// Part `i` of `parts` of [0, total), in whole units: {begin, count}.
std::pair<int64_t, int64_t> part(int64_t total, int64_t parts, int64_t i) {
  const int64_t size = total / parts, longer = total % parts;  // the first are longer by one
  return {i * size + std::min(i, longer), size + (i < longer ? 1 : 0)};
}

}  // namespace

// --- Moves ---------------------------------------------------------------------------------------

class MpiCommunicator::MoveJob final : public Job {
 public:
  MoveJob(MpiCommunicator& group, const CollectiveCall& call, std::span<const Transfer> transfers)
      : Job(group, call), transfers_(transfers) {}

  void start() override {
    for (const Transfer& t : transfers_)
      if (t.from != rank()) receive(batch_, t.from, t.target, t.bytes);
    for (const Transfer& t : transfers_)
      if (t.to != rank()) send(batch_, t.to, t.source, t.bytes);
    for (const Transfer& t : transfers_)
      if (t.from == t.to) std::memcpy(t.target, t.source, static_cast<size_t>(t.bytes));
    transfers_ = {};  // the caller's
  }
  void finish() override { wait(batch_); }

 private:
  std::span<const Transfer> transfers_;
  Batch batch_;
};

void MpiCommunicator::runTransfers(const CollectiveCall& call,
                                   std::span<const Transfer> transfers) {
  runJob(std::make_unique<MoveJob>(*this, call, transfers), call.posted);
}

// --- Broadcast -----------------------------------------------------------------------------------

class MpiCommunicator::BroadcastJob final : public Job {
 public:
  BroadcastJob(MpiCommunicator& group, const CollectiveCall& call, int64_t root)
      : Job(group, call),
        root_(root),
        bytes_(static_cast<int64_t>(out_[0].nbytes())),
        along_tree_(teamSize() == 2 || bytes_ <= kShortBroadcast),
        // The root only reads: its memory may be shared with others that read.
        data_(me_ == root ? static_cast<std::byte*>(const_cast<void*>(in_[0].const_data_ptr()))
                          : static_cast<std::byte*>(out_[0].mutable_data_ptr())) {}

  void start() override {
    if (along_tree_) {
      if (place() > 0) receive(arrival_, deviceAfterRoot(place() - reach()), data_, bytes_);
    } else if (me_ != root_) {
      receivePart(arrival_, root_, me_);
      for (int64_t from = 0; from < teamSize(); ++from)
        if (from != me_) receivePart(rest_, from, from);
    }
    if (me_ == root_) sendOn();
  }

  void finish() override {
    wait(arrival_);
    if (me_ != root_) sendOn();
    wait(rest_);
  }

 private:
  /// Along a binary tree, or each member passes its part on to all others: then the root sends no
  /// more than twice the data.
  void sendOn() {
    const int64_t n = teamSize();
    if (along_tree_) {
      for (int64_t step = reach() / 2; step > 0; step /= 2)
        if (place() + step < n) send(rest_, deviceAfterRoot(place() + step), data_, bytes_);
      return;
    }
    if (me_ == root_)
      for (int64_t to = 0; to < n; ++to)
        if (to != root_) sendPart(to, to);
    for (int64_t to = 0; to < n; ++to)
      if (to != me_ && to != root_) sendPart(to, me_);
  }

  /// Place after the root, which is at 0.
  int64_t place() const { return (me_ - root_ + teamSize()) % teamSize(); }
  int64_t deviceAfterRoot(int64_t place) const { return device((place + root_) % teamSize()); }
  /// How many places before this one its parent is; half of it: how many further its first child.
  int64_t reach() const {
    int64_t reach = 1;
    while (reach < teamSize() && (place() & reach) == 0) reach *= 2;
    return reach;
  }
  void sendPart(int64_t to, int64_t which) {
    const auto [begin, count] = part(bytes_, teamSize(), which);
    send(rest_, device(to), data_ + begin, count);
  }
  void receivePart(Batch& batch, int64_t from, int64_t which) {
    const auto [begin, count] = part(bytes_, teamSize(), which);
    receive(batch, device(from), data_ + begin, count);
  }

  const int64_t root_, bytes_;
  const bool along_tree_;
  std::byte* const data_;
  Batch arrival_, rest_;
};

void MpiCommunicator::runBroadcast(const CollectiveCall& call, int64_t root) {
  runJob(std::make_unique<BroadcastJob>(*this, call, root), call.posted);
}

// --- Reductions ----------------------------------------------------------------------------------

// Every member reduces a part, in the order of the team, from what the others send it: all get the
// same bits, since each element is computed once (or, when short, everywhere in the same way).
struct MpiCommunicator::ReductionLayout {
  /// Elements {begin, count} of the input that the member at `place` reduces in `round`.
  std::function<std::pair<int64_t, int64_t>(int64_t place, int64_t round)> share;
  int64_t rounds = 1;
  int64_t out_begin = 0;   // element of the input that goes to the front of this rank's output
  bool give_back = false;  // the reduced parts go to all members
};

class MpiCommunicator::ReductionJob final : public Job {
 public:
  ReductionJob(MpiCommunicator& group, const CollectiveCall& call, ReduceKind kind,
               ReductionLayout layout)
      : Job(group, call),
        kind_(kind),
        layout_(std::move(layout)),
        type_(in_[0].scalar_type()),
        width_(static_cast<int64_t>(in_[0].element_size())),
        result_(out_.empty() ? nullptr : static_cast<std::byte*>(out_[0].mutable_data_ptr())),
        data_(in_place_ ? result_ : static_cast<const std::byte*>(in_[0].const_data_ptr())) {
    for (int64_t round = 0; round < layout_.rounds; ++round)
      longest_ = std::max(longest_, layout_.share(me_, round).second);
    if (longest_ > 0) memory_ = memory(2 * (teamSize() - 1) * longest_ * width_);
  }

  void start() override { exchange(0); }

  void finish() override {
    for (int64_t round = 0; round < layout_.rounds; ++round) {
      if (round + 1 < layout_.rounds) exchange(round + 1);
      wait(parts_[static_cast<size_t>(round % 2)]);
      reduce(round);
      if (layout_.give_back) giveBack(round);
    }
    for (Batch& batch : sums_) wait(batch);
  }

 private:
  /// Sends all parts of a round, and receives those of this rank's share.
  void exchange(int64_t round) {
    const int64_t n = teamSize(), count = layout_.share(me_, round).second;
    Batch& batch = parts_[static_cast<size_t>(round % 2)];
    for (int64_t from = 0, i = 0; from < n; ++from)
      if (from != me_) receive(batch, device(from), slot(round, i++), count * width_);
    for (int64_t to = 0; to < n; ++to)
      if (const auto [b, c] = layout_.share(to, round); to != me_)
        send(batch, device(to), data_ + b * width_, c * width_);
  }

  void reduce(int64_t round) {
    const auto [begin, count] = layout_.share(me_, round);
    if (count == 0) return;
    terms_.clear();
    for (int64_t from = 0, i = 0; from < teamSize(); ++from)
      terms_.push_back(from == me_ ? data_ + begin * width_ : slot(round, i++));
    reduceInOrder(sum(begin), terms_, count, type_, kind_);
  }

  void giveBack(int64_t round) {
    const int64_t n = teamSize();
    Batch& batch = sums_[static_cast<size_t>(round % 2)];
    wait(batch);
    for (int64_t from = 0; from < n; ++from)
      if (const auto [b, c] = layout_.share(from, round); from != me_)
        receive(batch, device(from), sum(b), c * width_);
    const auto [begin, count] = layout_.share(me_, round);
    for (int64_t to = 0; to < n; ++to)
      if (to != me_) send(batch, device(to), sum(begin), count * width_);
  }

  std::byte* sum(int64_t element) const { return result_ + (element - layout_.out_begin) * width_; }
  /// Two halves: what arrives for the next round, and what is being reduced.
  std::byte* slot(int64_t round, int64_t i) const {
    return memory_ + ((round % 2) * (teamSize() - 1) + i) * longest_ * width_;
  }

  const ReduceKind kind_;
  const ReductionLayout layout_;
  const at::ScalarType type_;
  const int64_t width_;
  std::byte* const result_;
  const std::byte* const data_;
  int64_t longest_ = 0;
  std::byte* memory_ = nullptr;
  std::array<Batch, 2> parts_, sums_;
  std::vector<const std::byte*> terms_;
};

namespace {

/// Elements that a member reduces in one round.
int64_t elementsOfRound(const at::Tensor& in) {
  return std::max(kRoundBytes / static_cast<int64_t>(in.element_size()), int64_t{1});
}

}  // namespace

void MpiCommunicator::runReduction(const CollectiveCall& call, ReduceKind kind,
                                   ReductionLayout layout) {
  runJob(std::make_unique<ReductionJob>(*this, call, kind, std::move(layout)), call.posted);
}

void MpiCommunicator::runAllReduce(const CollectiveCall& call, ReduceKind kind) {
  const int64_t n = call.team.size(), total = call.in[0].numel();
  const auto width = static_cast<int64_t>(call.in[0].element_size());
  if (total * width * (n - 1) <= kShortReduction)
    return runReduction(
        call, kind, {.share = [total](int64_t, int64_t) { return std::pair{int64_t{0}, total}; }});
  const int64_t window = elementsOfRound(call.in[0]) * n;
  runReduction(call, kind,
               {.share =
                    [=](int64_t place, int64_t round) {
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
                    [=](int64_t place, int64_t round) {
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
                    [=](int64_t place, int64_t round) {
                      const int64_t begin = round * window;
                      return std::pair{begin, place == root ? std::min(window, total - begin) : 0};
                    },
                .rounds = (total + window - 1) / window});
}

}  // namespace meshfuse
