// SPDX-License-Identifier: BSD-3-Clause
// Collectives of CUDA tensors: the group's own, in a group for each team. Work is ordered on the
// current stream, and the host does not wait.
#include <meshfuse/comm/c10d_communicator.h>

#include <algorithm>

#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_real.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshfuse {
namespace {

at::Tensor bytesOf(const at::Tensor& t) { return t.view({-1}).view(at::kByte); }

at::Tensor bytesAt(const std::byte* data, int64_t bytes, const at::Tensor& like) {
  return at::from_blob(const_cast<std::byte*>(data), {bytes}, like.options().dtype(at::kByte));
}

/// The group's operation that does `kind` as promised, if it has one: NCCL's Min and Max drop NaN,
/// and it has nothing for bits.
std::optional<c10d::ReduceOp::RedOpType> nativeOperation(at::ScalarType type, ReduceKind kind) {
  using c10d::ReduceOp;
  const bool floating =
      type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
  const bool integer =
      type == at::kInt || type == at::kLong || type == at::kChar || type == at::kByte;
  switch (kind) {
    case ReduceKind::Sum:
      if (floating || integer || type == at::kComplexFloat || type == at::kComplexDouble)
        return ReduceOp::SUM;
      break;
    case ReduceKind::Avg:
      if (floating) return ReduceOp::AVG;
      break;
    case ReduceKind::Prod:
      if (floating || integer) return ReduceOp::PRODUCT;
      break;
    case ReduceKind::Min:
      if (integer) return ReduceOp::MIN;
      break;
    case ReduceKind::Max:
      if (integer) return ReduceOp::MAX;
      break;
    default:
      break;
  }
  return std::nullopt;
}

/// What NCCL adds: real numbers.
at::Tensor realOf(const at::Tensor& t) { return t.is_complex() ? at::view_as_real(t) : t; }

at::ScalarType accumulatorOf(at::ScalarType type) {
  switch (type) {
    case at::kComplexHalf:
      return at::kComplexFloat;
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
      return at::kLong;
    default:
      return c10::isFloatingType(type) && type != at::kDouble ? at::kFloat : type;
  }
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceKind kind) {
  const bool is_bool = a.scalar_type() == at::kBool;
  switch (kind) {
    case ReduceKind::Sum:
    case ReduceKind::Avg:
      return is_bool ? a.bitwise_or(b) : a.add(b);
    case ReduceKind::Prod:
      return is_bool ? a.bitwise_and(b) : a.mul(b);
    case ReduceKind::Min:
      return at::minimum(a, b);
    case ReduceKind::Max:
      return at::maximum(a, b);
    case ReduceKind::And:
      return a.bitwise_and(b);
    case ReduceKind::Or:
      return a.bitwise_or(b);
    case ReduceKind::Xor:
      return a.bitwise_xor(b);
  }
  MESHFUSE_ASSERT(false, "unknown ReduceKind");
}

/// Reduces `terms`, one per row, in order, into `out`.
void reduceRows(const at::Tensor& out, const at::Tensor& terms, ReduceKind kind) {
  const at::ScalarType accumulator = accumulatorOf(out.scalar_type());
  at::Tensor sum = terms[0].to(accumulator);
  for (int64_t i = 1; i < terms.size(0); ++i) sum = combine(sum, terms[i].to(accumulator), kind);
  if (kind == ReduceKind::Avg) sum = sum.div(terms.size(0));
  out.view({-1}).copy_(sum);
}

}  // namespace

bool C10dCommunicator::onCuda(const CollectiveCall& call) const {
  return (call.in.empty() ? call.out : call.in)[0].is_cuda();
}

c10d::ProcessGroup& C10dCommunicator::cudaGroup(const Team& team) {
  const auto found = cuda_.find(team.devices);
  if (found != cuda_.end()) return *found->second;
  return *cuda_.emplace(team.devices, make(team.devices, "cuda")).first->second;
}

