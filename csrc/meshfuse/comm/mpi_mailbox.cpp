// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/mpi_mailbox.h>

#include <algorithm>
#include <cstring>

namespace meshfuse {
namespace {

constexpr int kTag = 1;

bool isDone(MPI_Request& request) {
  int done = 0;
  checkMpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace

void checkMpi(int status, const char* function) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail(function, ": MPI reports \"", text, "\". The group may be unusable now; restart the job.");
}

MpiMailbox::MpiMailbox(MPI_Comm comm) : comm_(comm) {
  checkMpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
}

MpiMailbox::~MpiMailbox() {
  // MPI may still read what is not sent yet: better lost than freed.
  if (!sending_.empty()) new std::list<Sending>(std::move(sending_));
  new std::vector<Slot>(std::move(slots_));
}

// A message without a text is on the way of every execution: it needs no memory of its own.
void MpiMailbox::send(int to, std::span<const std::byte> head, std::string_view text) {
  Slot& slot = slots_[next_slot_++ % slots_.size()];
  if (!text.empty() || !isDone(slot.request)) return sendLong(to, head, text);
  std::ranges::copy(head, slot.bytes.begin());
  checkMpi(MPI_Isend(slot.bytes.data(), static_cast<int>(head.size()), MPI_BYTE, to, kTag, comm_,
                     &slot.request),
           "MPI_Isend");
}

void MpiMailbox::sendLong(int to, std::span<const std::byte> head, std::string_view text) {
  Sending& s = sending_.emplace_back();
  s.bytes.assign(reinterpret_cast<const char*>(head.data()), head.size());
  s.bytes += text;
  checkMpi(MPI_Isend(s.bytes.data(), static_cast<int>(s.bytes.size()), MPI_BYTE, to, kTag, comm_,
                     &s.request),
           "MPI_Isend");
}

void MpiMailbox::progress() {
  if (!sending_.empty()) std::erase_if(sending_, [](Sending& s) { return isDone(s.request); });
}

bool MpiMailbox::allSent() {
  progress();
  return sending_.empty() &&
         std::ranges::all_of(slots_, [](Slot& slot) { return isDone(slot.request); });
}

int MpiMailbox::receive(std::span<std::byte> head, std::string& text) {
  int found = 0, count = 0;
  MPI_Status status;
  checkMpi(MPI_Iprobe(MPI_ANY_SOURCE, kTag, comm_, &found, &status), "MPI_Iprobe");
  if (found == 0) return -1;
  checkMpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  const auto head_size = static_cast<int>(head.size());
  MESHFUSE_ASSERT(count >= head_size, "message of ", count, " bytes");
  const int source = status.MPI_SOURCE;
  if (count == head_size) {
    checkMpi(MPI_Recv(head.data(), count, MPI_BYTE, source, kTag, comm_, MPI_STATUS_IGNORE),
             "MPI_Recv");
    text.clear();
    return source;
  }
  std::string bytes(static_cast<size_t>(count), '\0');
  checkMpi(MPI_Recv(bytes.data(), count, MPI_BYTE, source, kTag, comm_, MPI_STATUS_IGNORE),
           "MPI_Recv");
  std::memcpy(head.data(), bytes.data(), head.size());
  text.assign(bytes, head.size());
  return source;
}

}  // namespace meshfuse
