// SPDX-License-Identifier: BSD-3-Clause
// All ranks in this process, run in lock-step by one thread: they never wait for one another.
#include <meshfuse/base/error.h>
#include <meshfuse/comm/communicator.h>

#include <numeric>

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

}  // namespace

std::unique_ptr<Communicator> makeSimulatedCommunicator(int64_t size) {
  MESHFUSE_CHECK(size >= 1, "simulate: ", size,
                 " devices. The number of devices must be at least 1.");
  constexpr int64_t kMaxDevices = int64_t{1} << 20;
  MESHFUSE_CHECK(size <= kMaxDevices, "simulate: ", size, " devices are more than one process can ",
                 "hold. Simulate at most ", kMaxDevices, ".");
  return std::make_unique<SimulatedCommunicator>(size);
}

}  // namespace meshfuse
