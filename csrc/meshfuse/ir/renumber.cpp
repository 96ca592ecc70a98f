// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ir/tensor_domain.h>

namespace meshfuse {

void TensorDomain::renumber(std::span<const int32_t> to) {
  MESHFUSE_ASSERT(to.size() == ids_.size(), to.size(), " numbers for ", ids_.size(), " axes");
  const auto change = [&](int32_t& i) {
    if (i >= 0) i = to[static_cast<size_t>(i)];
  };
  const auto before = ids_;
  for (IterDomain* id : before) {
    change(id->index_);
    ids_[static_cast<size_t>(id->index_)] = id;
  }
  for (Transform& t : transforms_) {
    for (int32_t* axis : {&t.in[0], &t.in[1], &t.out[0], &t.out[1]}) change(*axis);
  }
  for (AxisList* list : {&root_, &logical_, &loop_, &allocation_}) {
    for (int32_t& i : *list) change(i);
  }
}

}  // namespace meshfuse
