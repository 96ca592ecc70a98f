// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/eval/domain_sizes.h>
#include <meshfuse/ir/fusion.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>

namespace meshfuse {
namespace {

/// Which part of a merged axis one device holds.
enum class PartKind : uint8_t { Whole, Block, Cyclic, Other };

class SizeWalk {
 public:
  SizeWalk(const TensorView* tv, const ScalarLookup& lookup, int64_t device)
      : tv_(tv),
        domain_(tv->domain()),
        lookup_(lookup),
        device_(device),
        leads_(leadsToDevice(domain_)) {
    sizes_.global.assign(domain_.ids().size(), -1);
    sizes_.local.assign(domain_.ids().size(), -1);
  }

  DomainSizes run(std::span<const int64_t> shape) {
    const auto logical = domain_.withoutReductions(domain_.logical());
    MESHFUSE_ASSERT(logical.size() == shape.size(), tv_->name(), " has ", logical.size(),
                    " axes, sizes were given for ", shape.size());
    for (size_t i = 0; i < logical.size(); ++i) global(logical[i]) = shape[i];
    const auto transforms = domain_.transforms();
    for (size_t t = domain_.definitionTransforms(); t < transforms.size(); ++t) down(transforms[t]);
    for (const IterDomain* id : domain_.ids()) {
      const int32_t i = id->index();
      local(i) = id->isDeviceDim() ? std::min<int64_t>(global(i), 1) : global(i);
    }
    for (const int32_t i : domain_.loop()) checkDevices(i);
    for (const Transform* t : uneven_) {
      const ParallelType p = domain_.id(t->out[0])->getParallelType();
      const auto index = device_ < 0 ? 0 : tv_->getDeviceMesh().indexOn(device_, p).value_or(0);
      local(t->out[1]) = chunkOf(global(t->in[0]), global(t->out[0]), index).size;
    }
    for (size_t t = transforms.size(); t-- > domain_.definitionTransforms();) up(transforms[t]);
    return std::move(sizes_);
  }

 private:
  int64_t& global(int32_t i) { return sizes_.global[static_cast<size_t>(i)]; }
  int64_t& local(int32_t i) { return sizes_.local[static_cast<size_t>(i)]; }
  bool leads(int32_t i) const { return leads_[static_cast<size_t>(i)]; }

  /// An axis that is on the mesh as a whole has one element per device.
  void checkDevices(int32_t i) {
    const IterDomain* id = domain_.id(i);
    if (!id->isDeviceDim() || id->isReduction() || id->isBroadcast() || !tv_->hasDeviceMesh())
      return;
    const ParallelType p = id->getParallelType();
    const int64_t devices = tv_->getDeviceMesh().size(p);
    MESHFUSE_CHECK(global(i) < 0 || global(i) == devices, "parallelize: a piece of axis ",
                   AtAxis{domain_.logicalPosition(i)}, " of ", at(tv_), " turns out to have size ",
                   global(i), " and is on ", p, ", which has ", devices,
                   " devices. Split the axis by ", devices, " first, and parallelize that half.",
                   inheritedText());
  }

  /// What to say of a tensor that is divided because those beside it are, not by annotation.
  std::string inheritedText() const {
    const Expr* made = tv_->definition();
    if (tv_->meshIsDeclared() || made == nullptr || made->cause()) return "";
    return concat(" ", tv_->name(), " is not annotated and follows the tensors beside it: call ",
                  "set_device_mesh on it to leave it whole.");
  }

  void down(const Transform& t) {
    const int64_t extent = global(t.in[0]);
    if (t.kind == Transform::Merge) {
      if (extent >= 0 && global(t.in[1]) >= 0) global(t.out[0]) = extent * global(t.in[1]);
      return;
    }
    if (extent < 0) return;
    const IterDomain* id = domain_.id(t.in[0]);
    if (id->isBroadcast() && !id->expandedExtent()) {
      global(t.out[0]) = global(t.out[1]) = 1;
      return;
    }
    const auto factor = lookup_(t.factor);
    MESHFUSE_CHECK(factor, "the factor by which an axis of ", at(tv_),
                   " is split is not known. Split by a number, or bind its symbol.");
    MESHFUSE_CHECK(*factor > 0, "split: Invalid factor for split. Factor must be greater than 0. ",
                   at(tv_), " is split by ", *factor, ".");
    if (isUnevenCut(tv_, t, extent, *factor)) {
      uneven_.push_back(&t);
    } else if (leads(t.in[0])) {
      MESHFUSE_CHECK(extent % *factor == 0, "axis ", AtAxis{domain_.logicalPosition(t.in[0])},
                     " of ", at(tv_), " of size ", extent, " is not divisible by ", *factor,
                     ", the factor by which it is split over the "
                     "devices of ",
                     tv_->getDeviceMesh().toString(), ". Choose a size that ", *factor,
                     " divides, or pad the tensor first",
                     tv_->fusion()->uneven
                         ? "; uneven=True is for axes that one outer split divides, its outer half "
                           "on the mesh."
                         : ", or define the fusion with uneven=True.",
                     inheritedText());
    }
    const int64_t rest = (extent + *factor - 1) / *factor;
    global(t.out[0]) = t.inner ? rest : *factor;
    global(t.out[1]) = t.inner ? *factor : rest;
  }

