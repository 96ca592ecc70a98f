// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ir/fusion.h>
#include <meshfuse/schedule/domain_replay.h>

#include <algorithm>

namespace meshfuse {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kPlanned = -2;  // the result of a transform that a check would make

bool contains(const AxisList& list, int32_t i) { return std::ranges::find(list, i) != list.end(); }

/// Walks through the transforms of a reference in order and finds, checks or makes them on `tv`.
class Replay {
 public:
  Replay(const TensorView* reference, const TensorView* tv, AxisMap& map)
      : reference_(reference), tv_(tv), map_(map) {}

  /// Makes missing transforms on `target`, or only plans them when that is null. Returns what is in
  /// the way.
  std::optional<std::string> run(const std::vector<bool>& wanted, TensorView* target) {
    const auto transforms = reference_->domain().transforms();
    for (size_t i = 0; i < transforms.size(); ++i) {
      const Transform& x = transforms[i];
      const int32_t a = map(x.in[0]), b = x.kind == Transform::Merge ? map(x.in[1]) : a;
      if (a == kNone || b == kNone || map(x.out[0]) != kNone) continue;
      const Transform* own = consumer(a);
      if (own == nullptr) own = consumer(b);
      if (own != nullptr && isSame(x, *own, a, b)) {
        setResults(x, own->out[0], own->out[1]);
        continue;
      }
      if (!wanted[i] || !sameKind(a, b)) continue;
      for (const int32_t id : {a, b}) {
        if (auto reason = whyFixed(id)) return reason;
      }
      if (target == nullptr) {
        setResults(x, kPlanned, kPlanned);
      } else {
        make(x, a, b, target);
      }
    }
    return std::nullopt;
  }

 private:
  int32_t& map(int32_t i) { return map_[static_cast<size_t>(i)]; }

  void setResults(const Transform& x, int32_t first, int32_t second) {
    map(x.out[0]) = first;
    if (x.kind == Transform::Split) map(x.out[1]) = second;
  }

  const Transform* consumer(int32_t id) const {
    if (id < 0) return nullptr;
    const auto transforms = tv_->domain().transforms();
    const auto it = std::ranges::find_if(transforms, [&](const Transform& t) {
      return t.in[0] == id || (t.kind == Transform::Merge && t.in[1] == id);
    });
    return it == transforms.end() ? nullptr : &*it;
  }

  /// Splits are the same when they give halves of equal extents, however that is written.
  bool isSame(const Transform& x, const Transform& own, int32_t a, int32_t b) const {
    if (x.kind != own.kind) return false;
    if (x.kind == Transform::Merge) return own.in[0] == a && own.in[1] == b;
    if (x.inner == own.inner && x.factor == own.factor) return true;
    const ScalarPool& pool = tv_->fusion()->scalars();
    const auto extent = [&](const TensorView* tv, int32_t i) {
      return pool.constInt(tv->domain().id(i)->getMaybeExpandedExtent());
    };
    const auto whole = extent(tv_, a), outer = extent(tv_, own.out[0]),
               inner = extent(tv_, own.out[1]);
    return whole && outer && inner && *outer * *inner == *whole &&
           outer == extent(reference_, x.out[0]) && inner == extent(reference_, x.out[1]);
  }

  /// A reduction and another axis have no common product.
  bool sameKind(int32_t a, int32_t b) const {
    if (a < 0 || b < 0) return true;
    return tv_->domain().id(a)->isReduction() == tv_->domain().id(b)->isReduction();
  }

  std::optional<std::string> whyFixed(int32_t id) const {
    if (id < 0) return std::nullopt;
    const TensorDomain& domain = tv_->domain();
    const IterDomain* axis = domain.id(id);
    const std::string piece =
        concat("a piece of axis ", domain.logicalPosition(id), " of ", tv_->name(), " is ");
    if (axis->isParallelized()) {
      return concat(piece, "on ", axis->getParallelType(), " already");
    }
    if (axis->isSwizzled()) return concat(piece, "swizzled over ", axis->swizzle(), " already");
    if (const Transform* own = consumer(id)) {
      if (own->kind == Transform::Merge) return piece + "merged already, with another axis";
      const Fusion& fusion = *tv_->fusion();
      return concat(piece, "split already, into ",
                    toString(fusion, domain.id(own->out[0])->getMaybeExpandedExtent()), " and ",
                    toString(fusion, domain.id(own->out[1])->getMaybeExpandedExtent()));
    }
    if (!contains(domain.loop(), id)) return piece + "not in its loop domain";
    return std::nullopt;
  }

  void make(const Transform& x, int32_t a, int32_t b, TensorView* target) {
    const auto place = [&](int32_t id) {
      const auto& loop = target->domain().loop();
      return std::ranges::find(loop, id) - loop.begin();
    };
    if (x.kind == Transform::Merge) {
      target->merge(place(a), place(b));
    } else {
      target->split(place(a), x.factor, x.inner);
    }
    const Transform& made = target->domain().transforms().back();
    setResults(x, made.out[0], made.out[1]);
  }

  const TensorView* reference_;
  const TensorView* tv_;
  AxisMap& map_;
};

}  // namespace

std::vector<bool> transformsLeadingTo(const TensorDomain& domain, std::span<const int32_t> axes) {
  std::vector<bool> needed(domain.ids().size(), false);
  for (const int32_t i : axes) needed[static_cast<size_t>(i)] = true;
  const auto isNeeded = [&](int32_t i) { return i >= 0 && needed[static_cast<size_t>(i)]; };
  std::vector<bool> wanted(domain.transforms().size(), false);
  for (size_t t = wanted.size(); t-- > domain.definitionTransforms();) {
    const Transform& x = domain.transforms()[t];
    if (!isNeeded(x.out[0]) && !isNeeded(x.out[1])) continue;
    wanted[t] = true;
    needed[static_cast<size_t>(x.in[0])] = true;
    if (x.kind == Transform::Merge) needed[static_cast<size_t>(x.in[1])] = true;
  }
  return wanted;
}

void extendMap(const TensorView* reference, const TensorView* tv, AxisMap& map) {
  const std::vector<bool> none(reference->domain().transforms().size(), false);
  Replay(reference, tv, map).run(none, nullptr);
}

std::optional<std::string> whyNotReplayed(const TensorView* reference, const TensorView* tv,
                                          AxisMap map, const std::vector<bool>& wanted) {
  return Replay(reference, tv, map).run(wanted, nullptr);
}

void replayTransforms(const TensorView* reference, TensorView* tv, AxisMap& map,
                      const std::vector<bool>& wanted) {
  const auto reason = Replay(reference, tv, map).run(wanted, tv);
  MESHFUSE_CHECK(!reason, "The transforms of ", reference->name(), " cannot be repeated on ",
                 at(tv), ": ", reason.value_or(""), ". Schedule it before it is transformed.");
}

void orderLoopLike(std::span<const int32_t> axes, TensorView* tv, const AxisMap& map) {
  AxisList loop = tv->domain().loop();
  AxisList ordered;
  for (const int32_t i : axes) {
    const int32_t id = map[static_cast<size_t>(i)];
    if (id >= 0 && contains(loop, id)) ordered.push_back(id);
  }
  auto next = ordered.begin();
  for (int32_t& id : loop) {
    if (contains(ordered, id)) id = *next++;
  }
  if (loop == tv->domain().loop()) return;
  tv->domain().setLoop(std::move(loop));
  tv->fusion()->bumpVersion();
}

}  // namespace meshfuse
