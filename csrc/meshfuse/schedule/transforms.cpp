// SPDX-License-Identifier: BSD-3-Clause
// Scheduling methods of TensorView: they change loop and allocation, never the logical axes.
#include <meshfuse/ir/fusion.h>
#include <meshfuse/ir/verifier.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>
#include <utility>

namespace meshfuse {
namespace {

const DeviceMesh kNoMesh;

/// Position of `id` in the loop domain.
int64_t loopPosition(const TensorView* tv, const IterDomain* id, const char* what) {
  const auto& loop = tv->domain().loop();
  const auto it = std::ranges::find(loop, id->index());
  MESHFUSE_CHECK(it != loop.end(), what, ": an axis of ", at(tv),
                 " is not in its loop domain any more, since it was split or merged. Take the axis "
                 "from axis(i) after the last split.");
  return it - loop.begin();
}

AxisList indicesOf(const TensorView* tv, const std::vector<IterDomain*>& ids, const char* what) {
  AxisList out;
  for (const IterDomain* id : ids) {
    MESHFUSE_CHECK(id != nullptr, what, ": one of the axes given for ", at(tv),
                   " is None. Take the axes from ", tv->name(), ".axis(i).");
    MESHFUSE_CHECK(id->tensor() == tv, what, ": an axis belongs to ", id->tensor()->name(),
                   ", not to ", at(tv), ". Take the axes from ", tv->name(), ".axis(i).");
    out.push_back(id->index());
  }
  return out;
}

/// The order in which a device walks through an axis has no meaning for its pieces.
void checkNotSwizzled(const IterDomain* id, const char* what) {
  MESHFUSE_CHECK(!id->isSwizzled(), what, ": an axis of ", at(id->tensor()), " is swizzled over ",
                 id->swizzle(), ". Call swizzle1d after the last ", what, ".");
}

/// Loop axes below a logical axis, through splits, outer before inner; nullopt at a merge.
std::optional<AxisList> leaves(const TensorView* tv, int32_t id) {
  const TensorDomain& domain = tv->domain();
  if (std::ranges::find(domain.loop(), id) != domain.loop().end()) return AxisList{id};
  for (const Transform& t : domain.transforms()) {
    if (t.kind != Transform::Split || t.in[0] != id) continue;
    auto outer = leaves(tv, t.out[0]);
    auto inner = leaves(tv, t.out[1]);
    if (!outer || !inner) continue;
    outer->insert(outer->end(), inner->begin(), inner->end());
    return outer;
  }
  return std::nullopt;
}

}  // namespace

int64_t TensorView::ndim() const {
  int64_t n = 0;
  for (const int32_t i : domain_.logical()) n += domain_.id(i)->isReduction() ? 0 : 1;
  return n;
}

bool TensorView::hasReduction() const {
  return std::ranges::any_of(domain_.logical(),
                             [&](int32_t i) { return domain_.id(i)->isReduction(); });
}

IdList TensorView::getRootDomain() const {
  if (!hasRoot()) return {};
  return domain_.idsOf(domain_.root());
}

IdList TensorView::getAllocationDomain() const {
  if (!hasAllocation()) return {};
  return domain_.idsOf(domain_.allocation());
}

int64_t TensorView::wrapAxis(int64_t axis, const char* what) const {
  const int64_t n = nDims();
  MESHFUSE_CHECK(n > 0, what, ": ", meshfuse::at(this), " is a 0-dim tensor, so it has no axis ",
                 AtAxis{axis}, ". Only tensors with axes can be scheduled.");
  MESHFUSE_CHECK(axis >= -n && axis < n, what, ": axis ", AtAxis{axis}, " of ", meshfuse::at(this),
                 " is out of range; its loop domain has ", n, " axes, reductions counted. Use ", -n,
                 " to ", n - 1, ".");
  return axis < 0 ? axis + n : axis;
}

IterDomain* TensorView::axis(int64_t i) const {
  return domain_.id(domain_.loop()[static_cast<size_t>(wrapAxis(i, "axis"))]);
}

TensorView* TensorView::split(int64_t axis, int64_t factor, bool inner_split) {
  MESHFUSE_CHECK(factor > 0,
                 "split: Invalid factor for split. Factor must be greater than 0. Axis ",
                 AtAxis{axis}, " of ", meshfuse::at(this), " was to be split by ", factor, ".");
  return split(axis, fusion_->scalars().constant(factor), inner_split);
}

TensorView* TensorView::split(int64_t axis, Scalar factor, bool inner_split) {
  const auto position = static_cast<size_t>(wrapAxis(axis, "split"));
  AxisList loop = domain_.loop();
  const IterDomain* id = domain_.id(loop[position]);
  MESHFUSE_CHECK(!id->isParallelized(),
                 "split: Splitting an axis of non-Serial parallel type is not supported. Axis ",
                 AtAxis{axis}, " of ", meshfuse::at(this), " is on ", id->getParallelType(),
                 ". Parallelize after the split.");
  checkNotSwizzled(id, "split");
  const auto constant = fusion_->scalars().constInt(factor);
  MESHFUSE_CHECK(!constant || *constant > 0,
                 "split: Invalid factor for split. Factor must be greater than 0. Axis ",
                 AtAxis{axis}, " of ", meshfuse::at(this), " was to be split by ",
                 constant.value_or(0), ".");
  const auto [outer, inner] = domain_.split(*fusion_, loop[position], factor, inner_split);
  loop[position] = outer;
  loop.insert(loop.begin() + static_cast<std::ptrdiff_t>(position) + 1, inner);
  domain_.setLoop(std::move(loop));
  fusion_->bumpVersion();
  return this;
}

TensorView* TensorView::merge(int64_t outer, int64_t inner) {
  const auto o = static_cast<size_t>(wrapAxis(outer, "merge"));
  const auto i = static_cast<size_t>(wrapAxis(inner, "merge"));
  MESHFUSE_CHECK(o != i, "merge: axis ", AtAxis{outer}, " of ", meshfuse::at(this),
                 " cannot be merged with itself. Name two axes.");
  AxisList loop = domain_.loop();
  const IterDomain *a = domain_.id(loop[o]), *b = domain_.id(loop[i]);
  MESHFUSE_CHECK(a->isReduction() == b->isReduction(), "merge: axes ", AtAxis{outer}, " and ",
                 inner, " of ", meshfuse::at(this),
                 " are a reduction and an axis that is not one. Merge axes of one kind.");
  for (const IterDomain* id : {a, b}) {
    MESHFUSE_CHECK(!id->isParallelized(), "merge: axis ", AtAxis{id == a ? outer : inner}, " of ",
                   meshfuse::at(this), " is on ", id->getParallelType(),
                   ". Merge before parallelizing.");
    checkNotSwizzled(id, "merge");
  }
  const int32_t merged = domain_.merge(*fusion_, loop[o], loop[i]);
  loop[std::min(o, i)] = merged;
  loop.erase(loop.begin() + static_cast<std::ptrdiff_t>(std::max(o, i)));
  domain_.setLoop(std::move(loop));
  fusion_->bumpVersion();
  return this;
}

TensorView* TensorView::reorder(const std::unordered_map<int64_t, int64_t>& old2new) {
  const auto& loop = domain_.loop();
  AxisList result(loop.size(), -1);
  std::vector<bool> moved(loop.size(), false);
  for (const auto& [from, to] : old2new) {
    const auto f = static_cast<size_t>(wrapAxis(from, "reorder"));
    const auto t = static_cast<size_t>(wrapAxis(to, "reorder"));
    MESHFUSE_CHECK(!moved[f], "reorder: axis ", AtAxis{from}, " of ", meshfuse::at(this),
                   " is listed twice. List each axis once.");
    MESHFUSE_CHECK(result[t] < 0, "reorder: two axes of ", meshfuse::at(this),
                   " are to move to place ", AtAxis{to}, ". Give each axis a place of its own.");
    moved[f] = true;
    result[t] = loop[f];
  }
  size_t next = 0;
  for (int32_t& place : result) {
    if (place >= 0) continue;
    while (moved[next]) ++next;
    place = loop[next++];
  }
  domain_.setLoop(std::move(result));
  fusion_->bumpVersion();
  return this;
}

TensorView* TensorView::reorder(const std::vector<int64_t>& permutation) {
  MESHFUSE_CHECK(static_cast<int64_t>(permutation.size()) == nDims(),
                 "reorder: ", permutation.size(), " places were given for the ", nDims(),
                 " loop axes of ", meshfuse::at(this),
                 ". Give one place per axis, or a map of the axes that move.");
  std::unordered_map<int64_t, int64_t> old2new;
  for (size_t i = 0; i < permutation.size(); ++i) {
    old2new[static_cast<int64_t>(i)] = permutation[i];
  }
  return reorder(old2new);
}

void IterDomain::parallelize(ParallelType p) {
  tensor_->parallelize(loopPosition(tensor_, this, "parallelize"), p);
}

TensorView* TensorView::parallelize(int64_t axis, ParallelType p) {
  const auto position = static_cast<size_t>(wrapAxis(axis, "parallelize"));
  const int32_t index = domain_.loop()[position];
  const ParallelType before = domain_.id(index)->getParallelType();
  for (const int32_t other : domain_.loop()) {
    const IterDomain* id = domain_.id(other);
    if (!isDeviceType(p) || other == index || id->getParallelType() != p) continue;
    MESHFUSE_CHECK(id->isReduction() != domain_.id(index)->isReduction(),
                   "parallelize: Found multiple loop IterDomains with the same parallel type (", p,
                   ") in ", meshfuse::at(this), " when axis ", AtAxis{axis},
                   " was put on it. Use each mesh axis for one axis of a tensor.");
  }
  domain_.parallelize(index, p);
  if (hasDeviceMesh()) {
    try {
      verify(this);
    } catch (...) {
      domain_.parallelize(index, before);
      throw;
    }
  }
  annotation_loc_ = fusion_->current_loc;
  fusion_->bumpVersion();
  return this;
}

const DeviceMesh& TensorView::getDeviceMesh() const { return mesh_ == nullptr ? kNoMesh : *mesh_; }

void TensorView::setDeviceMesh(const DeviceMesh& mesh) {
  MESHFUSE_CHECK(!mesh.empty(), "set_device_mesh: the mesh for ", meshfuse::at(this),
                 " has no devices. Give a mesh of at least one device.");
  const DeviceMesh* before = mesh_;
  mesh_ = fusion_->internMesh(mesh);
  try {
    verify(this);
  } catch (...) {
    mesh_ = before;
    throw;
  }
  mesh_declared_ = true;
  annotation_loc_ = fusion_->current_loc;
  fusion_->bumpVersion();
}

void TensorView::setLoopDomain(const std::vector<IterDomain*>& ids) {
  AxisList loop = indicesOf(this, ids, "set_loop_domain");
  MESHFUSE_CHECK(domain_.coversLogical(loop), "set_loop_domain: the ", loop.size(),
                 " axes given do not stand for the same elements as the logical axes of ",
                 meshfuse::at(this),
                 ". Every logical axis must be reached exactly once through splits and merges.");
  domain_.setLoop(std::move(loop));
  fusion_->bumpVersion();
}

void TensorView::setAllocationDomain(const std::vector<IterDomain*>& ids, bool contiguity) {
  setAllocationDomain(
      ids, domain_.uniformContiguity(indicesOf(this, ids, "set_allocation_domain"), contiguity));
}

void TensorView::setAllocationDomain(const std::vector<IterDomain*>& ids,
                                     const Contiguity& contiguity) {
  AxisList list = indicesOf(this, ids, "set_allocation_domain");
  MESHFUSE_CHECK(domain_.coversLogical(list), "set_allocation_domain: the ", list.size(),
                 " axes given do not stand for the same elements as the logical axes of ",
                 meshfuse::at(this),
                 ". Every logical axis must be reached exactly once through splits and merges.");
  MESHFUSE_CHECK(contiguity.size() == list.size(), "set_allocation_domain: ", contiguity.size(),
                 " contiguity flags were given for ", list.size(), " axes of ", meshfuse::at(this),
                 ". Give one flag per axis.");
  domain_.setAllocation(std::move(list), contiguity);
  fusion_->bumpVersion();
}

void TensorView::setAllocationAsLoop() {
  AxisList list = domain_.loop();
  // A memory order that the user set stays, as long as loop lists the pieces of the logical axes in
  // logical order; a reordered loop wins literally.
  const auto order = hasAllocation() ? canonicalLayout(this) : std::nullopt;
  if (order) {
    AxisList logical_order, memory_order;
    bool splits_only = true;
    const auto append = [&](AxisList& out, int32_t id) {
      const auto below = leaves(this, id);
      splits_only = splits_only && below.has_value();
      if (below) out.insert(out.end(), below->begin(), below->end());
    };
    for (const int32_t id : domain_.logical()) append(logical_order, id);
    for (const CanonicalAxis& axis : *order) append(memory_order, axis.id);
    if (splits_only && logical_order == list) list = std::move(memory_order);
  }
  Contiguity contiguity = domain_.uniformContiguity(list, true);
  domain_.setAllocation(std::move(list), std::move(contiguity));
  fusion_->bumpVersion();
}

void TensorView::setStrideOrder(std::span<const int64_t> order, std::string_view what) {
  const AxisList axes = domain_.withoutReductions(domain_.logical());
  const auto n = static_cast<int64_t>(axes.size());
  MESHFUSE_CHECK(std::cmp_equal(order.size(), n), what, ": stride_order has ", order.size(),
                 " entries for the ", n, " axes of ", meshfuse::at(this), ". Give one per axis.");
  AxisList memory(axes.size(), -1);
  for (size_t i = 0; i < axes.size(); ++i) {
    MESHFUSE_CHECK(order[i] >= -n && order[i] < n, what, ": stride_order entry ", order[i],
                   " of axis ", AtAxis{static_cast<int64_t>(i)}, " of ", meshfuse::at(this),
                   " is out of range. Use 0 (innermost) to ", n - 1, ".");
    const int64_t place = n - 1 - (order[i] < 0 ? order[i] + n : order[i]);
    MESHFUSE_CHECK(memory[static_cast<size_t>(place)] < 0, what, ": stride_order entry ", order[i],
                   " of ", meshfuse::at(this), " stands twice. Give a permutation.");
    memory[static_cast<size_t>(place)] = axes[i];
  }
  AxisList list = domain_.logical();
  auto next = memory.begin();
  for (int32_t& id : list) {
    if (!domain_.id(id)->isReduction()) id = *next++;
  }
  Contiguity contiguity = domain_.uniformContiguity(list, true);
  domain_.setAllocation(std::move(list), std::move(contiguity));
  fusion_->bumpVersion();
}

void TensorView::setContiguity(const Contiguity& contiguity) {
  MESHFUSE_CHECK(contiguity.size() == domain_.allocation().size(),
                 "set_contiguity: ", contiguity.size(), " flags were given for ",
                 domain_.allocation().size(), " allocation axes of ", meshfuse::at(this),
                 ". Give one flag per axis.");
  domain_.setContiguity(contiguity);
  fusion_->bumpVersion();
}

void TensorView::setContiguity(bool flag) {
  domain_.setContiguity(domain_.uniformContiguity(domain_.allocation(), flag));
  fusion_->bumpVersion();
}

}  // namespace meshfuse
