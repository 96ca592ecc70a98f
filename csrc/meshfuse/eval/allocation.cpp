// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/eval/domain_sizes.h>
#include <meshfuse/schedule/sharding.h>

#include <algorithm>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 58;  // bytes, and offsets, stay within 64 bits

struct Span {  // an axis in memory
  int64_t size = -1, stride = 0;
  bool present() const { return size >= 0; }
};
using Spans = SmallVector<Span, 6>;  // by axis

ScalarLookup lookupIn(const ExpressionEvaluator& ee) {
  return [&ee](Scalar s) { return ee.evaluate(s); };
}

/// Lookup of constants alone.
ScalarLookup constantsOf(const TensorView* tv) {
  return [tv](Scalar s) { return tv->fusion()->scalars().constInt(s); };
}

/// Size of an allocation axis on one device.
int64_t allocatedSize(const TensorView* tv, const DomainSizes& sizes, int32_t i) {
  const int64_t size = sizes.localOf(i);
  MESHFUSE_CHECK(size >= 0, "the extent of an allocation axis of ", at(tv),
                 " is not known: ", toString(*tv->fusion(), tv->domain().id(i)->extent()),
                 ". Give all inputs that its sizes depend on.");
  return size;
}

/// Joins the two halves of a split; their strides must continue each other.
Span join(const TensorView* tv, const Span& outer, const Span& inner) {
  const int64_t size = outer.size * inner.size;
  if (outer.size == 1 || size == 0) return {size, inner.stride};
  if (inner.size == 1) return {size, outer.stride};
  MESHFUSE_CHECK(outer.stride == inner.stride * inner.size, "the allocation domain of ", at(tv),
                 " keeps the halves of a split axis (sizes ", outer.size, " and ", inner.size,
                 ") apart, so the axis would need two strides. Put the outer half directly before "
                 "the inner one.");
  return {size, inner.stride};
}

/// Walks spans of allocation axes back to the logical axes.
void walkToLogical(const TensorView* tv, const DomainSizes& sizes, Spans& spans) {
  const TensorDomain& domain = tv->domain();
  const auto transforms = domain.transforms();
  const auto span = [&](int32_t i) -> Span& { return spans[static_cast<size_t>(i)]; };
  for (size_t t = transforms.size(); t-- > domain.definitionTransforms();) {
    const Transform& x = transforms[t];
    if (!span(x.out[0]).present()) continue;
    if (x.kind == Transform::Merge) {
      const Span merged = std::exchange(span(x.out[0]), {});
      const int64_t inner = sizes.localOf(x.in[1]);
      span(x.in[0]) = {sizes.localOf(x.in[0]), merged.stride * std::max<int64_t>(inner, 1)};
      span(x.in[1]) = {inner, merged.stride};
    } else if (span(x.out[1]).present()) {
      Span joined = join(tv, std::exchange(span(x.out[0]), {}), std::exchange(span(x.out[1]), {}));
      // A split that leaves a remainder allocates more elements than the axis has.
      joined.size = std::min(joined.size, sizes.localOf(x.in[0]));
      span(x.in[0]) = joined;
    }
  }
}

}  // namespace

std::vector<int64_t> inferAllocationShape(const TensorView* tv, const ExpressionEvaluator& ee) {
  const DomainSizes sizes = domainSizes(tv, ee.globalShape(tv), lookupIn(ee), ee.device());
  std::vector<int64_t> shape;
  for (const int32_t i : tv->domain().withoutReductions(tv->domain().allocation())) {
    shape.push_back(allocatedSize(tv, sizes, i));
  }
  return shape;
}

