// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/axis_argument.h>
#include <meshfuse/ops/indexing.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>

namespace meshfuse {
namespace {

const IterDomain* axisOf(const TensorView* tv, int64_t axis) {
  const auto logical = tv->domain().withoutReductions(tv->domain().logical());
  return tv->domain().id(logical[static_cast<size_t>(axis)]);
}

void checkIndexFits(const OpCall& call, size_t other, int64_t axis, int64_t index, int64_t size) {
  MESHFUSE_CHECK(index <= size, call.op().name(), ": axis ", AtAxis{axis}, " of ",
                 at(call.tensor(1)), " has size ", index, " but axis ", axis, " of ",
                 call.tensor(other)->name(), " has size ", size,
                 ", and an index may not be larger there. Give a smaller index, or a larger ",
                 call.op().cachedInfo().params[other].name, ".");
}

}  // namespace

void checkIndexFits(const OpCall& call, size_t other, int64_t exempt) {
  const ScalarPool& pool = call.fusion().scalars();
  const TensorView *index = call.tensor(1), *tv = call.tensor(other);
  for (int64_t axis = 0; axis < index->ndim(); ++axis) {
    const auto a = pool.constInt(axisOf(index, axis)->getMaybeExpandedExtent());
    const auto b = pool.constInt(axisOf(tv, axis)->getMaybeExpandedExtent());
    if (a && b && axis != exempt) checkIndexFits(call, other, axis, *a, *b);
  }
}

void checkIndexFits(const OpCall& call, size_t other, int64_t exempt, const at::Tensor& index,
                    const at::Tensor& tensor) {
  if (index.numel() == 0) return;
  for (int64_t axis = 0; axis < index.dim(); ++axis) {
    if (axis != exempt) checkIndexFits(call, other, axis, index.size(axis), tensor.size(axis));
  }
}

int64_t wrappedAxis(const OpCall& call, size_t param, int64_t axis) {
  return wrappedAxis(call.op().name(), call.tensor(param), axis);
}

void checkIndexType(const OpCall& call, size_t param) {
  const TensorView* index = call.tensor(param);
  MESHFUSE_CHECK(index->dtype() == DataType::Int || index->dtype() == DataType::Int32,
                 call.op().name(), ": indices must be integers, but ", at(index), " is ",
                 index->dtype(), ". Cast it to Int.");
}

void checkSameRank(const OpCall& call, size_t param, size_t other) {
  const TensorView *a = call.tensor(param), *b = call.tensor(other);
  MESHFUSE_CHECK(a->ndim() == b->ndim(), call.op().name(),
                 ": Tensor arguments have different dimensions. Tensor arguments have dimension ",
                 a->ndim(), " (", at(a), ") and ", b->ndim(), " (", b->name(),
                 "). Give tensors with as many axes.");
}

bool haveEqualSizes(const TensorView* a, int64_t axis_a, const TensorView* b, int64_t axis_b) {
  return axisOf(a, axis_a)->getMaybeExpandedExtent() == axisOf(b, axis_b)->getMaybeExpandedExtent();
}

at::Tensor checkedIndices(const OpCall& call, size_t param, const at::Tensor& indices,
                          const TensorView* indexed, int64_t axis, int64_t size) {
  if (indices.is_cpu() && indices.numel() > 0) {
    const auto [low, high] = at::aminmax(indices);
    const auto least = low.item<int64_t>(), greatest = high.item<int64_t>();
    MESHFUSE_CHECK(least >= 0 && greatest < size, call.op().name(), ": ", at(call.tensor(param)),
                   " holds the index ", least < 0 ? least : greatest, ", but axis ", AtAxis{axis},
                   " of ", indexed->name(), " has size ", size, ". Give indices from 0 to ",
                   size - 1, ".");
  }
  return indices.to(at::kLong);
}

std::optional<int32_t> AxisFactors::over(FactorKind kind, int64_t axis, unsigned operands) {
  std::vector<int64_t> axes(call_.tensors().size(), -1);
  for (size_t i = 0; i < axes.size(); ++i) {
    if ((operands >> i & 1U) != 0) axes[i] = axis;
  }
  return builder_.factor(kind, axes, "axis " + std::to_string(axis));
}

}  // namespace meshfuse
