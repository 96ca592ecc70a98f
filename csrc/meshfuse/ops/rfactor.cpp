// SPDX-License-Identifier: BSD-3-Clause
// rfactor: one reduction becomes a partial result and a reduction over the axes kept in it.
#include <meshfuse/base/error.h>
#include <meshfuse/ir/verifier.h>
#include <meshfuse/ops/op_def.h>

#include <algorithm>
#include <utility>

namespace meshfuse {
namespace {

/// Loop axes of `tv` that `axes` name, checked.
AxisList reductionAxes(const TensorView* tv, const std::vector<int64_t>& axes) {
  AxisList listed;
  for (const int64_t axis : axes) {
    const IterDomain* id = tv->axis(axis);
    MESHFUSE_CHECK(id->isReduction(), "rfactor: axis ", AtAxis{axis}, " of ", at(tv),
                   " is not a reduction axis. List reduction axes of the loop domain.");
    MESHFUSE_CHECK(std::ranges::find(listed, id->index()) == listed.end(), "rfactor: axis ",
                   AtAxis{axis}, " of ", at(tv), " is listed twice. List each axis once.");
    listed.push_back(id->index());
  }
  return listed;
}

/// The domain of the final result: the partial result's axes, those kept being reductions, with the
/// schedule of the other axes repeated.
void fillFinal(Fusion& fusion, TensorView* out, const TensorDomain& partial, const AxisList& kept) {
  TensorDomain& domain = out->domain();
  AxisList map(partial.ids().size(), -1);
  const auto mapped = [&](int32_t i) -> int32_t& { return map[static_cast<size_t>(i)]; };
  const auto mapList = [&](const AxisList& list) {
    AxisList result;
    for (const int32_t i : list) {
      if (mapped(i) >= 0) result.push_back(mapped(i));
    }
    return result;
  };
  const auto isKept = [&](int32_t i) { return std::ranges::find(kept, i) != kept.end(); };
  for (const int32_t i : partial.logical()) {
    const IterDomain* id = partial.id(i);
    if (id->isReduction()) continue;
    mapped(i) =
        domain.newId(fusion, out, id->extent(), isKept(i) ? IterType::Reduction : id->iterType(),
                     id->expandedExtent());
    domain.parallelize(mapped(i), id->getParallelType());
    domain.setSwizzle(mapped(i), id->swizzle());
  }
  domain.setLogical(mapList(partial.logical()));
  for (size_t t = partial.definitionTransforms(); t < partial.transforms().size(); ++t) {
    const Transform& x = partial.transforms()[t];
    if (mapped(x.in[0]) < 0) continue;
    if (x.kind == Transform::Merge) {
      if (mapped(x.in[1]) < 0) continue;
      mapped(x.out[0]) = domain.merge(fusion, mapped(x.in[0]), mapped(x.in[1]));
    } else {
      const auto [outer, inner] = domain.split(fusion, mapped(x.in[0]), x.factor, x.inner);
      mapped(x.out[0]) = outer;
      mapped(x.out[1]) = inner;
      domain.parallelize(inner, partial.id(x.out[1])->getParallelType());
      domain.setSwizzle(inner, partial.id(x.out[1])->swizzle());
    }
    domain.parallelize(mapped(x.out[0]), partial.id(x.out[0])->getParallelType());
    domain.setSwizzle(mapped(x.out[0]), partial.id(x.out[0])->swizzle());
  }
  domain.setLoop(mapList(partial.loop()));
  if (partial.hasAllocation()) {
    AxisList allocation = mapList(partial.allocation());
    Contiguity contiguity = domain.uniformContiguity(allocation, true);
    domain.setAllocation(std::move(allocation), std::move(contiguity));
  }
}

}  // namespace

TensorView* TensorView::rfactor(const std::vector<int64_t>& axes) {
  Expr* expr = definition_;
  const bool reduces = expr != nullptr && expr->outputs().size() == 1 &&
                       std::ranges::any_of(expr->factors().factors(), [](const Factor& f) {
                         return f.kind == FactorKind::Reduction;
                       });
  MESHFUSE_CHECK(reduces && !hasRoot(), "rfactor: ", meshfuse::at(this),
                 " is not the result of a sum, prod, max, min, matmul or linear that is still "
                 "in one piece. Only such a tensor can be split in two steps.");
  MESHFUSE_CHECK(!axes.empty(), "rfactor: no axes were given for ", meshfuse::at(this),
                 ". List the reduction axes that move to the new tensor.");
  const AxisList moved = reductionAxes(this, axes);
  AxisList kept;
  for (const IterDomain* id : getLoopDomain()) {
    if (id->isReduction() && std::ranges::find(moved, id->index()) == moved.end()) {
      kept.push_back(id->index());
    }
  }
  MESHFUSE_CHECK(!kept.empty(), "rfactor: all ", moved.size(), " reduction axes of ",
                 meshfuse::at(this),
                 " were listed, but one must remain for the final result. Split "
                 "the reduction axis first and list only one half.");

  TensorView* local = fusion_->newTensor(dtype_);
  TensorDomain& partial = local->domain();
  partial.copyFrom(*fusion_, local, domain_);
  partial.rfactor(kept);
  local->mesh_ = mesh_;
  local->mesh_declared_ = mesh_declared_;
  local->loc_ = loc_;
  local->annotation_loc_ = annotation_loc_;

  TensorDomain before = std::exchange(domain_, TensorDomain());
  fillFinal(*fusion_, this, partial, kept);
  // A mesh axis that a kept axis is on cannot divide another axis of the partial result as well.
  for (const int32_t k : kept) {
    const ParallelType p = partial.id(k)->getParallelType();
    for (const int32_t i : partial.loop()) {
      const IterDomain* id = partial.id(i);
      if (i != k && isDeviceType(p) && id->getParallelType() == p && !id->isReduction()) {
        partial.parallelize(i, ParallelType::Serial);
      }
    }
  }

  // Reductions may be cut unevenly; what is kept of them is no reduction any more.
  try {
    verify(local);
  } catch (...) {
    domain_ = std::move(before);
    throw;
  }

  std::vector<int64_t> positions;
  const auto logical = partial.withoutReductions(partial.logical());
  for (size_t i = 0; i < logical.size(); ++i) {
    if (std::ranges::find(kept, logical[i]) != kept.end()) {
      positions.push_back(static_cast<int64_t>(i));
    }
  }
  fusion_->replaceOutputs(expr, {local});
  const OpDef* combine = findOp(meshfuse::name(expr->op().reduceKind()));
  MESHFUSE_ASSERT(combine != nullptr, "no op combines partial results of ", expr->op().name());
  OpCall call(*fusion_, *combine, {local, positions, false, DataType::Null});
  if (combine->dtype(call) != dtype_) {  // sums of small integers would become wider
    call = OpCall(*fusion_, *combine, {local, positions, false, dtype_});
  }
  FactorMap factors = combine->factors(call);
  fusion_->newExpr(combine, call.args(), call.tensors(), {this}, std::move(factors), {});
  return local;
}

}  // namespace meshfuse
