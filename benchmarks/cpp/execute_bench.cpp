// SPDX-License-Identifier: BSD-3-Clause
// Time of a call, per step, beside that of the same ATen calls: products of 8x8 matrices in a row,
// each divided by columns over a mesh of 1.
#include <benchmark/benchmark.h>
#include <meshfuse/exec/executor.h>
#include <meshfuse/ops/arith.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>

namespace meshfuse::bench {
namespace {

constexpr int64_t kProducts = 32, kSize = 8;

std::vector<at::Tensor> operands() {
  std::vector<at::Tensor> result;
  for (int64_t i = 0; i <= kProducts; ++i) result.push_back(at::rand({kSize, kSize}).div(4));
  return result;
}

std::shared_ptr<Fusion> products() {
  auto fusion = std::make_shared<Fusion>();
  const FusionGuard guard(fusion.get());
  const DeviceMesh mesh({0});
  const auto input = [&](bool divided) {
    TensorView* tv = makeContigConcreteTensor({kSize, kSize});
    fusion->addInput(tv);
    tv->setDeviceMesh(mesh);
    if (divided) {
      tv->split(1, 1, false);
      tv->axis(1)->parallelize(ParallelType::DIDx);
    }
    return tv;
  };
  TensorView* y = input(false);
  for (int64_t i = 0; i < kProducts; ++i) y = matmul(y, input(true));
  fusion->addOutput(y);
  return fusion;
}

void plan(benchmark::State& state) {
  FusionExecutorCache cache(products());
  std::vector<InputValue> inputs;
  for (at::Tensor& t : operands()) inputs.emplace_back(std::move(t));
  for (auto _ : state) {
    for (at::Tensor& t : cache.run(inputs)) benchmark::DoNotOptimize(t);
  }
  state.SetItemsProcessed(state.iterations() * kProducts);
}

/// As a program by hand would call it: without autograd.
void aten(benchmark::State& state) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::vector<at::Tensor> given = operands();
  for (auto _ : state) {
    at::Tensor y = given[0];
    for (size_t i = 1; i < given.size(); ++i) y = at::matmul(y, given[i]);
    benchmark::DoNotOptimize(y);
  }
  state.SetItemsProcessed(state.iterations() * kProducts);
}

BENCHMARK(plan)->Name("execute/plan");
BENCHMARK(aten)->Name("execute/aten");

}  // namespace
}  // namespace meshfuse::bench
