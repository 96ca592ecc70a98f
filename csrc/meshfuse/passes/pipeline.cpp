// SPDX-License-Identifier: BSD-3-Clause
// The order of the passes.
#include <meshfuse/passes/pass.h>

namespace meshfuse {

const std::vector<std::string>& pipeline() {
  static const std::vector<std::string> passes = {
      "propagate-sharding",   // first: the others need to know how every tensor is divided
      "check-local",          // before layouts: an operation that needs communication ends here
      "finalize-allocation",  // last: memory follows the splits of the loop, whoever made them
  };
  return passes;
}

}  // namespace meshfuse
