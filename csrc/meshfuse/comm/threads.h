// SPDX-License-Identifier: BSD-3-Clause
// How many threads of a rank compute.
#pragma once
#include <meshfuse/comm/communicator.h>

namespace meshfuse {

/// Gives each rank of a node its share of the cores as torch's number of threads, where `comm` has
/// several there that the launcher did not bind to cores of their own. A number that was chosen
/// stays: by OMP_NUM_THREADS or MKL_NUM_THREADS, or by torch.set_num_threads after import.
void shareCores(const Communicator& comm);

}  // namespace meshfuse
