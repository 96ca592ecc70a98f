// SPDX-License-Identifier: BSD-3-Clause
// Why an operation needs communication, in words and lines of the user's program. Changes nothing.
#pragma once
#include <meshfuse/passes/communication.h>

#include <string>
#include <unordered_map>

namespace meshfuse {

/// getCommunicationInfo(expr) where devices send something; nullopt for a local slice too.
std::optional<CommunicationInfo> sentCommunication(const Expr* expr);

/// Why `expr`, as it stands after propagation, cannot run without communication over mesh axis `p`
/// (or between meshes): the op and its result; a sentence with the shardings that disagree, such as
/// "T1 splits 'k' over mesh_x, T0 holds it whole"; the lines where the tensors in it were
/// annotated, then the line of the operation. Operations that a pass inserted speak for the user's.
Cause causeOf(const Expr* expr, ParallelType p, const Fusion& fusion);

/// The line where the user annotated what `tv` has over mesh axis `p`: its own, or that of the
/// tensor which propagation took the split (or else the mesh) from. file is -1 when unknown.
SourceLoc annotationOf(const TensorView* tv, ParallelType p);

/// From the communications that decompose-resharding has made back to the user's operations.
class CommunicationCauses {
 public:
  /// `before`: the program after propagation, before decompose-resharding. It must outlive this.
  explicit CommunicationCauses(const Fusion& before);
  /// The operation of `before` that a communication serves; nullptr when none is found.
  const Expr* userOf(const Expr* communication) const;
  /// Why the communication over `p` is needed.
  Cause causeFor(const Expr* communication, ParallelType p) const;

 private:
  const Expr* definitionOf(const TensorView* tv) const;
  const TensorView* inProgramBefore(const TensorView* tv) const;

  const Fusion& before_;
  std::unordered_map<std::string, const Expr*> by_name_;  // of tensors of `before`
};

}  // namespace meshfuse
