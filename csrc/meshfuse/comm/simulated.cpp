// SPDX-License-Identifier: BSD-3-Clause
// All ranks in this process, run in lock-step by one thread: they never wait for one another.
#include <meshfuse/base/error.h>
#include <meshfuse/base/types.h>
#include <meshfuse/comm/collective_call.h>
#include <meshfuse/comm/reduction.h>

#include <cstring>
#include <numeric>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

class SimulatedCommunicator final : public Communicator {
 public:
  explicit SimulatedCommunicator(int64_t size) : ranks_(static_cast<size_t>(size)) {
    std::iota(ranks_.begin(), ranks_.end(), int64_t{0});
  }
  std::string_view backend() const override { return "simulated"; }
  int64_t size() const override { return static_cast<int64_t>(ranks_.size()); }
  std::span<const int64_t> localRanks() const override { return ranks_; }
  int64_t rank() const override { return onlyRank("rank"); }
  int64_t localSize() const override { return size(); }
  int64_t localRank() const override { return onlyRank("local_rank"); }
  bool isAvailable() const override { return false; }
  void barrier() override {}

 protected:
  void runTransfers(const CollectiveCall& call, std::span<const Transfer> transfers) override;
  void runBroadcast(const CollectiveCall& call, int64_t root) override;
  void runAllReduce(const CollectiveCall& call, ReduceKind kind) override;
  void runReduceScatter(const CollectiveCall& call, ReduceKind kind) override;
  void runReduce(const CollectiveCall& call, int64_t root, ReduceKind kind) override;

 private:
  int64_t onlyRank(std::string_view what) const {
    MESHFUSE_CHECK(
        size() == 1, what, ": a simulated mesh of ", size(),
        " devices has all of them in "
        "this process, so there is no single ",
        what,
        ". Use sim.run(fd, global_inputs) "
        "to execute on all devices, and sim.local(output, device) for one device's part.");
    return 0;
  }
  std::vector<int64_t> ranks_;
};

std::byte* bytes(const at::Tensor& t) { return static_cast<std::byte*>(t.mutable_data_ptr()); }

/// Reduces elements [begin, begin + count) of all `in` into `out`.
void reduceAll(std::byte* out, const CollectiveCall& call, int64_t begin, int64_t count,
               ReduceKind kind) {
  std::vector<const std::byte*> terms;
  for (const at::Tensor& t : call.in)
    terms.push_back(static_cast<const std::byte*>(t.const_data_ptr()) +
                    begin * static_cast<int64_t>(t.element_size()));
  reduceInOrder(out, terms, count, call.in[0].scalar_type(), kind);
}

// All members are local, so all pointers are there, and tensors and places of the team correspond.
void SimulatedCommunicator::runTransfers(const CollectiveCall&,
                                         std::span<const Transfer> transfers) {
  for (const Transfer& t : transfers) std::memcpy(t.target, t.source, static_cast<size_t>(t.bytes));
}

void SimulatedCommunicator::runBroadcast(const CollectiveCall& call, int64_t root) {
  const at::Tensor& source = call.in[static_cast<size_t>(root)];
  for (const at::Tensor& t : call.out)
    if (!t.is_same(source) && t.const_data_ptr() != source.const_data_ptr())
      std::memcpy(bytes(t), source.const_data_ptr(), source.nbytes());
}

void SimulatedCommunicator::runAllReduce(const CollectiveCall& call, ReduceKind kind) {
  reduceAll(bytes(call.out[0]), call, 0, call.in[0].numel(), kind);
  runBroadcast({call.what, call.team, call.local, call.out, call.out}, 0);
}

void SimulatedCommunicator::runReduceScatter(const CollectiveCall& call, ReduceKind kind) {
  const int64_t count = call.out[0].numel();
  for (size_t i = 0; i < call.out.size(); ++i)
    reduceAll(bytes(call.out[i]), call, static_cast<int64_t>(i) * count, count, kind);
}

void SimulatedCommunicator::runReduce(const CollectiveCall& call, int64_t, ReduceKind kind) {
  reduceAll(bytes(call.out[0]), call, 0, call.in[0].numel(), kind);
}

}  // namespace

std::unique_ptr<Communicator> makeSimulatedCommunicator(int64_t size) {
  MESHFUSE_CHECK(size >= 1, "simulate: ", size,
                 " devices. The number of devices must be at least 1.");
  MESHFUSE_CHECK(size <= kMaxDevices, "simulate: ", size, " devices are more than one process can ",
                 "hold. Simulate at most ", kMaxDevices, ".");
  return std::make_unique<SimulatedCommunicator>(size);
}

}  // namespace meshfuse
