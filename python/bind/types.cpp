// SPDX-License-Identifier: BSD-3-Clause
// Enumerations in Python.
#include "bind.h"

#include <meshfuse/base/types.h>

namespace meshfuse::python {
namespace {

// Enumerations that only Python programs name; nothing in the library depends on them.
enum class MemoryType : uint8_t { Local, Shared, Global, Tensor, Symmetric };
enum class LoadStoreOpType : uint8_t { Set, LdMatrix, CpAsync, CpAsyncBulk, CpAsyncBulkTensorTile };
enum class CacheOp : uint8_t { Unspecified, AllLevels, Streaming, Global };
enum class SchedulerType : uint8_t {
  None,
  NoOp,
  PointWise,
  Matmul,
  Reduction,
  InnerPersistent,
  InnerOuterPersistent,
  OuterPersistent,
  Transpose,
  ExprEval,
  Resize,
  Communication,
  Cutlass
};
enum class IdMappingMode : uint8_t { Exact, AlmostExact, Broadcast, Permissive, Loop };
enum class CommunicatorBackend : uint8_t { Nccl, Ucc, Cuda, Mpi, Gloo, Simulated };

template <class T>
void values(py::enum_<T>&& type, std::initializer_list<const char*> names) {
  int value = 0;
  for (const char* name : names) type.value(name, static_cast<T>(value++));
}

}  // namespace

void bindTypes(py::module_& module) {
  py::enum_<DataType> data_type(module, "DataType");
  for (int i = 0; i < kNumDataTypes; ++i) {
    const auto type = static_cast<DataType>(i);
    data_type.value(std::string(pythonName(type)).c_str(), type);
  }
  py::enum_<ParallelType> parallel_type(module, "ParallelType");
  for (int i = 0; i < kNumParallelTypes; ++i) {
    const auto type = static_cast<ParallelType>(i);
    parallel_type.value(std::string(pythonName(type)).c_str(), type);
  }
  values(py::enum_<MemoryType>(module, "MemoryType"),
         {"local", "shared", "global", "tensor", "symmetric"});
  values(py::enum_<LoadStoreOpType>(module, "LoadStoreOpType"),
         {"set", "ldmatrix", "cpasync", "cpasyncbulk", "tma"});
  values(py::enum_<CacheOp>(module, "CacheOp"),
         {"unspecified", "all_levels", "streaming", "global_level"});
  values(py::enum_<SchedulerType>(module, "SchedulerType"),
         {"none", "no_op", "pointwise", "matmul", "reduction", "inner_persistent",
          "inner_outer_persistent", "outer_persistent", "transpose", "expr_eval", "resize",
          "communication", "cutlass"});
  values(py::enum_<IdMappingMode>(module, "IdMappingMode"),
         {"exact", "almost_exact", "broadcast", "permissive", "loop"});
  values(py::enum_<CommunicatorBackend>(module, "CommunicatorBackend"),
         {"nccl", "ucc", "cuda", "mpi", "gloo", "simulated"});
  module.def(
      "c_name", [](DataType type) { return cName(type); },
      "Name of a type in printed tensors and in messages, such as 'float'.");
}

}  // namespace meshfuse::python
