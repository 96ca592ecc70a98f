// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ir/fusion.h>
#include <meshfuse/ir/verifier.h>

#include <algorithm>

namespace meshfuse {
namespace {

void verifyLists(const TensorView* tv) {
  const TensorDomain& domain = tv->domain();
  MESHFUSE_CHECK(domain.coversLogical(domain.loop()), "verify: the loop domain of ", at(tv),
                 " does not stand for the same elements as its logical domain. Every logical axis "
                 "must be reached exactly once through splits and merges.");
  const bool as_loop = domain.allocation() == domain.loop();  // then it has just been checked
  MESHFUSE_CHECK(as_loop || domain.coversLogical(domain.allocation()),
                 "verify: the allocation domain of ", at(tv),
                 " does not stand for the same elements as its logical domain. Every logical axis "
                 "must be reached exactly once through splits and merges.");
  MESHFUSE_CHECK(domain.contiguity().size() == domain.allocation().size(), "verify: ", at(tv),
                 " has ", domain.contiguity().size(), " contiguity flags for ",
                 domain.allocation().size(), " allocation axes. Give one flag per axis.");
  for (size_t i = 0; i < domain.allocation().size(); ++i) {
    const IterDomain* id = domain.id(domain.allocation()[i]);
    const bool none = id->isBroadcast() || id->isReduction();
    MESHFUSE_CHECK(none == !domain.contiguity()[i].has_value(), "verify: contiguity flag ", i,
                   " of ", at(tv), " must ", none ? "be None" : "be true or false",
                   ", since the axis is ",
                   none ? "a broadcast or a reduction." : "neither a broadcast nor a reduction.");
  }
}

/// Of a logical axis, or of a root axis that an rfactor has cut.
int64_t positionOf(const TensorDomain& domain, int32_t axis) {
  const int64_t position = domain.logicalPosition(axis);
  return position >= 0 ? position : std::ranges::find(domain.root(), axis) - domain.root().begin();
}

void verifyDivisible(const TensorView* tv, const IterDomain* device) {
  if (tv->fusion()->uneven) return;  // what is possible then depends on the sizes
  const ScalarPool& pool = tv->fusion()->scalars();
  const TensorDomain& domain = tv->domain();
  AxisList stack = {device->index()};
  while (!stack.empty()) {
    const Transform* t = domain.definition(stack.back());
    stack.pop_back();
    if (t == nullptr) continue;
    stack.push_back(t->in[0]);
    if (t->kind == Transform::Merge) {
      stack.push_back(t->in[1]);
      continue;
    }
    const auto extent = pool.constInt(domain.id(t->in[0])->getMaybeExpandedExtent());
    const auto factor = pool.constInt(t->factor);
    if (!extent || !factor || domain.id(t->in[0])->isBroadcast()) continue;
    MESHFUSE_CHECK(*extent % *factor == 0, "parallelize: axis ",
                   AtAxis{positionOf(domain, t->in[0])}, " of ", at(tv), " of size ", *extent,
                   " is not divisible by ", *factor, ", and a piece of it is on ",
                   device->getParallelType(), ". Choose a factor that divides ", *extent,
                   ", or pad the tensor first.");
  }
}

void verifyDeviceAxes(const TensorView* tv) {
  const ScalarPool& pool = tv->fusion()->scalars();
  SmallVector<const IterDomain*, 6> used;
  for (const int32_t i : tv->domain().loop()) {
    const IterDomain* id = tv->domain().id(i);
    if (!id->isDeviceDim()) continue;
    const ParallelType p = id->getParallelType();
    for (const IterDomain* other : used) {
      MESHFUSE_CHECK(other->getParallelType() != p || other->isReduction() != id->isReduction(),
                     "verify: Found multiple loop IterDomains with the same parallel type (", p,
                     ") in ", at(tv), ". Use each mesh axis for one axis of a tensor.");
    }
    used.push_back(id);
    MESHFUSE_CHECK(tv->hasDeviceMesh(), "verify: axis ",
                   AtAxis{tv->domain().logicalPosition(id->index())}, " of ", at(tv), " is on ", p,
                   ", but the tensor has no DeviceMesh. Call set_device_mesh on it first.");
    const int64_t devices = tv->getDeviceMesh().size(p);
    const auto extent = pool.constInt(id->extent());
    MESHFUSE_CHECK(!extent || id->isBroadcast() || *extent == devices, "verify: a piece of axis ",
                   AtAxis{tv->domain().logicalPosition(id->index())}, " of ", at(tv), " of size ",
                   extent.value_or(-1), " is on ", p, ", which has ", devices,
                   " devices. Split the axis by ", devices, " first, and parallelize that half.");
    if (!id->isReduction()) verifyDivisible(tv, id);
  }
}

void verifySwizzles(const TensorView* tv) {
  const ScalarPool& pool = tv->fusion()->scalars();
  for (const int32_t i : tv->domain().loop()) {
    const IterDomain* id = tv->domain().id(i);
    if (!id->isSwizzled()) continue;
    const ParallelType p = id->swizzle();
    const AtAxis axis{tv->domain().logicalPosition(id->index())};
    MESHFUSE_CHECK(id->getParallelType() == ParallelType::Serial || id->isStream(),
                   "swizzle1d: a piece of axis ", axis, " of ", at(tv), " is swizzled over ", p,
                   " and on ", id->getParallelType(),
                   ". Only an axis that a device walks through, stream or serial, has an order.");
    MESHFUSE_CHECK(tv->hasDeviceMesh(), "swizzle1d: a piece of axis ", axis, " of ", at(tv),
                   " is swizzled over ", p,
                   ", but the tensor has no DeviceMesh. Call set_device_mesh on it first.");
    const int64_t devices = tv->getDeviceMesh().size(p);
    const auto extent = pool.constInt(id->extent());
    MESHFUSE_CHECK(!extent || *extent == devices, "swizzle1d: a piece of axis ", axis, " of ",
                   at(tv), " of size ", extent.value_or(-1), " is swizzled over ", p,
                   ", which has ", devices, " devices. Split the axis by ", devices,
                   " first, and swizzle that half.");
  }
}

}  // namespace

void verify(const TensorView* tv) {
  verifyLists(tv);
  verifyDeviceAxes(tv);
  verifySwizzles(tv);
}

void verify(const Fusion& fusion) {
  for (const TensorView& tv : fusion.tensors()) verify(&tv);
}

}  // namespace meshfuse
