// SPDX-License-Identifier: BSD-3-Clause
// Operations that are communications: an identity whose result is divided in another way or is on
// another mesh, or a reduction over an axis that is spread over the mesh (semantics 5.5). Changes
// nothing.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <optional>
#include <string_view>

namespace meshfuse {

enum class CommunicationKind : uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  LocalSlice,  // no message: each device has what it needs
  Broadcast,
  Gather,
  Scatter,
  Reduce,
  SendRecv
};
std::string_view name(CommunicationKind kind);  // "all-reduce"

struct CommunicationInfo {
  CommunicationKind kind = CommunicationKind::AllGather;
  /// Mesh axis over which devices talk; between meshes: one over which a side is divided, else x.
  ParallelType mesh_axis = ParallelType::DIDx;
  ReduceKind reduce = ReduceKind::Sum;  // AllReduce, ReduceScatter, Reduce
  bool between_meshes = false;
};

/// Whether applying the operation to its own partial results finishes them, in the same type: then
/// each device need not compute anything before the communication.
bool combinesPartials(const Expr* expr);

/// The communication that this operation is; nullopt when it is local or not one communication.
std::optional<CommunicationInfo> getCommunicationInfo(const Expr* expr);

/// Bits of one element, for counting bytes.
int64_t bitsOf(DataType type);

/// Whether mesh axis `p` of the tensor's mesh has several devices.
bool hasSeveralDevices(const TensorView* tv, ParallelType p);

}  // namespace meshfuse
