// SPDX-License-Identifier: BSD-3-Clause
// Builders of input tensors (semantics 1.2).
#include <meshfuse/base/error.h>
#include <meshfuse/ops/arith.h>

namespace meshfuse {

Fusion& IrBuilder::currentFusion() {
  Fusion* fusion = FusionGuard::getCurFusion();
  MESHFUSE_CHECK(fusion != nullptr,
                 "no Fusion is active in this thread. Make a FusionGuard first.");
  return *fusion;
}

TensorViewBuilder& TensorViewBuilder::ndims(size_t n) {
  shape_.assign(n, -1);
  return *this;
}
TensorViewBuilder& TensorViewBuilder::shape(std::vector<int64_t> shape) {
  shape_ = std::move(shape);
  return *this;
}
TensorViewBuilder& TensorViewBuilder::dtype(DataType type) {
  dtype_ = type;
  return *this;
}
TensorViewBuilder& TensorViewBuilder::contiguity(bool flag) {
  uniform_ = flag;
  return *this;
}
TensorViewBuilder& TensorViewBuilder::contiguity(Contiguity flags) {
  contiguity_ = std::move(flags);
  return *this;
}
TensorViewBuilder& TensorViewBuilder::expanded(std::vector<bool> flags) {
  expanded_ = std::move(flags);
  return *this;
}
TensorViewBuilder& TensorViewBuilder::strideOrder(std::vector<int64_t> order) {
  stride_order_ = std::move(order);
  return *this;
}

TensorView* TensorViewBuilder::build(Fusion* fusion) const {
  Fusion& f = fusion != nullptr ? *fusion : IrBuilder::currentFusion();
  ScalarPool& pool = f.scalars();
  const size_t n = shape_.size();
  MESHFUSE_CHECK(dtype_ != DataType::Null, "define_tensor: dtype is Null. Name a data type.");
  MESHFUSE_CHECK(!contiguity_ || contiguity_->size() == n, "Length of contiguity argument (",
                 contiguity_ ? contiguity_->size() : 0, ") must match that of shape argument (", n,
                 "). Give one flag per axis, in memory order.");
  MESHFUSE_CHECK(expanded_.empty() || expanded_.size() == n, "Length of expanded argument (",
                 expanded_.size(), ") must match that of shape argument (", n, ").");
  MESHFUSE_CHECK(stride_order_.empty() || stride_order_.size() == n,
                 "Length of stride_order argument (", stride_order_.size(),
                 ") must match that of shape argument (", n, "). Give one entry per axis.");
  // place[i]: position of axis i in memory order.
  std::vector<size_t> place(n);
  std::vector<bool> taken(n, false);
  for (size_t i = 0; i < n; ++i) {
    int64_t order = stride_order_.empty() ? static_cast<int64_t>(n - 1 - i) : stride_order_[i];
    const auto size = static_cast<int64_t>(n);
    MESHFUSE_CHECK(order >= -size && order < size,
                   "define_tensor stride_order argument is out of range: entry ", order,
                   " at index ", i, ". Use 0 (innermost) to ", size - 1, ".");
    if (order < 0) order += size;
    place[i] = n - 1 - static_cast<size_t>(order);
    MESHFUSE_CHECK(!taken[place[i]], "define_tensor got duplicated stride_order entries: ", order,
                   " stands more than once. Give a permutation of 0 to ", size - 1, ".");
    taken[place[i]] = true;
  }
  for (size_t i = 0; i < n; ++i) {
    MESHFUSE_CHECK(shape_[i] >= -1, "The value ", shape_[i], " at index ", i,
                   " was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1).");
  }
  TensorView* tv = f.newTensor(dtype_);
  TensorDomain& domain = tv->domain();
  AxisList logical, memory(n);
  for (size_t i = 0; i < n; ++i) {
    const bool flagged =
        (contiguity_ && !(*contiguity_)[place[i]]) || (!expanded_.empty() && expanded_[i]);
    const Scalar extent = shape_[i] < 0 ? pool.extentSymbol(tv->id(), static_cast<int32_t>(i))
                                        : pool.constant(shape_[i]);
    const bool expanded = flagged && shape_[i] != 1;
    const bool broadcast = shape_[i] == 1 || expanded;
    MESHFUSE_CHECK(!contiguity_ || !broadcast || !(*contiguity_)[place[i]],
                   "define_tensor: the contiguity flag of axis ", AtAxis{static_cast<int64_t>(i)},
                   " (size 1, a broadcast) must be None. Use None for broadcast axes.");
    logical.push_back(domain.newId(f, tv, expanded ? pool.constant(1) : extent,
                                   broadcast ? IterType::Broadcast : IterType::Iteration,
                                   expanded ? extent : Scalar{}));
    memory[place[i]] = logical.back();
  }
  domain.setLogical(logical);
  Contiguity flags =
      contiguity_ ? *contiguity_ : domain.uniformContiguity(memory, uniform_.value_or(false));
  if (memory != logical) {
    domain.setAllocation(std::move(memory), std::move(flags));
  } else {
    domain.setContiguity(std::move(flags));
  }
  return tv;
}

TensorView* makeContigTensor(size_t ndims, DataType dtype) {
  return TensorViewBuilder().ndims(ndims).dtype(dtype).contiguity(true).build();
}
TensorView* makeSymbolicTensor(size_t ndims, DataType dtype) {
  return TensorViewBuilder().ndims(ndims).dtype(dtype).build();
}
TensorView* makeSymbolicTensor(const std::vector<int64_t>& shape, DataType dtype) {
  return makeConcreteTensor(shape, dtype);
}
TensorView* makeConcreteTensor(const std::vector<int64_t>& shape, DataType dtype) {
  return TensorViewBuilder().shape(shape).dtype(dtype).build();
}
TensorView* makeContigConcreteTensor(const std::vector<int64_t>& shape, DataType dtype) {
  return TensorViewBuilder().shape(shape).dtype(dtype).contiguity(true).build();
}

}  // namespace meshfuse
