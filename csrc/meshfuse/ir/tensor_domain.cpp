// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ir/fusion.h>
#include <meshfuse/ir/tensor_domain.h>

#include <algorithm>

namespace meshfuse {

int32_t TensorDomain::newId(Fusion& fusion, TensorView* tensor, Scalar extent, IterType type,
                            Scalar expanded, bool rfactor) {
  IterDomain* id = fusion.newIterDomain();
  id->tensor_ = tensor;
  id->extent_ = extent;
  id->expanded_ = expanded;
  id->type_ = type;
  id->rfactor_ = rfactor;
  id->index_ = static_cast<int32_t>(ids_.size());
  ids_.push_back(id);
  return id->index_;
}

void TensorDomain::setLogical(AxisList ids) {
  logical_ = std::move(ids);
  loop_ = logical_;
  definition_transforms_ = static_cast<uint32_t>(transforms_.size());
  if (!allocation_is_set_) contiguity_ = uniformContiguity(logical_, true);
}

void TensorDomain::setRoot(AxisList root) {
  root_ = std::move(root);
  if (root_ == logical_) root_.clear();
}

void TensorDomain::setAllocation(AxisList ids, Contiguity contiguity) {
  allocation_ = std::move(ids);
  contiguity_ = std::move(contiguity);
  allocation_is_set_ = true;
}

void TensorDomain::clearAllocation() {
  allocation_.clear();
  allocation_is_set_ = false;
  contiguity_ = uniformContiguity(logical_, true);
}

std::pair<int32_t, int32_t> TensorDomain::split(Fusion& fusion, int32_t in, Scalar factor,
                                                bool inner) {
  ScalarPool& pool = fusion.scalars();
  const IterDomain* source = id(in);
  const bool expanded = static_cast<bool>(source->expandedExtent());
  const Scalar one = pool.constant(1);
  Scalar factor_extent = factor, rest = pool.ceilDiv(source->extent(), factor), rest_expanded;
  if (expanded) {
    rest = one;
    rest_expanded = pool.ceilDiv(source->expandedExtent(), factor);
  } else if (source->isBroadcast()) {
    factor_extent = rest = one;
  }
  Transform t{.kind = Transform::Split, .inner = inner, .in = {in, -1}, .factor = factor};
  TensorView* owner = source->tensor();
  const IterType type = source->iterType();
  const auto make = [&](bool is_factor) {
    const int32_t i = newId(fusion, owner, is_factor ? factor_extent : rest, type,
                            is_factor ? Scalar{} : rest_expanded);
    id(i)->definition_ = static_cast<int32_t>(transforms_.size());
    return i;
  };
  t.out[0] = make(!inner);
  t.out[1] = make(inner);
  transforms_.push_back(t);
  return {t.out[0], t.out[1]};
}

int32_t TensorDomain::merge(Fusion& fusion, int32_t outer, int32_t inner) {
  ScalarPool& pool = fusion.scalars();
  const IterDomain* a = id(outer);
  const IterDomain* b = id(inner);
  IterType type = a->iterType();
  if (a->isBroadcast() && !b->isBroadcast()) type = b->iterType();
  Scalar extent = pool.mul(a->extent(), b->extent()), expanded;
  if (a->expandedExtent() || b->expandedExtent()) {
    const Scalar both = pool.mul(a->getMaybeExpandedExtent(), b->getMaybeExpandedExtent());
    (type == IterType::Broadcast ? expanded : extent) = both;
  }
  Transform t{.kind = Transform::Merge, .inner = false, .in = {outer, inner}};
  t.out[0] = newId(fusion, a->tensor(), extent, type, expanded);
  id(t.out[0])->definition_ = static_cast<int32_t>(transforms_.size());
  transforms_.push_back(t);
  return t.out[0];
}

const Transform* TensorDomain::definition(int32_t i) const {
  const int32_t t = id(i)->definition_;
  return t < 0 ? nullptr : &transforms_[static_cast<size_t>(t)];
}

IdList TensorDomain::idsOf(const AxisList& list) const {
  IdList out;
  out.reserve(list.size());
  for (const int32_t i : list) out.push_back(id(i));
  return out;
}

AxisList TensorDomain::withoutReductions(const AxisList& list) const {
  AxisList out;
  out.reserve(list.size());
  for (const int32_t i : list) {
    if (!id(i)->isReduction()) out.push_back(i);
  }
  return out;
}

int64_t TensorDomain::logicalPosition(int32_t i) const {
  while (std::ranges::find(logical_, i) == logical_.end()) {
    const Transform* t = definition(i);
    if (t == nullptr) return -1;
    i = t->in[0];
  }
  const bool reduction = id(i)->isReduction();
  int64_t position = 0;
  for (const int32_t l : logical_) {
    if (l == i) break;
    position += id(l)->isReduction() == reduction ? 1 : 0;
  }
  return position;
}

bool TensorDomain::coversLogical(const AxisList& list) const {
  SmallVector<int32_t, 12> count(ids_.size(), 0);
  const auto at = [&](int32_t i) -> int& { return count[static_cast<size_t>(i)]; };
  for (const int32_t i : list) {
    if (++at(i) > 1) return false;
  }
  if (list == logical_) return true;
  const auto present = [&](int32_t i) { return at(i) > 0 || id(i)->isBroadcast(); };
  for (size_t t = 0; t < definition_transforms_; ++t) {  // root side: forward to logical
    const Transform& x = transforms_[t];
    const bool split = x.kind == Transform::Split;
    if (at(x.in[0]) == 0 || (!split && at(x.in[1]) == 0)) continue;
    if (at(x.in[0]) > 1 || (!split && at(x.in[1]) > 1)) return false;
    at(x.in[0]) = 0;
    if (!split) at(x.in[1]) = 0;
    ++at(x.out[0]);
    if (split) ++at(x.out[1]);
  }
  for (size_t t = transforms_.size(); t-- > definition_transforms_;) {  // loop side: back up
    const Transform& x = transforms_[t];
    if (at(x.out[0]) == 0 && (x.kind == Transform::Merge || at(x.out[1]) == 0)) continue;
    if (at(x.out[0]) > 1 || (x.kind == Transform::Split && at(x.out[1]) > 1)) return false;
    if (x.kind == Transform::Split && !(present(x.out[0]) && present(x.out[1]))) return false;
    at(x.out[0]) = 0;
    if (x.kind == Transform::Split) at(x.out[1]) = 0;
    ++at(x.in[0]);
    if (x.kind == Transform::Merge) ++at(x.in[1]);
  }
  for (const int32_t i : logical_) {
    if (at(i) > 1 || (at(i) == 0 && !id(i)->isBroadcast())) return false;
    at(i) = 0;
  }
  return std::ranges::all_of(count, [](int32_t c) { return c == 0; });
}

void TensorDomain::copyFrom(Fusion& fusion, TensorView* tensor, const TensorDomain& other) {
  MESHFUSE_ASSERT(ids_.empty(), "a domain is copied over another one");
  ids_.reserve(other.ids_.size());
  for (const IterDomain* source : other.ids_) {
    IterDomain* copy = fusion.newIterDomain();
    *copy = *source;
    copy->tensor_ = tensor;
    ids_.push_back(copy);
  }
  transforms_ = other.transforms_;
  root_ = other.root_;
  logical_ = other.logical_;
  loop_ = other.loop_;
  allocation_ = other.allocation_;
  contiguity_ = other.contiguity_;
  definition_transforms_ = other.definition_transforms_;
  allocation_is_set_ = other.allocation_is_set_;
}

void TensorDomain::rfactor(const AxisList& kept) {
  // origin[i]: the logical axis that axis i comes from (through a merge: its first operand's).
  AxisList origin(ids_.size(), -1);
  for (const int32_t l : logical_) origin[static_cast<size_t>(l)] = l;
  for (const Transform& t : transforms_) {
    const int32_t from = origin[static_cast<size_t>(t.in[0])];
    origin[static_cast<size_t>(t.out[0])] = from;
    if (t.kind == Transform::Split) origin[static_cast<size_t>(t.out[1])] = from;
  }
  const auto originOf = [&](int32_t i) { return origin[static_cast<size_t>(i)]; };
  std::vector<bool> replaced(ids_.size(), false);
  for (const int32_t i : kept) replaced[static_cast<size_t>(originOf(i))] = true;
  const auto isReplaced = [&](int32_t i) { return i >= 0 && replaced[static_cast<size_t>(i)]; };

  const auto middle = std::stable_partition(
      transforms_.begin() + static_cast<std::ptrdiff_t>(definition_transforms_), transforms_.end(),
      [&](const Transform& t) { return isReplaced(originOf(t.in[0])); });
  definition_transforms_ = static_cast<uint32_t>(middle - transforms_.begin());
  for (size_t t = 0; t < transforms_.size(); ++t) {
    const Transform& x = transforms_[t];
    id(x.out[0])->definition_ = static_cast<int32_t>(t);
    if (x.kind == Transform::Split) id(x.out[1])->definition_ = static_cast<int32_t>(t);
  }
  const auto pieces = [&](const AxisList& list) {
    AxisList out;
    for (const int32_t i : list) {
      if (!isReplaced(i)) {
        out.push_back(i);
        continue;
      }
      for (const int32_t l : loop_) {
        if (originOf(l) == i) out.push_back(l);
      }
    }
    return out;
  };
  // An allocation axis may be a piece already, split further since.
  const auto leavesOf = [&](int32_t i) {
    std::vector<bool> of(ids_.size(), false);
    of[static_cast<size_t>(i)] = true;
    for (const Transform& t : transforms_) {
      const bool second = t.kind == Transform::Merge && of[static_cast<size_t>(t.in[1])];
      if (!of[static_cast<size_t>(t.in[0])] && !second) continue;
      of[static_cast<size_t>(t.out[0])] = true;
      if (t.kind == Transform::Split) of[static_cast<size_t>(t.out[1])] = true;
    }
    return of;
  };
  const AxisList root = logical_;
  logical_ = pieces(root);
  if (allocation_is_set_) {
    AxisList allocation;
    for (const int32_t i : allocation_) {
      if (!isReplaced(originOf(i))) {
        allocation.push_back(i);
        continue;
      }
      const std::vector<bool> of = leavesOf(i);
      for (const int32_t l : loop_) {
        const bool taken = std::ranges::find(allocation, l) != allocation.end();
        if (of[static_cast<size_t>(l)] && !taken) allocation.push_back(l);
      }
    }
    allocation_ = std::move(allocation);
  }
  for (const int32_t i : logical_) {
    if (isReplaced(originOf(i))) id(i)->rfactor_ = true;
  }
  for (const int32_t i : kept) id(i)->type_ = IterType::Iteration;
  setRoot(root);
  contiguity_ = uniformContiguity(allocation(), true);
}

Contiguity TensorDomain::uniformContiguity(const AxisList& list, bool flag) const {
  Contiguity out;
  out.reserve(list.size());
  for (const int32_t i : list) {
    const bool none = id(i)->isReduction() || id(i)->isBroadcast();
    out.push_back(none ? std::nullopt : std::optional<bool>(flag));
  }
  return out;
}

}  // namespace meshfuse