Layout localLayout(const TensorView* tv, const ExpressionEvaluator& ee) {
  const TensorDomain& domain = tv->domain();
  const DomainSizes sizes = domainSizes(tv, ee.globalShape(tv), lookupIn(ee), ee.device());
  Spans spans(domain.ids().size());
  const auto allocation = domain.withoutReductions(domain.allocation());
  int64_t stride = 1;
  for (size_t k = allocation.size(); k-- > 0;) {
    const int32_t i = allocation[k];
    const int64_t size = allocatedSize(tv, sizes, i);
    const bool expanded = domain.id(i)->isBroadcast() && size != 1;
    spans[static_cast<size_t>(i)] = {size, expanded ? 0 : stride};
    if (expanded) continue;
    const bool overflow = __builtin_mul_overflow(stride, std::max<int64_t>(size, 1), &stride);
    MESHFUSE_CHECK(!overflow && stride <= kMostElements, "one device's part of ", at(tv),
                   " has more elements than any memory holds: axis ",
                   AtAxis{static_cast<int64_t>(k)}, " of its allocation domain has size ", size,
                   ". Give smaller sizes, or divide it over more devices.");
  }
  walkToLogical(tv, sizes, spans);
  Layout layout;
  for (const int32_t i : domain.withoutReductions(domain.logical())) {
    const Span& span = spans[static_cast<size_t>(i)];
    const bool missing_broadcast = !span.present() && domain.id(i)->isBroadcast();
    MESHFUSE_CHECK(span.present() || missing_broadcast, "the allocation domain of ", at(tv),
                   " does not lead back to its logical axes. Build it from axis(i) of the loop "
                   "domain, or leave it to the library.");
    layout.sizes.push_back(missing_broadcast ? sizes.localOf(i) : span.size);
    layout.strides.push_back(missing_broadcast ? 1 : span.stride);
  }
  return layout;
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> inferShapeOfOutput(
    const TensorView* tv, const ExpressionEvaluator& ee) {
  Layout layout = localLayout(tv, ee);
  return {std::move(layout.sizes), std::move(layout.strides)};
}

bool needsRelayout(const at::Tensor& actual, const Layout& want) {
  const auto sizes = actual.sizes();
  if (sizes != c10::IntArrayRef(want.sizes)) return true;
  if (actual.numel() == 0) return false;
  const auto strides = actual.strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] != want.strides[i]) return true;
  }
  return false;
}

std::vector<int64_t> unshardedSizes(const TensorView* tv, std::span<const int64_t> local) {
  std::vector<int64_t> global(local.begin(), local.end());
  MESHFUSE_CHECK(static_cast<int64_t>(local.size()) == tv->ndim(), "unsharded_sizes: ", at(tv),
                 " has ", tv->ndim(), " axes, but ", local.size(), " sizes were given.");
  const auto logical = tv->domain().withoutReductions(tv->domain().logical());
  bool merged = false;
  SmallVector<bool, 8> outermost(local.size(), false);  // first operand of a merge on a device path
  for (const ParallelType p : kDeviceTypes) {
    const auto axis = shardedAxis(tv, p);
    if (!axis) continue;
    merged = merged || axis->through_merge;
    if (axis->logical < 0) continue;
    const auto position = static_cast<size_t>(axis->logical);
    outermost[position] = true;
    const IterDomain* id = tv->domain().id(logical[position]);
    if (id->isBroadcast() && !id->expandedExtent()) continue;  // divides nothing
    if (tv->fusion()->uneven) {  // one device's part does not tell the size
      const auto size = tv->fusion()->scalars().constInt(id->getMaybeExpandedExtent());
      MESHFUSE_CHECK(size, "axis ", AtAxis{axis->logical}, " of ", at(tv), " is divided over ", p,
                     " in an uneven program, and its size is not declared. One device's part does "
                     "not tell it: declare the size as a number.");
      global[position] = *size;
      continue;
    }
    global[position] *= tv->getDeviceMesh().size(p);
  }
  if (!merged) return global;
  const auto divided = leadsToDevice(tv->domain());
  // Of merged axes one device's part tells the outermost size at most, and only when it holds the
  // others whole (bind checks that); the others must be declared.
  for (size_t i = 0; i < logical.size(); ++i) {
    const auto size = tv->fusion()->scalars().constInt(tv->domain().id(logical[i])->extent());
    if (size) {
      global[i] = *size;
      continue;
    }
    MESHFUSE_CHECK(outermost[i] || !divided[static_cast<size_t>(logical[i])], "axis ",
                   AtAxis{static_cast<int64_t>(i)}, " of ", at(tv),
                   " is merged with another one and divided over devices, so its global size "
                   "cannot be found from one device's part. Declare its size as a number.");
  }
  return global;
}

