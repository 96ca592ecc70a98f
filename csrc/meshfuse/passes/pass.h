// SPDX-License-Identifier: BSD-3-Clause
// Registry of passes. A pass is a function on a Fusion; it has no state, and changes nothing when
// run a second time.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshfuse {

using PassFunction = bool (*)(Fusion&);  // returns whether anything was changed
struct PassInfo {
  std::string name;
  std::string doc;
  PassFunction run;
};

bool registerPass(PassFunction run, std::string_view name, std::string_view doc);
/// Throws Error listing the known names when there is no such pass.
const PassInfo& findPass(std::string_view name);
std::vector<PassInfo> registeredPasses();  // by name
/// Runs one pass and verifies the result.
bool runPass(Fusion& fusion, std::string_view name);
/// Names of the passes that run before compilation, in order.
const std::vector<std::string>& pipeline();
/// Looks at the program before and after each pass of a pipeline.
using PassObserver = std::function<void(const Fusion&, const std::string& pass, bool before)>;
/// Runs all of them on a copy of `fusion`.
std::unique_ptr<Fusion> runPipeline(const Fusion& fusion, const PassObserver& observe = {});

}  // namespace meshfuse

#define MESHFUSE_REGISTER_PASS(function, name, doc)                   \
  static const bool meshfuse_registered_##function [[maybe_unused]] = \
      ::meshfuse::registerPass(function, name, doc)
