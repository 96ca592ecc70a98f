// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/schedule/corresponding_axes.h>
#include <meshfuse/schedule/transform_like.h>

#include <algorithm>
#include <set>

namespace meshfuse {
namespace {

bool contains(const std::vector<TensorView*>& list, const TensorView* tv) {
  return std::ranges::find(list, tv) != list.end();
}

void checkTensors(const TensorView* reference, const std::vector<TensorView*>& list,
                  const char* what) {
  for (const TensorView* tv : list) {
    MESHFUSE_CHECK(tv != nullptr, what, ": one of the tensors listed beside ", at(reference),
                   " is None. List tensors of the definition.");
    MESHFUSE_CHECK(tv->fusion() == reference->fusion(), what, ": ", at(tv),
                   " belongs to another definition than ", reference->name(),
                   ". Use tensors of one definition.");
  }
}

/// The first `pos` loop axes of `tv`.
AxisList firstAxes(const TensorView* tv, int64_t pos, const char* what) {
  const int64_t n = tv->nDims();
  MESHFUSE_CHECK(pos >= -n - 1 && pos <= n, what, ": position ", pos, " is out of range for ",
                 at(tv), ", whose loop domain has ", n, " axes, reductions counted. Use ", -n - 1,
                 " to ", n, ".");
  const auto& loop = tv->domain().loop();
  return {loop.begin(), loop.begin() + (pos < 0 ? pos + n + 1 : pos)};
}

std::vector<Corresponding> connected(TensorView* reference,
                                     const std::vector<TensorView*>& selected) {
  auto found = correspondingAxes(reference, [](const TensorView*) { return true; });
  if (!selected.empty()) {
    std::erase_if(found, [&](const Corresponding& c) { return !contains(selected, c.tensor); });
  }
  return found;
}

/// Repeats the transforms that lead to the loop axes `axes` of `reference`.
void repeatTransforms(const TensorView* reference, const AxisList& axes,
                      std::vector<Corresponding>& targets, const char* what, const char* advice) {
  const std::vector<bool> wanted = transformsLeadingTo(reference->domain(), axes);
  for (const Corresponding& target : targets) {
    const auto reason = whyNotReplayed(reference, target.tensor, target.map, wanted);
    MESHFUSE_CHECK(!reason, what, ": the transforms of ", reference->name(),
                   " cannot be repeated on ", at(target.tensor), ": ", reason.value_or(""), ". ",
                   advice);
  }
  for (Corresponding& target : targets) {
    replayTransforms(reference, target.tensor, target.map, wanted);
    orderLoopLike(axes, target.tensor, target.map);
  }
}

/// One loop axis of a tensor and the axis of the reference that it is to be parallel like.
struct Copied {
  int32_t id;
  const IterDomain* like;
};

std::vector<Copied> copiedTypes(const TensorView* reference, const AxisList& axes,
                                const Corresponding& target,
                                const std::vector<ParallelType>& types) {
  std::vector<Copied> list;
  const auto& loop = target.tensor->domain().loop();
  for (const int32_t i : axes) {
    const IterDomain* like = reference->domain().id(i);
    const ParallelType p = like->getParallelType();
    const int32_t id = target.map[static_cast<size_t>(i)];
    const bool chosen =
        types.empty() ? p != ParallelType::Serial : std::ranges::find(types, p) != types.end();
    if (chosen && id >= 0 && std::ranges::find(loop, id) != loop.end()) list.push_back({id, like});
  }
  return list;
}

/// The mesh that the tensor has, or will have.
const DeviceMesh& meshFor(const TensorView* reference, const TensorView* tv) {
  return tv->hasDeviceMesh() ? tv->getDeviceMesh() : reference->getDeviceMesh();
}

void checkTypes(const TensorView* reference, const TensorView* tv, const std::vector<Copied>& list,
                const char* what) {
  const TensorDomain& domain = tv->domain();
  const DeviceMesh& mesh = meshFor(reference, tv);
  for (const Copied& copied : list) {
    const ParallelType p = copied.like->getParallelType();
    if (!isDeviceType(p)) continue;
    const IterDomain* axis = domain.id(copied.id);
    for (const int32_t other : domain.loop()) {
      const bool moves = std::ranges::find(list, other, &Copied::id) != list.end();
      const IterDomain* id = domain.id(other);
      MESHFUSE_CHECK(
          moves || id->getParallelType() != p || id->isReduction() != axis->isReduction(), what,
          ": axis ", AtAxis{domain.logicalPosition(copied.id)}, " of ", at(tv), " would be on ", p,
          " as in ", reference->name(), ", but axis ", domain.logicalPosition(other),
          " of it is. Use each mesh axis for one axis of a tensor, or name the tensors "
          "to be parallelized as selected_tensors.");
    }
    if (mesh.empty()) continue;
    MESHFUSE_CHECK(mesh.hasParallelType(p), what, ": axis ",
                   AtAxis{domain.logicalPosition(copied.id)}, " of ", at(tv), " would be on ", p,
                   " as in ", reference->name(), ", but its mesh has ", mesh.shape().size(),
                   " axes. Give both tensors meshes that have ", p, ".");
  }
}

void putTypes(const TensorView* reference, TensorView* tv, const std::vector<Copied>& list) {
  if (list.empty()) return;
  TensorDomain& domain = tv->domain();
  const bool mesh = std::ranges::any_of(
      list, [](const Copied& c) { return c.like->isDeviceDim() || c.like->isSwizzled(); });
  if (mesh && !tv->hasDeviceMesh() && reference->hasDeviceMesh()) {
    tv->setDeviceMesh(reference->getDeviceMesh());
  }
  for (const Copied& copied : list) domain.parallelize(copied.id, ParallelType::Serial);
  for (const Copied& copied : list) {
    domain.setSwizzle(copied.id, copied.like->swizzle());
    const auto& loop = domain.loop();
    tv->parallelize(std::ranges::find(loop, copied.id) - loop.begin(),
                    copied.like->getParallelType());
  }
}

void copyTypes(const TensorView* reference, const AxisList& axes,
               const std::vector<Corresponding>& targets, const std::vector<ParallelType>& types,
               const char* what) {
  std::vector<std::vector<Copied>> lists;
  for (const Corresponding& target : targets) {
    lists.push_back(copiedTypes(reference, axes, target, types));
    checkTypes(reference, target.tensor, lists.back(), what);
  }
  for (size_t i = 0; i < targets.size(); ++i) putTypes(reference, targets[i].tensor, lists[i]);
}

/// Tensors that `from` is made of, itself included.
std::set<const TensorView*> producersOf(const TensorView* from) {
  std::set<const TensorView*> found = {from};
  std::vector<const TensorView*> stack = {from};
  while (!stack.empty()) {
    const Expr* def = stack.back()->definition();
    stack.pop_back();
    if (def == nullptr) continue;
    for (const TensorView* in : def->inputs()) {
      if (found.insert(in).second) stack.push_back(in);
    }
  }
  return found;
}

/// Tensors made of one of `to` that `from` is made of, both excluded.
std::set<const TensorView*> tensorsBetween(const TensorView* from,
                                           const std::vector<TensorView*>& to, const char* what) {
  const std::set<const TensorView*> producers = producersOf(from);
  std::set<const TensorView*> between;
  std::vector<const TensorView*> stack;
  for (const TensorView* tv : to) {
    MESHFUSE_CHECK(tv != from && producers.contains(tv), what, ": ", at(from),
                   " does not depend on ", tv->name(),
                   ", so there is no tensor between them. Name tensors that it is made of.");
    stack.push_back(tv);
  }
  while (!stack.empty()) {
    const TensorView* tv = stack.back();
    stack.pop_back();
    for (const Expr* use : tv->uses()) {
      for (const TensorView* out : use->outputs()) {
        if (producers.contains(out) && between.insert(out).second) stack.push_back(out);
      }
    }
  }
  between.erase(from);
  for (const TensorView* tv : to) between.erase(tv);
  return between;
}

constexpr const char* kSelect =
    "Name the tensors to be transformed as selected_tensors, or schedule this one afterwards.";

}  // namespace

void transformLike(TensorView* reference, const std::vector<TensorView*>& selected) {
  checkTensors(reference, selected, "transform_like");
  auto targets = connected(reference, selected);
  repeatTransforms(reference, reference->domain().loop(), targets, "transform_like", kSelect);
}

void parallelizeLike(TensorView* reference, int64_t pos, const std::vector<TensorView*>& selected,
                     const std::vector<ParallelType>& types) {
  constexpr const char* kWhat = "parallelize_like";
  checkTensors(reference, selected, kWhat);
  const auto axes = firstAxes(reference, pos, kWhat);
  auto targets = connected(reference, selected);
  if (selected.empty()) {
    std::erase_if(targets, [](const Corresponding& c) { return c.tensor->isFusionInput(); });
  }
  copyTypes(reference, axes, targets, types, kWhat);
}

void boundedTransformBackward(TensorView* from, int64_t pos, const std::vector<TensorView*>& to,
                              bool propagate_parallel_type) {
  constexpr const char* kWhat = "bounded_transform_backward";
  checkTensors(from, to, kWhat);
  MESHFUSE_CHECK(!to.empty(), kWhat,
                 ": no tensors were given at which to stop on the way back from ", at(from),
                 ". List at least one tensor that it is made of.");
  const auto axes = firstAxes(from, pos, kWhat);
  const auto between = tensorsBetween(from, to, kWhat);
  auto targets =
      correspondingAxes(from, [&](const TensorView* tv) { return between.contains(tv); });
  repeatTransforms(from, axes, targets, kWhat, "Schedule it after this call.");
  if (propagate_parallel_type) copyTypes(from, axes, targets, {}, kWhat);
}

}  // namespace meshfuse
