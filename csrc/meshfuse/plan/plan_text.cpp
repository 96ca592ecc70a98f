// SPDX-License-Identifier: BSD-3-Clause
// Plans for people: what fd.plan() prints.
#include <meshfuse/base/error.h>
#include <meshfuse/plan/plan.h>
#include <meshfuse/text/ir_text.h>

#include <sstream>

namespace meshfuse {

std::string Step::text() const { return meshfuse::toString(expr); }

std::string Plan::toString() const {
  std::ostringstream out;
  const auto list = [&](const std::vector<int64_t>& values) {
    out << "(";
    for (size_t i = 0; i < values.size(); ++i) out << (i > 0 ? ", " : "") << values[i];
    out << ")";
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    out << "input " << i << (inputs[i] < 0 ? ": scalar" : concat(": slot ", inputs[i])) << "\n";
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    out << "step " << i << ": ";
    if (step.communication) {
      out << name(step.communication->info.kind) << " over "
          << pythonName(step.communication->info.mesh_axis) << (step.posted ? ", posted: " : ": ");
    }
    out << step.text();
    for (size_t k = 0; k < step.out.size(); ++k) {
      out << " -> slot " << step.out[k] << " sizes ";
      list(step.call.want(k).sizes);
      out << " strides ";
      list(step.call.want(k).strides);
    }
    out << "\n";
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const PlanOutput& o = outputs[i];
    out << "output " << i << ": ";
    out << (o.slot < 0 ? "scalar" : concat("slot ", o.slot)) << (o.copy ? " (copied)" : "");
    if (o.alias_input >= 0) out << " into the memory of input " << o.alias_input;
    out << "\n";
  }
  return out.str();
}

}  // namespace meshfuse