std::vector<int64_t> shardedSizes(const TensorView* tv, std::span<const int64_t> global,
                                  int64_t device) {
  const DomainSizes sizes = domainSizes(tv, global, constantsOf(tv), device);
  std::vector<int64_t> local;
  for (const int32_t i : tv->domain().withoutReductions(tv->domain().logical())) {
    local.push_back(sizes.localOf(i));
  }
  return local;
}

void checkContiguity(const TensorView* tv, const at::Tensor& local, int64_t position,
                     int64_t device) {
  if (local.numel() == 0) return;
  const TensorDomain& domain = tv->domain();
  const std::vector<int64_t> global =
      unshardedSizes(tv, std::span(local.sizes().data(), local.sizes().size()));
  const DomainSizes sizes = domainSizes(tv, global, constantsOf(tv), device);
  Spans spans(domain.ids().size());
  const auto span = [&](int32_t i) -> Span& { return spans[static_cast<size_t>(i)]; };
  const auto logical = domain.withoutReductions(domain.logical());
  for (size_t i = 0; i < logical.size(); ++i) {
    span(logical[i]) = {local.size(static_cast<int64_t>(i)), local.stride(static_cast<int64_t>(i))};
  }
  const auto& allocation = domain.allocation();
  const auto allocated = [&](int32_t i) {
    return std::ranges::find(allocation, i) != allocation.end();
  };
  const auto who = [&] {
    return concat(position < 0 ? "tensor " : concat("input ", position, ", "), toString(tv));
  };
  const auto transforms = domain.transforms();
  for (size_t t = domain.definitionTransforms(); t < transforms.size(); ++t) {
    const Transform& x = transforms[t];
    if (!span(x.in[0]).present() || allocated(x.in[0])) continue;
    const Span a = std::exchange(span(x.in[0]), {});
    if (x.kind == Transform::Split) {
      const int64_t inner = sizes.localOf(x.out[1]);
      span(x.out[0]) = {sizes.localOf(x.out[0]), a.stride * std::max<int64_t>(inner, 1)};
      span(x.out[1]) = {inner, a.stride};
      continue;
    }
    const Span b = std::exchange(span(x.in[1]), {});
    MESHFUSE_CHECK(a.size == 1 || b.size == 1 || a.stride == b.stride * b.size,
                   "Merging of discontiguous dimensions: ", who(), " merges axes of sizes ", a.size,
                   " and ", b.size, " whose strides are ", a.stride, " and ", b.stride,
                   ". Pass a contiguous tensor.");
    span(x.out[0]) = {a.size * b.size, b.size == 1 ? a.stride : b.stride};
  }
  int64_t expected = 1;
  for (size_t k = allocation.size(); k-- > 0;) {
    const IterDomain* id = domain.id(allocation[k]);
    const Span& s = span(allocation[k]);
    if (id->isReduction() || id->isBroadcast() || id->isDeviceDim() || s.size <= 1) continue;
    MESHFUSE_CHECK(domain.contiguity()[k] != true || s.stride == expected,
                   "stride mismatch with contiguity info: ", who(), " (", AtTensor{tv->name()},
                   ") has sizes ", local.sizes(), " and strides ", local.strides(),
                   "; allocation axis ", AtAxis{static_cast<int64_t>(k)},
                   " is declared contiguous, so its stride must be ", expected, ", but it is ",
                   s.stride, ". Pass tensor.contiguous(), or declare contiguity=False.");
    expected = s.stride * s.size;
  }
}

}  // namespace meshfuse
