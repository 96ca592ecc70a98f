// SPDX-License-Identifier: BSD-3-Clause
// The plugin libmeshfuse_mpi.so: joining and leaving.
#include <meshfuse/comm/mpi_job.h>  // NOLINT(misc-include-cleaner): jobs are deleted here

#include <cstdio>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

/// Whether MPI was initialised here, and not by the program (mpi4py, say): then we finalise it.
bool joinMpi() {
  int finalized = 0, initialized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Finalized(&finalized);
  MESHFUSE_CHECK(
      finalized == 0,
      "Communicator: MPI was finalised already. Call Communicator.instance() before that.");
  MPI_Initialized(&initialized);
  if (initialized == 0)
    checkMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  else
    checkMpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  MESHFUSE_CHECK(provided >= MPI_THREAD_SERIALIZED, "Communicator: MPI runs with thread level ",
                 provided, ". Initialise it with MPI_Init_thread and MPI_THREAD_SERIALIZED (",
                 MPI_THREAD_SERIALIZED, ") or higher, or leave it to meshfuse.");
  return initialized == 0;
}

/// A communicator of our own, so that our messages never meet the program's.
MPI_Comm duplicateWorld() {
  MPI_Comm comm = MPI_COMM_NULL;
  checkMpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  checkMpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

}  // namespace

MpiCommunicator::MpiCommunicator()
    : owns_mpi_(joinMpi()),
      data_(duplicateWorld()),
      control_comm_(duplicateWorld()),
      agreement_comm_(duplicateWorld()) {
  open(std::make_unique<MpiMailbox>(control_comm_), std::make_unique<MpiMailbox>(agreement_comm_));
  MESHFUSE_CHECK(
      !launcher_.mpi || launcher_.size == size_, "Communicator: mpirun started ", launcher_.size,
      " ranks but MPI sees ", size_,
      ". It belongs to another installation than the MPI library that meshfuse was built "
      "with; use the mpirun of the latter.");
  if (launcher_.local_found) {  // as launched: MPI's order on the node may be another
    setLocal(launcher_.local_rank, launcher_.local_size);
    return;
  }
  MPI_Comm node = MPI_COMM_NULL;
  checkMpi(MPI_Comm_split_type(data_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
           "MPI_Comm_split_type");
  int rank = 0, size = 1;
  checkMpi(MPI_Comm_rank(node, &rank), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(node, &size), "MPI_Comm_size");
  setLocal(rank, size);
  checkMpi(MPI_Comm_free(&node), "MPI_Comm_free");
}

MpiCommunicator::~MpiCommunicator() = default;

void MpiCommunicator::runBarrier(int64_t call) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mutex_);
    checkMpi(MPI_Ibarrier(data_, &request), "MPI_Ibarrier");
  }
  const auto done = [&request] {
    int flag = 0;
    checkMpi(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    return flag != 0;
  };
  wait(done, "barrier", call);
}

const char* MpiCommunicator::whyEnded() const {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0 ? "MPI is finalised" : nullptr;
}

void MpiCommunicator::abort(const std::string& reason) {
  std::fprintf(stderr, "meshfuse: rank %d left after an error: %s\n", self(), reason.c_str());
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

void MpiCommunicator::release(bool closed) {
  if (owns_mpi_) {
    MPI_Finalize();
  } else if (!closed) {  // a closed group may have a collective pending
    MPI_Comm_free(&data_);
    MPI_Comm_free(&control_comm_);
    MPI_Comm_free(&agreement_comm_);
  }
}

}  // namespace meshfuse

extern "C" meshfuse::Communicator* meshfuseMakeMpiCommunicator() {
  return new meshfuse::MpiCommunicator;
}
