// SPDX-License-Identifier: BSD-3-Clause
// Time and memory of compiling, per operation: definition, passes and plan of a sharded chain of
// different lengths, meshes and shares of annotated tensors.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/plan/plan.h>

#include <numeric>

#include "chain.h"

namespace meshfuse::bench {
namespace {

std::vector<int64_t> range(int64_t n) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

/// From definition to ready-to-run.
struct Compiled {
  std::unique_ptr<Fusion> defined;
  std::shared_ptr<const Fusion> passed;
  std::shared_ptr<const Plan> plan;
};

Compiled compileChain(const Chain& chain, const std::vector<InputValue>& inputs) {
  Compiled result;
  result.defined = chain.define();
  result.passed = runPipeline(*result.defined);
  const std::vector<int64_t> devices = range(chain.mesh.size());
  result.plan = compile(result.passed, inputs, Signature(inputs),
                        {.local_devices = devices,
                         .device_count = chain.mesh.size(),
                         .agreement = nullptr,
                         .told = {}});
  return result;
}

void compileBenchmark(benchmark::State& state, const Chain& chain) {
  std::vector<InputValue> inputs;
  for (at::Tensor& t : chain.inputs()) inputs.emplace_back(std::move(t));
  double bytes = 0;
  for (auto _ : state) {
    const auto before = mallinfo2();
    const Compiled compiled = compileChain(chain, inputs);
    const auto after = mallinfo2();
    bytes = static_cast<double>(after.uordblks + after.hblkhd) -
            static_cast<double>(before.uordblks + before.hblkhd);
    benchmark::DoNotOptimize(compiled.plan.get());
  }
  const auto ops = static_cast<double>(chain.ops);
  state.counters["per_op"] = benchmark::Counter(
      ops, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["bytes_per_op"] = bytes / ops;
}

const auto kMesh8 = DeviceMesh(range(8));

BENCHMARK_CAPTURE(compileBenchmark, ops_1000, Chain{1000, kMesh8})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compileBenchmark, ops_10000, Chain{10000, kMesh8})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compileBenchmark, ops_100000, Chain{100000, kMesh8})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(compileBenchmark, mesh_2, Chain{1000, DeviceMesh(range(2))})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compileBenchmark, mesh_64, Chain{1000, DeviceMesh(range(64))})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compileBenchmark, mesh_2x2x2, Chain{1000, DeviceMesh(range(8), {2, 2, 2})})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compileBenchmark, half_annotated, Chain{1000, kMesh8, 2})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace meshfuse::bench
