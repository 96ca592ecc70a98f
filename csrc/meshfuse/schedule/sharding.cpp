// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>

namespace meshfuse {
namespace {

const AxisList& listOf(const TensorView* tv, DomainKind kind) {
  return kind == DomainKind::Loop ? tv->domain().loop() : tv->domain().allocation();
}

/// The axis of `tv` with parallel type `p` that is (or is not) a reduction.
std::optional<int32_t> findAxis(const TensorView* tv, ParallelType p, DomainKind kind,
                                bool reduction) {
  std::optional<int32_t> found;
  for (const int32_t i : listOf(tv, kind)) {
    const IterDomain* id = tv->domain().id(i);
    if (id->getParallelType() != p || id->isReduction() != reduction) continue;
    MESHFUSE_CHECK(!found, "Found multiple loop IterDomains with the same parallel type (", p,
                   ") in ", at(tv), ". Use each mesh axis for one axis of a tensor.");
    found = i;
  }
  return found;
}

int64_t logicalPosition(const TensorView* tv, int32_t id) {
  int64_t position = 0;
  for (const int32_t i : tv->domain().logical()) {
    if (tv->domain().id(i)->isReduction()) continue;
    if (i == id) return position;
    ++position;
  }
  return -1;
}

}  // namespace

std::optional<ShardedAxis> shardedAxis(const TensorView* tv, ParallelType p, DomainKind kind) {
  const auto found = findAxis(tv, p, kind, false);
  if (!found) return std::nullopt;
  const TensorDomain& domain = tv->domain();
  ShardedAxis result{.id = *found, .path = {}};
  int32_t id = *found;
  while ((result.logical = logicalPosition(tv, id)) < 0) {
    const Transform* t = domain.definition(id);
    if (t == nullptr) break;
    if (t->kind == Transform::Merge) {
      result.through_merge = true;
      id = t->in[0];
      continue;
    }
    result.path.push_back({t->out[0] == id, t->inner, t->factor});
    id = t->in[0];
  }
  std::ranges::reverse(result.path);
  return result;
}

std::optional<int32_t> deviceAxis(const TensorView* tv, ParallelType p, DomainKind domain) {
  return findAxis(tv, p, domain, false);
}

std::optional<int32_t> reducedAxis(const TensorView* tv, ParallelType p) {
  return findAxis(tv, p, DomainKind::Loop, true);
}

bool isSharded(const TensorView* tv) {
  bool sharded = false;
  for (const ParallelType p : kDeviceTypes) {
    sharded = findAxis(tv, p, DomainKind::Loop, false).has_value() || sharded;
  }
  return sharded;
}

int64_t getShardedLogicalAxis(const TensorView* tv, ParallelType p) {
  const auto axis = shardedAxis(tv, p);
  return axis ? axis->logical : -1;
}

bool hasTrivialAllocationDomain(const TensorView* tv) {
  if (!tv->hasAllocation()) return true;
  const TensorDomain& domain = tv->domain();
  const auto isDropped = [&](int32_t i) {
    const IterDomain* id = domain.id(i);
    const bool loop_stream =
        id->isStream() && std::ranges::find(domain.logical(), i) == domain.logical().end();
    return id->isReduction() || id->isBroadcast() || id->isDeviceDim() || loop_stream;
  };
  AxisList have, want;
  for (const int32_t i : domain.allocation()) {
    if (!isDropped(i)) have.push_back(i);
  }
  const auto& allocation = domain.allocation();
  const auto allocated = [&](int32_t i) {
    return std::ranges::find(allocation, i) != allocation.end();
  };
  // Expands an axis through splits, outer before inner, until an allocated axis is met.
  AxisList stack;
  for (const int32_t logical : domain.logical()) {
    if (domain.id(logical)->isReduction() || domain.id(logical)->isBroadcast()) continue;
    stack = {logical};
    while (!stack.empty()) {
      const int32_t i = stack.back();
      stack.pop_back();
      if (allocated(i)) {
        if (!isDropped(i)) want.push_back(i);
        continue;
      }
      const auto split = std::ranges::find_if(domain.transforms(), [&](const Transform& t) {
        return t.kind == Transform::Split && t.in[0] == i;
      });
      if (split == domain.transforms().end()) {
        if (isDropped(i)) continue;
        return false;  // below a merge: memory order is not a list of logical axes
      }
      stack.push_back(split->out[1]);
      stack.push_back(split->out[0]);
    }
  }
  return want == have;
}

std::optional<std::vector<CanonicalAxis>> canonicalLayout(const TensorView* tv) {
  const TensorDomain& domain = tv->domain();
  std::vector<CanonicalAxis> axes;
  axes.reserve(domain.allocation().size());
  for (size_t i = 0; i < domain.allocation().size(); ++i) {
    axes.push_back({domain.allocation()[i], domain.contiguity()[i]});
  }
  const auto find = [&](int32_t id) { return std::ranges::find(axes, id, &CanonicalAxis::id); };
  const auto transforms = domain.transforms();
  for (size_t t = transforms.size(); t-- > domain.definitionTransforms();) {
    const Transform& x = transforms[t];
    if (x.kind == Transform::Merge) {
      if (find(x.out[0]) != axes.end()) return std::nullopt;
      continue;
    }
    const auto outer = find(x.out[0]), inner = find(x.out[1]);
    if (outer == axes.end() && inner == axes.end()) continue;
    if (outer == axes.end() || inner == axes.end()) return std::nullopt;
    const auto spread = [&](int32_t i) {
      return domain.id(i)->isDeviceDim() || domain.id(i)->isStream();
    };
    if (spread(x.out[0])) {
      inner->id = x.in[0];
      axes.erase(outer);
    } else if (spread(x.out[1])) {
      outer->id = x.in[0];
      axes.erase(inner);
    } else {
      if (outer + 1 != inner) return std::nullopt;
      const bool broadcast = domain.id(x.in[0])->isBroadcast();
      if (!broadcast && outer->contiguity == false) return std::nullopt;
      inner->id = x.in[0];
      axes.erase(outer);
    }
  }
  AxisList ids, logical = domain.logical();
  for (const CanonicalAxis& axis : axes) ids.push_back(axis.id);
  std::ranges::sort(ids);
  std::ranges::sort(logical);
  if (ids != logical) return std::nullopt;
  return axes;
}

std::vector<int64_t> strideOrderOf(const TensorView* tv) {
  const auto layout = canonicalLayout(tv);
  if (!layout) return {};
  const auto logical = tv->domain().withoutReductions(tv->domain().logical());
  std::vector<int64_t> order(logical.size());
  auto place = static_cast<int64_t>(logical.size());
  bool row_major = true;
  std::ptrdiff_t last = -1;
  for (const CanonicalAxis& axis : *layout) {
    const auto it = std::ranges::find(logical, axis.id);
    if (it == logical.end()) continue;
    order[static_cast<size_t>(it - logical.begin())] = --place;
    row_major = row_major && it - logical.begin() > last;
    last = it - logical.begin();
  }
  return row_major ? std::vector<int64_t>{} : order;
}

SmallVector<bool, 8> leadsToDevice(const TensorDomain& domain) {
  SmallVector<bool, 8> leads(domain.ids().size(), false);
  for (const int32_t i : domain.loop()) {
    if (domain.id(i)->isDeviceDim()) leads[static_cast<size_t>(i)] = true;
  }
  const auto transforms = domain.transforms();
  for (size_t t = transforms.size(); t-- > 0;) {
    const Transform& x = transforms[t];
    const bool below = leads[static_cast<size_t>(x.out[0])] ||
                       (x.kind == Transform::Split && leads[static_cast<size_t>(x.out[1])]);
    if (!below) continue;
    leads[static_cast<size_t>(x.in[0])] = true;
    if (x.kind == Transform::Merge) leads[static_cast<size_t>(x.in[1])] = true;
  }
  return leads;
}

bool alignAllocationWithLoop(TensorView* tv) {
  TensorDomain& domain = tv->domain();
  if (domain.transforms().size() == domain.definitionTransforms()) return false;
  const auto leads = leadsToDevice(domain);
  AxisList list = domain.allocation();
  Contiguity contiguity = domain.contiguity();
  const auto below = [&](int32_t i) { return leads[static_cast<size_t>(i)]; };
  bool changed = false;
  const auto transforms = domain.transforms();
  // Transforms are in topological order, so one walk expands chains of splits too.
  for (size_t t = domain.definitionTransforms(); t < transforms.size(); ++t) {
    const Transform& x = transforms[t];
    const auto at0 = std::ranges::find(list, x.in[0]);
    if (at0 == list.end() || domain.id(x.in[0])->isReduction()) continue;
    const auto place = static_cast<size_t>(at0 - list.begin());
    if (x.kind == Transform::Split) {
      if (!below(x.out[0]) && !below(x.out[1])) continue;
      const std::optional<bool> flag = contiguity[place];
      list[place] = x.out[0];
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(place) + 1, x.out[1]);
      // The outer half follows the inner one densely and the inner half keeps the axis's own flag;
      // an inner device half has no stride, so then the outer half keeps it.
      const bool device_inside = domain.id(x.out[1])->isDeviceDim();
      const std::optional<bool> dense = flag ? std::optional<bool>(true) : std::nullopt;
      contiguity[place] = device_inside ? flag : dense;
      contiguity.insert(contiguity.begin() + static_cast<std::ptrdiff_t>(place) + 1,
                        device_inside ? dense : flag);
    } else {
      if (!below(x.out[0])) continue;
      const bool neighbours = place + 1 < list.size() && list[place + 1] == x.in[1];
      MESHFUSE_CHECK(neighbours, "Merging of discontiguous dimensions: a merged axis of ",
                     meshfuse::at(tv),
                     " is on the mesh, but the axes that it merges are not neighbours in memory. "
                     "Merge axes that are next to each other in the allocation domain, outer one "
                     "first.");
      list[place] = x.out[0];
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(place) + 1);
      // The merged axis has the inner one's flag, unless that is a broadcast and has none.
      const bool keep_outer = !contiguity[place + 1].has_value();
      contiguity.erase(contiguity.begin() +
                       static_cast<std::ptrdiff_t>(place + (keep_outer ? 1 : 0)));
    }
    changed = true;
  }
  if (changed) domain.setAllocation(std::move(list), std::move(contiguity));
  return changed;
}

}  // namespace meshfuse
