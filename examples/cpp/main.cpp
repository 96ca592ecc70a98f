// SPDX-License-Identifier: BSD-3-Clause
// A matrix product whose weight has its columns divided over four devices, which this process
// simulates. Prints what every device holds; exits with 0 if the parts make up torch's product.
#include <meshfuse/exec/executor.h>
#include <meshfuse/ops/arith.h>
#include <meshfuse/text/ir_text.h>

#include <iostream>
#include <memory>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

using namespace meshfuse;

namespace {

constexpr int64_t kDevices = 4, kRows = 3, kInner = 8, kColumns = 12;

/// y = x @ w, with the columns of w on mesh_x (DIDx).
std::shared_ptr<Fusion> columnParallel(TensorView*& w) {
  auto fusion = std::make_shared<Fusion>();
  const FusionGuard guard(fusion.get());
  TensorView* x = makeContigConcreteTensor({kRows, kInner});
  w = makeContigConcreteTensor({kInner, kColumns});
  for (TensorView* tv : {x, w}) {
    fusion->addInput(tv);
    tv->setDeviceMesh(DeviceMesh::createForNumDevices(kDevices));
  }
  fusion->addOutput(matmul(x, w));
  w->split(1, kDevices, /*inner_split=*/false);
  w->axis(1)->parallelize(ParallelType::DIDx);
  return fusion;
}

}  // namespace

int main() {
  TensorView* w = nullptr;
  FusionExecutorCache cache(columnParallel(w));
  std::cout << irText(*cache.compiledFusion()) << '\n';

  const at::Tensor xs = at::randn({kRows, kInner}), ws = at::randn({kInner, kColumns});
  std::vector<std::vector<InputValue>> inputs;
  for (int64_t device = 0; device < kDevices; ++device) {
    inputs.push_back({xs, shardTensor(ws, w, device)});
  }
  const auto mesh = makeSimulatedCommunicator(kDevices);
  std::vector<at::Tensor> parts;
  for (const auto& outputs : cache.runAll(inputs, *mesh)) {
    std::cout << "device " << parts.size() << " holds " << outputs.at(0).sizes() << '\n';
    parts.push_back(outputs.at(0));
  }
  const bool right = at::allclose(at::cat(parts, 1), at::matmul(xs, ws), 1e-5, 1e-5);
  std::cout << (right ? "equal to" : "DIFFERENT FROM") << " torch's product\n";
  return right ? 0 : 1;
}
