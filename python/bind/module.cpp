// SPDX-License-Identifier: BSD-3-Clause
// The extension module meshfuse._C. Importing it starts nothing.
#include "bind.h"

PYBIND11_MODULE(_C, module) {
  namespace mp = meshfuse::python;
  module.doc() = "C++ part of meshfuse.";
  module.attr("__version__") = MESHFUSE_VERSION;
  module.attr("torch_version") = MESHFUSE_TORCH_VERSION;
  mp::bindErrors(module);
  mp::bindTypes(module);
  mp::bindMesh(module);
  auto tensor = mp::bindIr(module);
  mp::bindScalar(module);
  mp::bindFusion(module);
  mp::bindSchedule(tensor);
  mp::bindPropagation(module);
  mp::bindOperators(tensor, module.attr("Scalar"));
  mp::bindOps(module);
  mp::bindCommunicator(module);
  mp::bindExecutor(module);
  mp::bindProfile(module);
  mp::bindText(module);
  mp::bindExplain(module);
}