void C10dCommunicator::runOnCuda(const CollectiveCall& call,
                                 const std::function<void(c10d::ProcessGroup& group)>& body) {
  runCall(call.what, &call.team, [&](int64_t) { body(cudaGroup(call.team)); });
}

void C10dCommunicator::cudaTransfers(const CollectiveCall& call,
                                     std::span<const Transfer> transfers) {
  runOnCuda(call, [&](c10d::ProcessGroup& group) {
    if (call.what == "allGather") {
      at::Tensor out = bytesOf(call.out[0]), in = bytesOf(call.in[0]);
      group._allgather_base(out, in)->wait();
      return;
    }
    if (call.what == "allToAll") {
      at::Tensor out = bytesOf(call.out[0]), in = bytesOf(call.in[0]);
      std::vector<int64_t> equal;
      group.alltoall_base(out, in, equal, equal)->wait();
      return;
    }
    const at::Tensor& like = (call.in.empty() ? call.out : call.in)[0];
    const auto place = [&](int64_t device) {
      return static_cast<int>(std::ranges::find(call.team.devices, device) -
                              call.team.devices.begin());
    };
    for (const Transfer& t : transfers)
      if (t.from == t.to)
        bytesAt(t.target, t.bytes, like).copy_(bytesAt(t.source, t.bytes, like), true);
    group.startCoalescing(c10::kCUDA);
    for (const Transfer& t : transfers) {
      if (t.from == t.to) continue;
      const bool sends = t.from == rank_;
      std::vector<at::Tensor> bytes = {bytesAt(sends ? t.source : t.target, t.bytes, like)};
      if (sends) {
        group.send(bytes, place(t.to), 0);
      } else {
        group.recv(bytes, place(t.from), 0);
      }
    }
    if (const auto work = group.endCoalescing(c10::kCUDA)) work->wait();
  });
}

void C10dCommunicator::cudaReduce(const CollectiveCall& call, ReduceKind kind, int64_t root) {
  const at::Tensor& in = call.in[0];
  const auto operation = nativeOperation(in.scalar_type(), kind);
  const bool wanted = root < 0 || call.local[0] == root;
  runOnCuda(call, [&](c10d::ProcessGroup& group) {
    if (!operation) {
      at::Tensor terms = at::empty({call.team.size(), in.numel()}, in.options());
      at::Tensor to = bytesOf(terms), from = bytesOf(in);
      group._allgather_base(to, from)->wait();
      if (wanted) reduceRows(call.out[0], terms, kind);
      return;
    }
    // In the result itself, where there is one: the group's operations work in place.
    at::Tensor result = wanted ? call.out[0].view({-1}) : in.clone().view({-1});
    if (wanted && !result.is_alias_of(in)) result.copy_(in.view({-1}), true);
    std::vector<at::Tensor> tensors = {realOf(result)};
    if (root < 0) {
      c10d::AllreduceOptions options;
      options.reduceOp = *operation;
      group.allreduce(tensors, options)->wait();
    } else {
      c10d::ReduceOptions options;
      options.reduceOp = *operation;
      options.rootRank = root;
      group.reduce(tensors, options)->wait();
    }
  });
}

void C10dCommunicator::cudaReduceScatter(const CollectiveCall& call, ReduceKind kind) {
  const at::Tensor& in = call.in[0];
  const at::Tensor& out = call.out[0];
  const auto operation = nativeOperation(in.scalar_type(), kind);
  runOnCuda(call, [&](c10d::ProcessGroup& group) {
    if (operation) {
      at::Tensor to = realOf(out.view({-1})), from = realOf(in.view({-1}));
      c10d::ReduceScatterOptions options;
      options.reduceOp = *operation;
      group._reduce_scatter_base(to, from, options)->wait();
      return;
    }
    at::Tensor terms = at::empty({call.team.size(), out.numel()}, in.options());
    at::Tensor to = bytesOf(terms), from = bytesOf(in);
    std::vector<int64_t> equal;
    group.alltoall_base(to, from, equal, equal)->wait();
    reduceRows(out, terms, kind);
  });
}

}  // namespace meshfuse
