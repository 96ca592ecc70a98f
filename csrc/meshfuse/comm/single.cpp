// SPDX-License-Identifier: BSD-3-Clause
// A group of one: nothing to wait for.
#include <meshfuse/comm/communicator.h>

namespace meshfuse {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  std::string_view backend() const override { return "single"; }
  int64_t size() const override { return 1; }
  std::span<const int64_t> localRanks() const override {
    static constexpr int64_t kRanks[] = {0};
    return kRanks;
  }
  int64_t rank() const override { return 0; }
  int64_t localSize() const override { return 1; }
  int64_t localRank() const override { return 0; }
  bool isAvailable() const override { return launched_; }
  void barrier() override {}

 private:
  const bool launched_ = readLauncherEnv().found;
};

}  // namespace

std::unique_ptr<Communicator> makeSingleCommunicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace meshfuse
