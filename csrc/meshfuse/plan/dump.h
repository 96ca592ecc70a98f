// SPDX-License-Identifier: BSD-3-Clause
// MESHFUSE_DUMP=before:<pass>,after:<pass>: the program's text on stderr while it is compiled.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <memory>
#include <string>

namespace meshfuse {

/// runPipeline(fusion), and prints the program in its text form before and after the passes that
/// MESHFUSE_DUMP names (names without before: or after: are other dumps). Only the launcher's rank
/// 0 prints, or the ranks in MESHFUSE_DUMP_RANKS, a list of numbers or "all"; each then says which
/// rank it is. A pass that does not exist is a warning on stderr, once per process; a wrong
/// MESHFUSE_DUMP_RANKS throws Error.
std::unique_ptr<Fusion> runPipelineWithDumps(const Fusion& fusion);

/// What runPipelineWithDumps prints, as a text: for programs that were compiled before.
std::string pipelineDumps(const Fusion& fusion);

}  // namespace meshfuse
