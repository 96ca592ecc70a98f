// SPDX-License-Identifier: BSD-3-Clause
// Communication over process groups of torch.distributed. Groups have names: Python makes them, and
// C++ looks them up in the registry of c10d.
#pragma once
#include <meshfuse/comm/communicator.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

namespace meshfuse {

/// What makes process groups; all functions may throw.
struct C10dGroups {
  /// Whether there is a group to use: the program made one. Starts nothing.
  std::function<bool()> exists;
  /// Returns the name of the group whose ranks are those of the communicator. One that only has a
  /// store, and no backend, will do. Waits for the other ranks at most.
  std::function<std::string()> open;
  /// Makes a group of the members of `team`, ranks of `group`, in that order, for tensors on
  /// `device` ("cpu" or "cuda"); returns its name. Only the members call it, all at about the same
  /// time.
  std::function<std::string(const std::string& group, std::span<const int64_t> team,
                            const std::string& device)>
      make;
};

/// Sets what makes process groups; done by the Python package.
void setC10dGroups(C10dGroups groups);
/// Empty functions as long as nobody set them.
const C10dGroups& c10dGroups();

/// Joins the group that `groups` opens. Throws Error when ranks do not come in time.
std::unique_ptr<Communicator> makeC10dCommunicator(const C10dGroups& groups);

}  // namespace meshfuse