  void up(const Transform& t) {
    if (!leads(t.out[0]) && (t.kind == Transform::Merge || !leads(t.out[1]))) return;
    if (t.kind == Transform::Merge) {
      unmerge(t);
    } else if (global(t.in[0]) >= 0) {
      local(t.in[0]) = local(t.out[0]) * local(t.out[1]);
    }
  }

  PartKind partKind(int32_t id) {
    if (!leads(id)) return PartKind::Whole;
    if (domain_.id(id)->isDeviceDim()) return PartKind::Block;
    const auto split = std::ranges::find_if(domain_.transforms(), [&](const Transform& t) {
      return t.kind == Transform::Split && t.in[0] == id;
    });
    if (split == domain_.transforms().end()) return PartKind::Other;
    const PartKind outer = partKind(split->out[0]), inner = partKind(split->out[1]);
    if (outer == PartKind::Whole) {
      const bool device = domain_.id(split->out[1])->isDeviceDim();
      return device ? PartKind::Cyclic : PartKind::Other;
    }
    const bool whole_inside = inner == PartKind::Whole || inner == PartKind::Block;
    const bool one = local(split->out[0]) <= 1;
    return outer == PartKind::Block && whole_inside && (one || inner == PartKind::Whole)
               ? PartKind::Block
               : PartKind::Other;
  }

  /// Local sizes of the two merged axes from the local size of the merged one (semantics 2.6).
  void unmerge(const Transform& t) {
    const int64_t a = global(t.in[0]), b = global(t.in[1]), part = local(t.out[0]);
    if (a < 0 || b < 0) return;
    const auto set = [&](int64_t la, int64_t lb) {
      local(t.in[0]) = la;
      local(t.in[1]) = lb;
    };
    const PartKind kind = partKind(t.out[0]);
    if (part == a * b) return set(a, b);
    if (kind == PartKind::Block) {
      if (part % b == 0) return set(part / b, b);
      if (part > 0 && b % part == 0) return set(1, part);
    }
    if (kind == PartKind::Cyclic) {
      const int64_t devices = a * b / std::max<int64_t>(part, 1);
      if (b % devices == 0) return set(a, b / devices);
      if (b == 1) return set(a / devices, 1);
      if (a == 1) return set(1, b / devices);
    }
    fail("NonRectangularShard: one device holds ", part, " elements of the merged axes of ",
         at(tv_), " of sizes ", a, " and ", b,
         ", which are no rectangle of the two. Split one of the axes instead of the merged one.");
  }

  const TensorView* tv_;
  const TensorDomain& domain_;
  const ScalarLookup& lookup_;
  int64_t device_;
  SmallVector<bool, 8> leads_;
  std::vector<const Transform*> uneven_;
  DomainSizes sizes_;
};

}  // namespace

DomainSizes domainSizes(const TensorView* tv, std::span<const int64_t> global_shape,
                        const ScalarLookup& lookup, int64_t device) {
  return SizeWalk(tv, lookup, device).run(global_shape);
}

Chunk chunkOf(int64_t extent, int64_t devices, int64_t index) {
  const int64_t chunk = (extent + devices - 1) / devices;
  const int64_t begin = std::min(index * chunk, extent);
  return {begin, std::min(chunk, extent - begin)};
}

bool isUnevenCut(const TensorView* tv, const Transform& split, int64_t extent, int64_t factor) {
  const TensorDomain& domain = tv->domain();
  return tv->fusion()->uneven && extent % factor != 0 && domain.id(split.out[0])->isDeviceDim() &&
         !split.inner &&
         std::ranges::find(domain.logical(), split.in[0]) != domain.logical().end() &&
         !leadsToDevice(domain)[static_cast<size_t>(split.out[1])];  // else chunks of chunks
}

}  // namespace meshfuse
