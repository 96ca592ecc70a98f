// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ir/verifier.h>
#include <meshfuse/passes/pass.h>

#include <map>

namespace meshfuse {
namespace {

std::map<std::string, PassInfo, std::less<>>& registry() {
  static std::map<std::string, PassInfo, std::less<>> passes;
  return passes;
}

}  // namespace

bool registerPass(PassFunction run, std::string_view name, std::string_view doc) {
  const auto [it, inserted] =
      registry().try_emplace(std::string(name), PassInfo{std::string(name), std::string(doc), run});
  MESHFUSE_ASSERT(inserted, "the pass ", name, " is registered twice");
  return true;
}

const PassInfo& findPass(std::string_view name) {
  const auto it = registry().find(name);
  if (it != registry().end()) return it->second;
  std::string known;
  for (const auto& [key, info] : registry()) known += (known.empty() ? "" : ", ") + key;
  fail("there is no pass named '", name, "'. Known passes: ", known, ".");
}

std::vector<PassInfo> registeredPasses() {
  std::vector<PassInfo> out;
  for (const auto& [name, info] : registry()) out.push_back(info);
  return out;
}

bool runPass(Fusion& fusion, std::string_view name) {
  const bool changed = findPass(name).run(fusion);
  verify(fusion);
  return changed;
}

std::unique_ptr<Fusion> runPipeline(const Fusion& fusion, const PassObserver& observe) {
  verify(fusion);
  std::unique_ptr<Fusion> copy = fusion.clone();
  for (const std::string& name : pipeline()) {
    if (observe) observe(*copy, name, true);
    try {
      runPass(*copy, name);
    } catch (Error& error) {
      error.addNote("in pass " + name);
      throw;
    }
    if (observe) observe(*copy, name, false);
  }
  return copy;
}

}  // namespace meshfuse
