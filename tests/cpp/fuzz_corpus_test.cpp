// SPDX-License-Identifier: BSD-3-Clause
// The fuzzers' targets on the corpus: what was found once stays mended.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "../fuzz/targets.h"

namespace meshfuse {
namespace {

using Bytes = std::vector<uint8_t>;

/// Of the files in a folder of fuzz/corpus; tests run in tests/.
std::vector<std::pair<std::string, Bytes>> corpus(const char* folder) {
  std::vector<std::pair<std::string, Bytes>> files;
  for (const auto& entry :
       std::filesystem::directory_iterator("fuzz/corpus/" + std::string(folder))) {
    std::ifstream in(entry.path(), std::ios::binary);
    files.emplace_back(entry.path().filename(), Bytes(std::istreambuf_iterator<char>(in), {}));
  }
  return files;
}

TEST(FuzzCorpus, IrText) {
  const auto files = corpus("parse_ir");
  EXPECT_GE(files.size(), 5U);
  for (const auto& [name, bytes] : files) {
    EXPECT_NO_THROW(fuzz::parseIrText(bytes.data(), bytes.size())) << name;
  }
}

TEST(FuzzCorpus, Schedules) {
  const auto files = corpus("schedule");
  EXPECT_GE(files.size(), 5U);
  for (const auto& [name, bytes] : files) {
    EXPECT_NO_THROW(fuzz::scheduleProgram(bytes.data(), bytes.size())) << name;
  }
}

}  // namespace
}  // namespace meshfuse
