// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/environment.h>
#include <meshfuse/base/error.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/plan/dump.h>
#include <meshfuse/text/ir_text.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iostream>
#include <mutex>
#include <set>

namespace meshfuse {
namespace {

/// Dumps of MESHFUSE_DUMP that are about passes: "after:propagate-sharding".
std::vector<std::string> passDumps() {
  std::vector<std::string> dumps = environmentList("MESHFUSE_DUMP", "NVFUSER_DUMP");
  std::erase_if(dumps, [](const std::string& item) {
    return !item.starts_with("after:") && !item.starts_with("before:");
  });
  return dumps;
}

void warnOfUnknown(const std::vector<std::string>& dumps) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  for (const std::string& dump : dumps) {
    const std::string pass = dump.substr(dump.find(':') + 1);
    if (std::ranges::find(pipeline(), pass) != pipeline().end()) continue;
    if (!warned.insert(dump).second) continue;
    std::string known;
    for (const std::string& name : pipeline()) known += (known.empty() ? "" : ", ") + name;
    std::cerr << "warning: MESHFUSE_DUMP: '" << dump
              << "' names no pass that runs. Known passes: " << known << ".\n";
  }
}

/// Whether this process prints.
bool isWanted(const LauncherEnv& env) {
  const std::vector<std::string> ranks = environmentList("MESHFUSE_DUMP_RANKS");
  if (ranks.empty()) return env.rank == 0;
  bool wanted = false;
  for (const std::string& text : ranks) {
    int64_t rank = -1;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), rank);
    const bool number = status == std::errc{} && end == text.data() + text.size() && rank >= 0;
    MESHFUSE_CHECK(number || text == "all", "the environment variable MESHFUSE_DUMP_RANKS has '",
                   text, "'. Set it to \"all\", or to ranks such as \"0,2\".");
    wanted = wanted || text == "all" || rank == env.rank;
  }
  return wanted;
}

/// Runs the passes; `print` gets every dump that is wanted, as one text.
std::unique_ptr<Fusion> runAndPrint(const Fusion& fusion,
                                    const std::function<void(const std::string&)>& print) {
  const std::vector<std::string> dumps = passDumps();
  if (dumps.empty()) return runPipeline(fusion);
  const LauncherEnv env = readLauncherEnv();
  if (!isWanted(env)) return runPipeline(fusion);
  warnOfUnknown(dumps);
  const std::string rank = env.size > 1 ? concat(" (rank ", env.rank, ")") : "";
  return runPipeline(fusion, [&](const Fusion& now, const std::string& pass, bool before) {
    const std::string dump = (before ? "before:" : "after:") + pass;
    if (std::ranges::find(dumps, dump) == dumps.end()) return;
    print(concat("// ", dump, rank, "\n", irText(now)));
  });
}

}  // namespace

std::unique_ptr<Fusion> runPipelineWithDumps(const Fusion& fusion) {
  // One write each, so that the texts of several ranks do not mix.
  return runAndPrint(fusion, [](const std::string& text) { std::cerr << text << std::flush; });
}

std::string pipelineDumps(const Fusion& fusion) {
  if (passDumps().empty()) return "";
  std::string all;
  runAndPrint(fusion, [&](const std::string& text) { all += text; });
  return all;
}

}  // namespace meshfuse
