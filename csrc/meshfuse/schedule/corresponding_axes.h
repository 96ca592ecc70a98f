// SPDX-License-Identifier: BSD-3-Clause
// Which axes of other tensors of a program correspond to those of one tensor.
#pragma once
#include <meshfuse/ir/fusion.h>
#include <meshfuse/schedule/domain_replay.h>

#include <functional>
#include <vector>

namespace meshfuse {

/// A tensor, and its axes that stand for axes of the reference.
struct Corresponding {
  TensorView* tensor = nullptr;
  AxisMap map;
};

/// The tensors that operations connect with `reference`, by way of tensors that `enter` admits and
/// so that at least one axis corresponds, nearest first. From operand to operand of an operation
/// axes correspond that run over the same factors, unless these are blocking. Of several ways to a
/// tensor the one on which most axes correspond counts.
std::vector<Corresponding> correspondingAxes(TensorView* reference,
                                             const std::function<bool(const TensorView*)>& enter);

}  // namespace meshfuse
