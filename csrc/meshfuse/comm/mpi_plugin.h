// SPDX-License-Identifier: BSD-3-Clause
// The seam between libmeshfuse and its MPI plugin, a module beside it that is loaded on demand.
#pragma once
#include <meshfuse/comm/communicator.h>

namespace meshfuse {

/// Joins MPI_COMM_WORLD, initialising MPI if nobody did; the caller owns the result. Throws Error.
using MpiFactory = Communicator* (*)();
/// Name of that function in the plugin.
inline constexpr const char* kMpiFactoryName = "meshfuseMakeMpiCommunicator";

/// The plugin's file: beside the library that holds this function.
std::string mpiPluginPath();
/// Loads the plugin; it stays loaded. Throws Error with the reason and the cure.
MpiFactory loadMpiPlugin(const std::string& path);

}  // namespace meshfuse
