// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/comm/threads.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <ATen/Parallel.h>

namespace meshfuse {
namespace {

const int kThreadsAtStart = at::get_num_threads();

bool isChosen() {
  for (const char* variable : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const char* text = std::getenv(variable);
    if (text != nullptr && *text != '\0') return true;
  }
  return at::get_num_threads() != kThreadsAtStart;
}

}  // namespace

void shareCores(const Communicator& comm) {
  cpu_set_t allowed;
  if (comm.localSize() < 2 || isChosen()) return;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const int64_t cores = CPU_COUNT(&allowed);
  if (cores < sysconf(_SC_NPROCESSORS_ONLN)) return;  // bound to some of them
  const auto share = static_cast<int>(std::max<int64_t>(cores / comm.localSize(), 1));
  if (at::get_num_threads() > share) at::set_num_threads(share);
}

}  // namespace meshfuse
