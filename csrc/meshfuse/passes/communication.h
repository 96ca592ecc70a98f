// SPDX-License-Identifier: BSD-3-Clause
// Operations that are communications: an identity whose result is divided in another way, or a
// reduction over an axis that is spread over the mesh (semantics 5.5). Changes nothing.
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
  LocalSlice
};
std::string_view name(CommunicationKind kind);  // "all-reduce"

struct CommunicationInfo {
  CommunicationKind kind = CommunicationKind::AllGather;
  ParallelType mesh_axis = ParallelType::DIDx;
  ReduceKind reduce = ReduceKind::Sum;  // AllReduce and ReduceScatter
};

/// The communication that this operation is; nullopt when it is local or not one communication.
std::optional<CommunicationInfo> getCommunicationInfo(const Expr* expr);

}  // namespace meshfuse
