// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/comm/c10d_communicator.h>

#include <algorithm>
#include <numeric>

#include <ATen/Context.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshfuse {
namespace {

C10dGroups& groupsInUse() {
  static auto& groups = *new C10dGroups;
  return groups;
}

class StoreMeetingPoint final : public MeetingPoint {
 public:
  explicit StoreMeetingPoint(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void put(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> find(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    return store_->get_to_str(key);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

bool hasDevice(const c10d::ProcessGroup& group, c10::DeviceType type) {
  return std::ranges::any_of(group.getDeviceTypes(),
                             [type](const c10::Device& d) { return d.type() == type; });
}

ProcessGroupPtr find(const std::string& name) {
  const auto group = c10d::resolve_process_group(name);
  return {group.get(), [group](c10d::ProcessGroup*) {}};
}

struct BarrierToken {
  int64_t number;  // of the barrier
  int32_t round;
  int32_t unused = 0;
};

}  // namespace

void setC10dGroups(C10dGroups groups) { groupsInUse() = std::move(groups); }
const C10dGroups& c10dGroups() { return groupsInUse(); }

std::unique_ptr<Communicator> makeC10dCommunicator(const C10dGroups& groups) {
  MESHFUSE_CHECK(groups.open,
                 "Communicator: backend c10d needs torch.distributed, which this program does not "
                 "have. Use it from Python, after `import meshfuse`.");
  return std::make_unique<C10dCommunicator>(groups);
}

C10dCommunicator::C10dCommunicator(C10dGroups groups) : groups_(std::move(groups)) {
  name_ = groups_.open();
  base_ = find(name_);
  const auto store = base_->getStore();
  MESHFUSE_CHECK(store, "Communicator: the process group ", name_,
                 " has no store. Make it by torch.distributed.init_process_group or new_group.");
  const int rank = base_->getRank(), size = base_->getSize();
  StoreMeetingPoint meeting(c10::make_intrusive<c10d::PrefixStore>("meshfuse/meet", store));
  sockets_ = SocketMesh::join(rank, size, meeting, timeout_);
  open(sockets_->mailbox(SocketMesh::Channel::Control),
       sockets_->mailbox(SocketMesh::Channel::Agreement));
  barrier_ = sockets_->mailbox(SocketMesh::Channel::Barrier);
  if (launcher_.local_found && launcher_.size == size && launcher_.rank == rank) {
    setLocal(launcher_.local_rank, launcher_.local_size);
  } else {
    const auto& nodes = sockets_->nodes();
    const auto& mine = nodes[static_cast<size_t>(rank)];
    setLocal(std::count(nodes.begin(), nodes.begin() + rank, mine),
             std::count(nodes.begin(), nodes.end(), mine));
  }
  findTransports();
}

// All ranks are here, so making a group waits for nobody.
void C10dCommunicator::findTransports() {
  std::vector<int64_t> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), int64_t{0});
  const bool bare = !base_->hasBackends();
  cpu_ = hasDevice(*base_, c10::kCPU) ? base_ : make(all, "cpu");
  if (bare) {
    // NCCL takes one rank per device. Ranks that have one in common said so before they met.
    carries_cuda_ = at::hasCUDA() && base_->getStore()->add("ranks_that_share_a_device", 0) == 0;
  } else if (hasDevice(*base_, c10::kCUDA)) {
    // Gloo carries them through the host, and adds as it likes: then so do we.
    carries_cuda_ = base_->getBackend(c10::kCUDA)->getBackendName() != "gloo";
    if (carries_cuda_) cuda_.emplace(std::move(all), base_);
  }
}

ProcessGroupPtr C10dCommunicator::make(std::span<const int64_t> team, const char* device) {
  const std::string name = groups_.make(name_, team, device);
  own_.push_back(find(name));
  return own_.back();
}

C10dCommunicator::SingleCall::SingleCall(C10dCommunicator& group, const CollectiveCall& call,
                                         const Proposal& proposal)
    : group_(group), single_(!group.ownsExecution()) {
  if (!single_) return;
  group_.beginExecution(call.team, proposal);
  try {
    group_.agree();
  } catch (...) {
    group_.endExecution();
    throw;
  }
}

C10dCommunicator::SingleCall::~SingleCall() {
  if (single_) group_.endExecution();
}

// In round k each rank hears from the one 2^k places before it: after the last, of all.
void C10dCommunicator::runBarrier(int64_t call) {
  const int64_t number = ++barrier_number_;
  const auto n = static_cast<int>(size_);
  int32_t round = 0;
  int distance = 1;
  const auto tell = [&] {
    const BarrierToken token{number, round};
    barrier_->send((self() + distance) % n, std::as_bytes(std::span(&token, 1)), {});
  };
  {
    const std::lock_guard lock(mutex_);
    tell();
  }
  const auto done = [&] {
    BarrierToken token{};
    std::string text;
    while (barrier_->receive(std::as_writable_bytes(std::span(&token, 1)), text) >= 0)
      barrier_tokens_.emplace(token.number, token.round);
    while (barrier_tokens_.erase({number, round}) > 0) {
      ++round;
      distance *= 2;
      if (distance >= n) return true;
      tell();
    }
    barrier_->progress();
    return false;
  };
  wait(done, "barrier", call);
}

void C10dCommunicator::release(bool closed) {
  for (const ProcessGroupPtr& group : own_) {
    try {
      if (closed) {
        group->abort();
      } else {
        group->shutdown();
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): not every backend can
    }
  }
}

}  // namespace meshfuse
