// SPDX-License-Identifier: BSD-3-Clause
// Which communicator a process gets.
#pragma once
#include <meshfuse/comm/communicator.h>

#include <functional>

namespace meshfuse {

enum class Backend { Single, Mpi, MpiIfPluginLoads, C10d };

/// `wanted`: the value of MESHFUSE_BACKEND, empty when unset. `has_group`: the program has opened a
/// process group. Throws Error when the choice is not known.
Backend chooseBackend(const LauncherEnv& env, std::string_view wanted, bool has_group);

/// Called by the thread that makes the process-wide communicator, after that. Empty by default.
void setStartHook(std::function<void()> hook);

/// Says on the standard error stream how this rank of several ended ("failed: KeyError: 1"). The
/// first call of a process alone does; without a process-wide communicator, none.
void nameEnd(std::string_view how);

}  // namespace meshfuse
