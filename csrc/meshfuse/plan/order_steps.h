// SPDX-License-Identifier: BSD-3-Clause
// In which order the steps of a plan run, and which communications are posted.
#pragma once
#include <meshfuse/plan/plan.h>

namespace meshfuse {

/// Brings communications whose operand is there before steps that wait for an earlier one, so that
/// they are under way together. Reductions all of them: their results are no larger than the
/// operands, which are there anyway. Of others one at a time, which costs the memory of one result.
/// Local steps keep their order, and no sizes count: so all ranks have the same order.
void orderSteps(Plan& plan);

/// Posts communications behind which other steps come before the first use of their result.
void postCommunications(Plan& plan);

}  // namespace meshfuse
