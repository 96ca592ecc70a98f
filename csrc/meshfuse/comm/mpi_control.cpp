// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/mpi_control.h>

#include <algorithm>
#include <cstring>

namespace meshfuse {
namespace {

constexpr int kTag = 1;

}  // namespace

struct MpiControl::Header {
  Kind kind;
  int32_t about;  // the rank that it tells of: mostly its sender
  int64_t call;
  int32_t culprit = -1;
  int32_t unused = 0;
  int64_t barrier = 0;
};

std::string_view shortReason(std::string_view reason) {
  constexpr size_t kMax = 2000;
  if (reason.size() <= kMax) return reason;
  size_t end = kMax;
  while (end > 0 && (static_cast<unsigned char>(reason[end]) & 0xC0U) == 0x80U) --end;  // UTF-8
  return reason.substr(0, end);
}

void checkMpi(int status, const char* function) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail(function, ": MPI reports \"", text, "\". The group may be unusable now; restart the job.");
}

MpiControl::MpiControl(MPI_Comm comm) : comm_(comm) {
  int size = 0;
  checkMpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  peers_.resize(static_cast<size_t>(size));
}

MpiControl::~MpiControl() {
  // MPI may still read what is not sent yet: better lost than freed.
  if (!sending_.empty()) new std::list<Sending>(std::move(sending_));
}

void MpiControl::announce(Kind kind, int64_t call, int32_t culprit, std::string_view reason) {
  send({kind, rank_, call, culprit}, reason);
}

void MpiControl::announceWaiting(int64_t call, int64_t barrier) {
  send({.kind = Kind::Waiting, .about = rank_, .call = call, .barrier = barrier}, {});
}

void MpiControl::passOn(int about) {
  const Peer& peer = peers_.at(static_cast<size_t>(about));
  send({peer.failed ? Kind::Failure : Kind::Leaving, about, peer.completed, peer.culprit},
       peer.reason);
}

void MpiControl::send(const Header& header, std::string_view reason) {
  Sending& s = sending_.emplace_back();
  s.bytes.assign(reinterpret_cast<const char*>(&header), sizeof header);
  s.bytes += shortReason(reason);
  for (int to = 0; to < static_cast<int>(peers_.size()); ++to) {
    if (to == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    checkMpi(MPI_Isend(s.bytes.data(), static_cast<int>(s.bytes.size()), MPI_BYTE, to, kTag, comm_,
                       &request),
             "MPI_Isend");
    s.requests.push_back(request);
  }
  allSent();
}

bool MpiControl::allSent() {
  std::erase_if(sending_, [](Sending& s) {
    int done = 0;
    checkMpi(MPI_Testall(static_cast<int>(s.requests.size()), s.requests.data(), &done,
                         MPI_STATUSES_IGNORE),
             "MPI_Testall");
    return done != 0;
  });
  return sending_.empty();
}

void MpiControl::poll() {
  if (!sending_.empty()) allSent();
  for (;;) {
    int found = 0;
    MPI_Status status;
    checkMpi(MPI_Iprobe(MPI_ANY_SOURCE, kTag, comm_, &found, &status), "MPI_Iprobe");
    if (found == 0) return;
    int count = 0;
    checkMpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    std::string bytes(static_cast<size_t>(count), '\0');
    checkMpi(
        MPI_Recv(bytes.data(), count, MPI_BYTE, status.MPI_SOURCE, kTag, comm_, MPI_STATUS_IGNORE),
        "MPI_Recv");
    take(bytes);
  }
}

void MpiControl::take(const std::string& bytes) {
  Header header;
  MESHFUSE_ASSERT(bytes.size() >= sizeof header, "control message of ", bytes.size(), " bytes");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.about == rank_) return;  // passed on by others; known here
  Peer& peer = peers_.at(static_cast<size_t>(header.about));
  switch (header.kind) {
    case Kind::Waiting:
      peer.waiting_in = std::max(peer.waiting_in, header.call);
      peer.barrier = std::max(peer.barrier, header.barrier);
      return;
    case Kind::Refusal:
      ++peer.refusals;
      peer.refused_at = header.call;
      peer.refusal = bytes.substr(sizeof header);
      return;
    case Kind::Failure:
      peer.failed = true;
      peer.culprit = header.culprit;
      peer.reason = bytes.substr(sizeof header);
      break;
    case Kind::Leaving:
      peer.left = true;
      if (!peer.failed) peer.culprit = header.culprit;
      break;
  }
  peer.completed = std::max(peer.completed, header.call);
}

}  // namespace meshfuse
