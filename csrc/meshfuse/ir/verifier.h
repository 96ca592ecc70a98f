// SPDX-License-Identifier: BSD-3-Clause
#pragma once
namespace meshfuse {
class Fusion;
class TensorView;

/// Checks what must hold of any Fusion, after definition and after every pass: lists of axes cover
/// the logical axes, contiguity has one entry per allocation axis, a mesh axis is used once, DID
/// axes exist in the mesh and have its size (semantics 2.7). Throws Error.
void verify(const Fusion& fusion);
/// The same for one tensor.
void verify(const TensorView* tv);

}  // namespace meshfuse
