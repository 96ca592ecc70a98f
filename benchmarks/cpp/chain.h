// SPDX-License-Identifier: BSD-3-Clause
// The program whose compilation is timed: pairs of a column-parallel and a row-parallel product,
// each with its bias, in a row.
#pragma once
#include <meshfuse/ops/arith.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ops/empty.h>

namespace meshfuse::bench {

/// A chain of `ops` operations (a multiple of 4) on `mesh`, whose axes all divide the inner size.
struct Chain {
  int64_t ops = 1000;
  DeviceMesh mesh;
  /// Of 4 groups of weights, this many are annotated; the mesh of the others is found out.
  int64_t annotated_of_4 = 4;

  int64_t outer() const { return 4; }
  int64_t inner() const { return 2 * static_cast<int64_t>(mesh.vector().size()); }

  std::unique_ptr<Fusion> define() const {
    auto fusion = std::make_unique<Fusion>();
    const FusionGuard guard(fusion.get());
    TensorView* y = input({2, outer()}, -1, true);
    for (int64_t i = 0; i < ops / 4; ++i) {
      const bool annotated = i % 4 < annotated_of_4;
      TensorView* up = input({outer(), inner()}, 1, annotated);
      TensorView* up_bias = input({inner()}, 0, annotated);
      TensorView* down = input({inner(), outer()}, 0, annotated);
      TensorView* down_bias = input({outer()}, -1, annotated);
      y = add(matmul(add(matmul(y, up), up_bias), down), down_bias);
    }
    fusion->addOutput(y);
    return fusion;
  }

  /// What every device is given; meta tensors have sizes and no memory.
  std::vector<at::Tensor> inputs() const {
    const auto devices = static_cast<int64_t>(mesh.vector().size());
    const at::TensorOptions meta = at::dtype(at::kFloat).device(at::kMeta);
    std::vector<at::Tensor> result{at::empty({2, outer()}, meta)};
    for (int64_t i = 0; i < ops / 4; ++i) {
      const int64_t own = i % 4 < annotated_of_4 ? inner() / devices : inner();
      result.push_back(at::empty({outer(), own}, meta));
      result.push_back(at::empty({own}, meta));
      result.push_back(at::empty({own, outer()}, meta));
      result.push_back(at::empty({outer()}, meta));
    }
    return result;
  }

 private:
  /// Divides `axis` over all axes of the mesh, the major one outermost; -1: over none.
  TensorView* input(const std::vector<int64_t>& shape, int64_t axis, bool annotated) const {
    TensorView* tv = makeContigConcreteTensor(shape);
    tv->fusion()->addInput(tv);
    if (!annotated) return tv;
    tv->setDeviceMesh(mesh);
    if (axis < 0) return tv;
    for (int64_t d = 0; d < mesh.rank(); ++d) {
      const auto type = static_cast<size_t>(mesh.rank() - 1 - d);
      tv->split(axis + d, mesh.size(kDeviceTypes[type]), false);
      tv->axis(axis + d)->parallelize(kDeviceTypes[type]);
    }
    return tv;
  }
};

}  // namespace meshfuse::bench
