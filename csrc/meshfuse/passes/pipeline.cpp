// SPDX-License-Identifier: BSD-3-Clause
// The order of the passes.
#include <meshfuse/passes/pass.h>

namespace meshfuse {

const std::vector<std::string>& pipeline() {
  static const std::vector<std::string> kPasses = {
      "propagate-sharding",    // first: the others need to know how every tensor is divided
      "expand-fused",          // before anything is decided on what they would gather
      "check-strict",          // before it is decomposed, what the user has annotated is plain
      "decompose-resharding",  // then every operation is local, or one communication
      "check-local",           // before layouts: what could not be decomposed ends here
      "finalize-allocation",   // last: memory follows the splits of the loop, whoever made them
  };
  return kPasses;
}

}  // namespace meshfuse
