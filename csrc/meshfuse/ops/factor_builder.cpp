// SPDX-License-Identifier: BSD-3-Clause
// FactorBuilder: collects the axes that one factor runs over and checks that their extents agree.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

namespace meshfuse {
namespace {

thread_local ConstraintScope* active_scope = nullptr;

bool isStaticOne(const IterDomain* id) { return id->isBroadcast() && !id->expandedExtent(); }

}  // namespace

ConstraintScope::ConstraintScope() : outer_(active_scope) { active_scope = this; }
ConstraintScope::~ConstraintScope() { active_scope = outer_; }
void ConstraintScope::add(const Constraint& c) {
  if (active_scope != nullptr) active_scope->list_.push_back(c);
}

FactorBuilder::FactorBuilder(const OpCall& call) : call_(call) {
  for (const TensorView* tv : call.tensors()) {
    operands_.emplace_back(static_cast<size_t>(tv->ndim()));
  }
}

std::optional<int32_t> FactorBuilder::factor(FactorKind kind, std::span<const int64_t> axes,
                                             std::string label) {
  ScalarPool& pool = call_.fusion().scalars();
  Scalar extent;
  size_t first = 0;  // operand that gave `extent`
  SmallVector<size_t, 4> members;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0) continue;
    const TensorView* tv = call_.tensors()[i];
    const AxisList logical = tv->domain().withoutReductions(tv->domain().logical());
    const IterDomain* id = tv->domain().id(logical[static_cast<size_t>(axes[i])]);
    if (isStaticOne(id)) continue;
    members.push_back(i);
    const Scalar mine = id->getMaybeExpandedExtent();
    if (!extent) {
      extent = mine;
      first = i;
      continue;
    }
    if (extent == mine) continue;
    const auto known = pool.constInt(extent), other = pool.constInt(mine);
    MESHFUSE_CHECK(!known || !other, call_.op().name(), ": axis ", AtAxis{axes[first]}, " of ",
                   at(call_.tensors()[first]), " has size ", known.value_or(-1), " but axis ",
                   axes[i], " of ", tv->name(), " has size ", other.value_or(-1), "; both are '",
                   label, "' of the operation. Give operands whose sizes agree.");
    ConstraintScope::add({.a = extent,
                          .b = mine,
                          .tensor_a = call_.tensors()[first]->id(),
                          .axis_a = static_cast<int32_t>(axes[first]),
                          .tensor_b = tv->id(),
                          .axis_b = static_cast<int32_t>(axes[i])});
    if (other) {
      extent = mine;  // a constant says more than a symbol
      first = i;
    }
  }
  if (members.empty()) return std::nullopt;
  const int32_t f = map_.addFactor(kind, extent, std::move(label));
  for (const size_t i : members) {
    operands_[i][static_cast<size_t>(axes[i])].push_back(f);
  }
  return f;
}

int32_t FactorBuilder::freshFactor(FactorKind kind, Scalar extent, std::string label) {
  return map_.addFactor(kind, extent, std::move(label));
}

void FactorBuilder::operandAxis(size_t operand, int64_t axis, const std::vector<int32_t>& factors) {
  operands_[operand][static_cast<size_t>(axis)] = FactorList(factors);
}

void FactorBuilder::resultAxis(std::optional<int32_t> factor) {
  results_.back().emplace_back();
  if (factor) results_.back().back().push_back(*factor);
}

void FactorBuilder::resultAxis(const std::vector<int32_t>& factors) {
  results_.back().emplace_back(factors);
}

FactorMap FactorBuilder::build() {
  const auto append = [&](const std::vector<FactorList>& axes) {
    map_.beginOperand();
    for (const FactorList& factors : axes) map_.addAxis(factors);
  };
  for (const auto& axes : operands_) append(axes);
  for (const auto& axes : results_) append(axes);
  return std::move(map_);
}

}  // namespace meshfuse
