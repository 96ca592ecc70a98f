// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/cache.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/schedule/domain_replay.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>

namespace meshfuse {
namespace {

const OpDef& setOp() {
  const OpDef* op = findOp("set");
  MESHFUSE_ASSERT(op != nullptr, "the op set is not registered");
  return *op;
}

/// The parts of an rfactor belong together: nothing may stand between them.
void checkNotHalf(const TensorView* tv, const char* what) {
  MESHFUSE_CHECK(!tv->hasRoot(), what, ": ", at(tv),
                 " is the first half of a reduction that an rfactor cut in two, and the second "
                 "half must read it. Cache the operand or the result of the reduction.");
}

/// set(tv), in the memory order of `tv` where that is not row-major.
TensorView* copyOf(TensorView* tv, bool keep_order, const char* what) {
  auto* copy = std::get<TensorView*>(callOp(*tv->fusion(), setOp(), {tv}).at(0));
  const std::vector<int64_t> order = keep_order ? strideOrderOf(tv) : std::vector<int64_t>{};
  if (!order.empty()) copy->setStrideOrder(order, what);
  return copy;
}

/// Gives `tv`, which has no axes, those of the result of `factors`, operand 1 of it.
void makeAxes(TensorView* tv, const FactorMap& factors) {
  Fusion& fusion = *tv->fusion();
  AxisList logical;
  for (size_t axis = 0; axis < factors.numAxes(1); ++axis) {
    const auto over = factors.axis(1, axis);
    const Scalar extent =
        over.empty() ? fusion.scalars().constant(1) : factors.factor(over[0]).extent;
    logical.push_back(tv->domain().newId(fusion, tv, extent,
                                         over.empty() ? IterType::Broadcast : IterType::Iteration));
  }
  tv->domain().setLogical(std::move(logical));
}

/// Repeats the schedule of `from` on `tv`, whose axes are those of `from` without reductions.
void repeatSchedule(const TensorView* from, TensorView* tv) {
  const TensorDomain& source = from->domain();
  TensorDomain& domain = tv->domain();
  AxisMap map(source.ids().size(), -1);
  const AxisList axes = source.withoutReductions(source.logical());
  for (size_t i = 0; i < axes.size(); ++i) {
    map[static_cast<size_t>(axes[i])] = domain.logical()[i];
  }
  replayTransforms(from, tv, map, transformsLeadingTo(source, source.loop()));
  orderLoopLike(source.loop(), tv, map);
  for (size_t i = 0; i < map.size(); ++i) {
    if (map[i] < 0) continue;
    const IterDomain* id = source.id(static_cast<int32_t>(i));
    domain.parallelize(map[i], id->getParallelType());
    domain.setSwizzle(map[i], id->swizzle());
  }
  if (!source.hasAllocation()) return;
  AxisList allocation;
  for (const int32_t i : source.allocation()) {
    if (map[static_cast<size_t>(i)] >= 0) allocation.push_back(map[static_cast<size_t>(i)]);
  }
  Contiguity contiguity = domain.uniformContiguity(allocation, true);
  domain.setAllocation(std::move(allocation), std::move(contiguity));
}

}  // namespace

TensorView* cacheAfter(TensorView* tv, bool propagate_allocation_domain,
                       const std::vector<Expr*>& cached_uses) {
  checkNotHalf(tv, "cache_after");
  MESHFUSE_CHECK(!tv->uses().empty(), "cache_after: no operation reads ", at(tv),
                 ", so none would read the new tensor. Call it on a tensor that is read, or use "
                 "cache_before.");
  for (const Expr* use : cached_uses) {
    MESHFUSE_CHECK(use != nullptr && std::ranges::find(tv->uses(), use) != tv->uses().end(),
                   "cache_after: ", use == nullptr ? "None" : use->op().name(),
                   use == nullptr ? "" : concat(", which makes ", use->output(0)->name(), ","),
                   " is listed in cached_uses, but does not read ", at(tv),
                   ". List operations of its uses().");
  }
  const std::vector<Expr*> uses = cached_uses.empty() ? tv->uses() : cached_uses;
  TensorView* copy = copyOf(tv, propagate_allocation_domain, "cache_after");
  for (Expr* use : uses) tv->fusion()->replaceInput(use, tv, copy);
  return copy;
}

TensorView* cacheBefore(TensorView* tv) {
  Expr* definition = tv->definition();
  MESHFUSE_CHECK(definition != nullptr, "cache_before: ", at(tv),
                 " is an input, so no operation makes it. Use cache_after.");
  checkNotHalf(tv, "cache_before");
  Fusion& fusion = *tv->fusion();
  TensorView* before = fusion.newTensor(tv->dtype());
  before->domain().copyFrom(fusion, before, tv->domain());
  if (tv->hasDeviceMesh()) {
    before->setDeviceMesh(tv->getDeviceMesh());
    before->setDeclared(tv->meshIsDeclared());
  }
  TensorViews outputs = definition->outputs();
  std::ranges::replace(outputs, tv, before);
  fusion.replaceOutputs(definition, std::move(outputs));

  const OpCall call(fusion, setOp(), {before});
  FactorMap factors = setOp().factors(call);
  tv->domain() = TensorDomain();
  makeAxes(tv, factors);
  repeatSchedule(before, tv);
  fusion.newExpr(&setOp(), call.args(), call.tensors(), {tv}, std::move(factors), {});
  return before;
}

TensorView* cacheFork(TensorView* tv) {
  MESHFUSE_CHECK(tv->isFusionOutput(), "cache_fork: ", at(tv),
                 " is not an output. Call it on an output that operations read as well, or use "
                 "cache_after.");
  MESHFUSE_CHECK(!tv->uses().empty(), "cache_fork: no operation reads the output ", at(tv),
                 ". Call it on an output that operations read as well, or use cache_before.");
  TensorView* copy = copyOf(tv, true, "cache_fork");
  tv->fusion()->replaceOutput(tv, copy);
  return copy;
}

}  // namespace meshfuse
