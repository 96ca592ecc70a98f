// SPDX-License-Identifier: BSD-3-Clause
// The communicator over process groups. c10d.cpp: joining and leaving. c10d_collectives.cpp:
// collectives of CPU tensors. c10d_cuda.cpp: those of CUDA tensors.
#pragma once
#include <meshfuse/comm/c10d.h>
#include <meshfuse/comm/c10d_carrier.h>
#include <meshfuse/comm/collective_call.h>
#include <meshfuse/comm/rank_communicator.h>
#include <meshfuse/comm/socket_mesh.h>

#include <map>
#include <set>

namespace c10d {
class ProcessGroup;
}

namespace meshfuse {

using ProcessGroupPtr = std::shared_ptr<c10d::ProcessGroup>;

/// What ranks tell one another beside collectives goes over sockets of our own: process groups have
/// no message that can be waited for together with other things.
class C10dCommunicator final : public RankCommunicator {
 public:
  explicit C10dCommunicator(C10dGroups groups);

  std::string_view backend() const override { return "c10d"; }
  bool isAvailable() const override { return true; }
  bool carriesCuda() const override { return carries_cuda_; }

 protected:
  void runBarrier(int64_t call) override;
  void release(bool closed) override;

  void runTransfers(const CollectiveCall& call, std::span<const Transfer> transfers) override;
  void runBroadcast(const CollectiveCall& call, int64_t root) override;
  void runAllReduce(const CollectiveCall& call, ReduceKind kind) override;
  void runReduceScatter(const CollectiveCall& call, ReduceKind kind) override;
  void runReduce(const CollectiveCall& call, int64_t root, ReduceKind kind) override;

 private:
  void findTransports();
  ProcessGroupPtr make(std::span<const int64_t> team, const char* device);

  /// Runs a job of the carrier thread as a collective call. It owns what it uses, except for the
  /// tensors of `call`, which are kept for it.
  void carry(const CollectiveCall& call, std::function<void()> job);
  /// A call outside of an execution, which is an execution of its own. Waits until all members make
  /// the same call; throws like agree(). `proposal` must stay as long.
  class SingleCall {
   public:
    SingleCall(C10dCommunicator& group, const CollectiveCall& call, const Proposal& proposal);
    ~SingleCall();
    SingleCall(const SingleCall&) = delete;
    SingleCall& operator=(const SingleCall&) = delete;

   private:
    C10dCommunicator& group_;
    const bool single_;
  };
  void reduceParts(const CollectiveCall& call, ReduceKind kind,
                   std::span<const std::pair<int64_t, int64_t>> shares, bool give_back);

  // Of CUDA tensors.
  bool onCuda(const CollectiveCall& call) const;
  void runOnCuda(const CollectiveCall& call,
                 const std::function<void(c10d::ProcessGroup& group)>& body);
  c10d::ProcessGroup& cudaGroup(const Team& team);
  void cudaTransfers(const CollectiveCall& call, std::span<const Transfer> transfers);
  void cudaReduce(const CollectiveCall& call, ReduceKind kind, int64_t root);
  void cudaReduceScatter(const CollectiveCall& call, ReduceKind kind);

  const C10dGroups groups_;
  std::string name_;      // of the group that was opened
  ProcessGroupPtr base_;  // it
  ProcessGroupPtr cpu_;   // carries CPU tensors between all ranks
  bool carries_cuda_ = false;
  std::map<std::vector<int64_t>, ProcessGroupPtr> cuda_;  // by team
  std::vector<ProcessGroupPtr> own_;                      // made here
  std::shared_ptr<SocketMesh> sockets_;
  std::unique_ptr<Mailbox> barrier_;
  std::set<std::pair<int64_t, int32_t>> barrier_tokens_;  // that came early: number and round
  int64_t barrier_number_ = 0;
  C10dCarrier carrier_;
};

}  // namespace meshfuse
