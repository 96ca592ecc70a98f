// SPDX-License-Identifier: BSD-3-Clause
// What the two attention ops have in common: checks of operands and scalars, and axes.
#pragma once
#include <meshfuse/ops/op_def.h>
#include <meshfuse/ops/sdpa.h>

#include <array>
#include <initializer_list>
#include <string>
#include <vector>

namespace meshfuse {

/// Parameters that hold the settings of a call.
struct SettingParams {
  size_t dropout_p, is_causal, scale;
};

/// Checks the types of dropout_p, is_causal and scale.
void checkSettings(const OpCall& call, const SettingParams& params);
/// The settings' values, at evaluation. Throws Error when dropout_p is not in 0 to 1.
AttentionSettings settingsOf(const OpCall& call, const SettingParams& params);
/// Checks rank, type and leading sizes of query, key and value.
void checkAttentionOperands(const OpCall& call, const TensorView* query, const TensorView* key,
                            const TensorView* value);
/// Checks that `tv` has the sizes of `like` on the first `count` axes, as far as declared.
void checkSameLeading(const OpCall& call, const TensorView* like, const TensorView* tv,
                      int64_t count);

/// Four axes: leading ones are made one.
at::Tensor foldLeading(const at::Tensor& t, int64_t kept);
/// Undoes foldLeading: the first axis becomes the leading axes of `like` again.
at::Tensor unfoldLeading(const at::Tensor& t, const at::Tensor& like);

}  // namespace meshfuse
