// SPDX-License-Identifier: BSD-3-Clause
// The text form of the IR, and passes run on it.
#include "bind.h"

#include <meshfuse/passes/pass.h>
#include <meshfuse/plan/dump.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/parser.h>

namespace meshfuse::python {
namespace {

std::shared_ptr<Fusion> parse(const std::string& text, bool uneven) {
  return parseIr(text, {.file = {}, .uneven = uneven});
}

std::string runPassOnText(const std::string& text, const std::string& pass) {
  const std::shared_ptr<Fusion> fusion = parseIr(text);
  runPass(*fusion, pass);
  return irText(*fusion);
}

py::list passes() {
  py::list result;
  for (const PassInfo& pass : registeredPasses()) {
    result.append(py::make_tuple(pass.name, pass.doc));
  }
  return result;
}

}  // namespace

void bindText(py::module_& module) {
  module.def("parse_fusion", &parse, py::arg("text"), py::arg("uneven") = false,
             "The Fusion that the text describes.");
  module.def("run_pass", &runPassOnText, py::arg("text"), py::arg("pass_name"),
             "Parses the text, runs one pass, and returns the text of the result.");
  module.def("registered_passes", &passes, "Name and doc of every pass.");
  module.def("pipeline_dumps", &pipelineDumps, py::arg("fusion"),
             "What the environment variable MESHFUSE_DUMP prints about passes, as a text.");
  module.def("pipeline", &pipeline, "Names of the passes before compilation, in order.");
}

}  // namespace meshfuse::python
