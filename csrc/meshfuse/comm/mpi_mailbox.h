// SPDX-License-Identifier: BSD-3-Clause
#pragma once
#include <meshfuse/comm/mailbox.h>
#include <mpi.h>

#include <array>
#include <list>
#include <vector>

namespace meshfuse {

/// Throws Error when `status` is not MPI_SUCCESS.
void checkMpi(int status, const char* function);

/// A channel over a communicator of MPI.
class MpiMailbox final : public Mailbox {
 public:
  /// `comm` belongs to the caller and must carry nothing else.
  explicit MpiMailbox(MPI_Comm comm);
  ~MpiMailbox() override;
  MpiMailbox(const MpiMailbox&) = delete;
  MpiMailbox& operator=(const MpiMailbox&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(int to, std::span<const std::byte> head, std::string_view text) override;
  int receive(std::span<std::byte> head, std::string& text) override;
  void progress() override;
  bool allSent() override;

 private:
  struct Sending {  // MPI reads `bytes` until the request is done: the address must not change
    std::string bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Slot {
    std::array<std::byte, 64> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void sendLong(int to, std::span<const std::byte> head, std::string_view text);

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::list<Sending> sending_;
  std::vector<Slot> slots_{64};  // of messages without a text, in turn
  size_t next_slot_ = 0;
};

}  // namespace meshfuse
