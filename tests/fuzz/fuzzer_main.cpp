// SPDX-License-Identifier: BSD-3-Clause
// The entry point that libFuzzer calls; MESHFUSE_FUZZ_TARGET is a function of targets.h.
#include "targets.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    meshfuse::fuzz::MESHFUSE_FUZZ_TARGET(data, size);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}
