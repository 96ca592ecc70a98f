// SPDX-License-Identifier: BSD-3-Clause
// The op registry, filled at load time, and the defaults of OpDef.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace meshfuse {
namespace {

std::map<std::string, std::unique_ptr<OpDef>, std::less<>>& registry() {
  static std::map<std::string, std::unique_ptr<OpDef>, std::less<>> ops;
  return ops;
}

}  // namespace

Param tensor(std::string name) {
  return {.name = std::move(name), .default_value = {}, .aliases = {}};
}
Param optTensor(std::string name) {
  return {.name = std::move(name),
          .kind = ParamKind::OptTensor,
          .has_default = true,
          .default_value = {},
          .aliases = {}};
}
Param tensorOrScalar(std::string name) {
  return {.name = std::move(name),
          .kind = ParamKind::TensorOrScalar,
          .default_value = {},
          .aliases = {}};
}
Param attr(std::string name, ParamKind kind) {
  return {.name = std::move(name), .kind = kind, .default_value = {}, .aliases = {}};
}
Param attr(std::string name, ParamKind kind, Arg default_value, std::vector<std::string> aliases) {
  return {.name = std::move(name),
          .kind = kind,
          .has_default = true,
          .default_value = std::move(default_value),
          .aliases = std::move(aliases)};
}

const OpDef& registerOp(std::unique_ptr<OpDef> op) {
  op->info_ = op->info();
  const std::string name = op->info_.name;
  const auto [it, inserted] = registry().try_emplace(name, std::move(op));
  MESHFUSE_ASSERT(inserted, "the op ", name, " is registered twice");
  return *it->second;
}

const OpDef* findOp(std::string_view name) {
  const auto it = registry().find(name);
  return it == registry().end() ? nullptr : it->second.get();
}

std::vector<const OpDef*> registeredOps() {
  std::vector<const OpDef*> out;
  for (const auto& [name, op] : registry()) out.push_back(op.get());
  return out;
}

DataType OpDef::dtype(const OpCall& call) const { return call.tensors().at(0)->dtype(); }

DataType OpDef::resultType(const OpCall& call, size_t) const { return dtype(call); }

std::vector<int> OpDef::referenceOrder(const OpCall& call) const {
  const auto& tensors = call.tensors();
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  const auto deviceAxes = [&](int i) {
    const auto loop = tensors[static_cast<size_t>(i)]->getLoopDomain();
    return std::ranges::count_if(loop, [](const IterDomain* id) {
      return (id->isDeviceDim() || id->isStream()) && !id->isReduction();
    });
  };
  const auto meshRank = [&](int i) {
    return tensors[static_cast<size_t>(i)]->getDeviceMesh().rank();
  };
  std::ranges::stable_sort(order, [&](int a, int b) {
    return std::pair(deviceAxes(a), meshRank(a)) > std::pair(deviceAxes(b), meshRank(b));
  });
  return order;
}

void OpDef::validate(const OpCall&) const {}
std::vector<TensorView*> OpDef::withoutAddends(const OpCall&) const { return {}; }
Scalar OpDef::onScalars(const OpCall&) const { return {}; }
std::vector<Val> OpDef::compose(const OpCall&) const { return {}; }

FactorMap ComposedOp::factors(const OpCall&) const {
  MESHFUSE_ASSERT(false, "the op ", name(), " stands in a program, but it is made of other ops");
  return {};
}
void ComposedOp::evaluate(const OpCall&, const Operands&) const {
  MESHFUSE_ASSERT(false, "the op ", name(), " stands in a program, but it is made of other ops");
}

void OpDef::finish(const OpCall&, std::span<TensorView* const>) const {}

}  // namespace meshfuse
