// SPDX-License-Identifier: BSD-3-Clause
// Functions that insert copies of tensors and carry schedules over to other tensors. Each notes the
// caller's line first, for messages.
#include <meshfuse/ops/cache.h>
#include <meshfuse/schedule/swizzle.h>
#include <meshfuse/schedule/transform_like.h>

#include "bind.h"

namespace meshfuse::python {
namespace {

using Tv = std::shared_ptr<TensorView>;

TensorView* from(const Tv& tensor) {
  markCaller(*tensor->fusion());
  return tensor.get();
}

template <class T>
std::vector<T*> raw(const std::vector<std::shared_ptr<T>>& nodes) {
  std::vector<T*> result;
  result.reserve(nodes.size());
  for (const auto& node : nodes) result.push_back(node.get());
  return result;
}

Tv after(const Tv& tensor, bool propagate, const std::vector<std::shared_ptr<Expr>>& uses) {
  return share(fusionOf(*tensor), cacheAfter(from(tensor), propagate, raw(uses)));
}

Tv before(const Tv& tensor) { return share(fusionOf(*tensor), cacheBefore(from(tensor))); }

Tv fork(const Tv& tensor) { return share(fusionOf(*tensor), cacheFork(from(tensor))); }

void transform(const Tv& reference, const std::vector<Tv>& selected) {
  transformLike(from(reference), raw(selected));
}

void parallelize(const Tv& reference, int64_t pos, const std::vector<Tv>& selected,
                 const std::vector<ParallelType>& types) {
  parallelizeLike(from(reference), pos, raw(selected), types);
}

void backward(const Tv& tensor, int64_t pos, const std::vector<Tv>& to, bool parallel) {
  boundedTransformBackward(from(tensor), pos, raw(to), parallel);
}

Tv swizzle(const Tv& tensor, int64_t axis, ParallelType p) {
  swizzle1d(from(tensor), axis, p);
  return tensor;
}

}  // namespace

void bindPropagation(py::module_& module) {
  module.def("cache_after", &after, py::arg("tensor"), py::arg("propagate_allocation_domain"),
             py::arg("cached_uses"));
  module.def("cache_before", &before, py::arg("tensor"));
  module.def("cache_fork", &fork, py::arg("tensor"));
  module.def("swizzle1d", &swizzle, py::arg("tensor"), py::arg("x"), py::arg("parallel_type"));
  module.def("transform_like", &transform, py::arg("reference"), py::arg("selected_tensors"));
  module.def("parallelize_like", &parallelize, py::arg("reference"), py::arg("pos"),
             py::arg("selected_tensors"), py::arg("selected_parallel_types"));
  module.def("bounded_transform_backward", &backward, py::arg("from_tensor"), py::arg("pos"),
             py::arg("to"), py::arg("propagate_parallel_type"));
}

}  // namespace meshfuse::python
