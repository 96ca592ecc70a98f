// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/communicator.h>

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <optional>

namespace meshfuse {
namespace {

struct Variable {
  const char* name;
  int64_t value;
};

/// The first of `names` that is set. Throws Error when its value is not an integer >= `least`.
std::optional<Variable> firstSet(std::initializer_list<const char*> names, int64_t least) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') continue;
    const std::string_view digits(text);
    int64_t value = 0;
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    MESHFUSE_CHECK(status == std::errc{} && end == digits.data() + digits.size() && value >= least,
                   "Communicator: the environment variable ", name, " is \"", text,
                   "\", which is not an integer of at least ", least,
                   ". A launcher (mpirun, torchrun) sets it; unset it or give it the right value.");
    return Variable{name, value};
  }
  return std::nullopt;
}

}  // namespace

LauncherEnv readLauncherEnv() {
  // Hydra's variables (PMI_RANK and so on) come last: MPICH's mpirun sets no others.
  const auto rank = firstSet({"OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID", "PMI_RANK"}, 0);
  const auto size = firstSet({"OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"}, 1);
  if (!rank || !size) return {};  // SLURM_NTASKS alone: a shell in an allocation, not a task

  LauncherEnv env{.rank = rank->value, .size = size->value, .found = true};
  MESHFUSE_CHECK(env.rank < env.size, "Communicator: ", rank->name, "=", env.rank, " is not below ",
                 size->name, "=", env.size,
                 ". Both must come from the same launcher; unset those that don't.");
  const std::string_view who(size->name);
  env.mpi = who == "OMPI_COMM_WORLD_SIZE" || who == "PMI_SIZE";
  const auto local_rank =
      firstSet({"OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"}, 0);
  const auto local_size = firstSet({"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE",
                                    "SLURM_NTASKS_PER_NODE", "MPI_LOCALNRANKS"},
                                   1);
  if (local_rank) env.local_rank = local_rank->value;
  env.local_size = local_size ? local_size->value : env.local_rank + 1;
  env.local_found = local_rank && local_size;
  return env;
}

}  // namespace meshfuse
