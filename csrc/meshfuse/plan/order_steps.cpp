// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/plan/order_steps.h>

#include <algorithm>
#include <set>

namespace meshfuse {
namespace {

constexpr size_t kNone = SIZE_MAX;

bool reduces(const Step& step) {
  const CommunicationKind kind = step.communication->info.kind;
  return kind == CommunicationKind::AllReduce || kind == CommunicationKind::ReduceScatter;
}
/// The same on ranks outside of the meshes, which do not know all of a step.
bool canOverlap(const Step& step) {
  return step.communication != nullptr && step.communication->isWithinMesh();
}

/// List scheduling: the first ready step in the given order, unless it has to wait.
class Ordering {
 public:
  explicit Ordering(const Plan& plan) : steps_(plan.steps) {
    missing_.resize(steps_.size());
    readers_.resize(steps_.size());
    std::vector<size_t> maker(static_cast<size_t>(plan.num_slots), kNone);
    for (size_t i = 0; i < steps_.size(); ++i) {
      for (const Slot s : steps_[i].in) {
        const size_t from = maker[static_cast<size_t>(s)];
        if (from == kNone) continue;
        readers_[from].push_back(i);
        ++missing_[i];
      }
      for (const Slot s : steps_[i].out) maker[static_cast<size_t>(s)] = i;
    }
    waits_for_.resize(steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i)
      if (missing_[i] == 0) setReady(i);
  }

  std::vector<size_t> run() {
    while (!ready_.empty()) {
      const size_t next = *ready_.begin();
      if (!mustWait(next)) {
        take(next);
      } else if (!reductions_.empty()) {
        take(*reductions_.begin());
      } else if (!others_.empty() && last_other_ <= waits_for_[next]) {
        take(*others_.begin());
      } else {
        ended_ = waits_for_[next];
      }
    }
    return order_;
  }

 private:
  bool mustWait(size_t i) const { return waits_for_[i] > ended_; }

  void setReady(size_t i) {
    ready_.insert(i);
    // One that reads the result of another cannot begin before that has ended.
    if (canOverlap(steps_[i]) && !mustWait(i))
      (reduces(steps_[i]) ? reductions_ : others_).insert(i);
  }

  void take(size_t i) {
    ready_.erase(i);
    reductions_.erase(i);
    others_.erase(i);
    order_.push_back(i);
    const size_t place = order_.size();
    const bool communicates = canOverlap(steps_[i]);
    if (communicates && !reduces(steps_[i])) last_other_ = place;
    for (const size_t reader : readers_[i]) {
      if (communicates) waits_for_[reader] = place;
      if (--missing_[reader] == 0) setReady(reader);
    }
  }

  const std::vector<Step>& steps_;
  std::vector<size_t> missing_;                   // per step: operands that are not there
  std::vector<std::vector<size_t>> readers_;      // per step
  std::vector<size_t> waits_for_;                 // per step: place of the last one that it reads
  std::set<size_t> ready_, reductions_, others_;  // all, and communications that may go first
  // Places in the order, from 1: all communications up to `ended_` have ended; `last_other_` is the
  // last one that is no reduction.
  size_t ended_ = 0, last_other_ = 0;
  std::vector<size_t> order_;
};

}  // namespace

void orderSteps(Plan& plan) {
  if (std::ranges::count_if(plan.steps, canOverlap) < 2) return;
  const std::vector<size_t> order = Ordering(plan).run();
  if (std::ranges::is_sorted(order)) return;
  std::vector<Step> steps;
  steps.reserve(order.size());
  for (const size_t i : order) steps.push_back(std::move(plan.steps[i]));
  plan.steps = std::move(steps);
}

void postCommunications(Plan& plan) {
  std::vector<int32_t> made_by(static_cast<size_t>(plan.num_slots), -1);  // not awaited yet
  const auto post = [&](int32_t maker) { plan.steps[static_cast<size_t>(maker)].posted = true; };
  const auto count = static_cast<int32_t>(plan.steps.size());
  for (int32_t i = 0; i < count; ++i) {
    Step& step = plan.steps[static_cast<size_t>(i)];
    for (const Slot s : step.in) {
      int32_t& maker = made_by[static_cast<size_t>(s)];
      if (maker >= 0 && maker + 1 < i) {
        post(maker);
        step.awaits = std::max(step.awaits, maker);
      }
      maker = -1;
    }
    if (step.communication && step.communication->mayPost())
      made_by[static_cast<size_t>(step.out[0])] = i;
  }
  for (const int32_t maker : made_by)  // outputs
    if (maker >= 0 && maker + 1 < count) post(maker);
}

}  // namespace meshfuse
