// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/comm/control_channel.h>

#include <algorithm>
#include <span>
#include <utility>

namespace meshfuse {

struct ControlChannel::Header {
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

ControlChannel::ControlChannel(std::unique_ptr<Mailbox> mailbox)
    : mailbox_(std::move(mailbox)), rank_(mailbox_->rank()) {
  peers_.resize(static_cast<size_t>(mailbox_->size()));
}

void ControlChannel::announce(Kind kind, int64_t call, int32_t culprit, std::string_view reason) {
  send({kind, rank_, call, culprit}, reason);
}

void ControlChannel::announceWaiting(int64_t call, int64_t barrier) {
  send({.kind = Kind::Waiting, .about = rank_, .call = call, .barrier = barrier}, {});
}

void ControlChannel::passOn(int about) {
  const Peer& peer = peers_.at(static_cast<size_t>(about));
  send({peer.failed ? Kind::Failure : Kind::Leaving, about, peer.completed, peer.culprit},
       peer.reason);
}

void ControlChannel::send(const Header& header, std::string_view reason) {
  for (int to = 0; std::cmp_less(to, peers_.size()); ++to)
    if (to != rank_) mailbox_->send(to, std::as_bytes(std::span(&header, 1)), shortReason(reason));
  mailbox_->progress();
}

void ControlChannel::poll() {
  mailbox_->progress();
  Header header{};
  std::string text;
  while (mailbox_->receive(std::as_writable_bytes(std::span(&header, 1)), text) >= 0)
    take(header, std::move(text));
  while (const auto lost = mailbox_->takeLost()) takeLost(*lost);
}

void ControlChannel::takeLost(int rank) {
  Peer& peer = peers_.at(static_cast<size_t>(rank));
  if (peer.left || peer.failed) return;
  peer.failed = true;
  peer.culprit = rank;
  peer.reason = "its process ended without leaving the group: it crashed or was killed";
}

void ControlChannel::take(const Header& header, std::string text) {
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
      peer.refusal = std::move(text);
      return;
    case Kind::Failure:
      peer.failed = true;
      peer.culprit = header.culprit;
      peer.reason = std::move(text);
      break;
    case Kind::Leaving:
      peer.left = true;
      if (!peer.failed) peer.culprit = header.culprit;
      break;
  }
  peer.completed = std::max(peer.completed, header.call);
}

}  // namespace meshfuse
