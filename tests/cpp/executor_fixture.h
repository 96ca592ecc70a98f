// SPDX-License-Identifier: BSD-3-Clause
// A program under test that is run.
#pragma once
#include <meshfuse/exec/executor.h>
#include <meshfuse/ops/op_def.h>

#include <string_view>
#include <vector>

#include "fusion_fixture.h"

namespace meshfuse {

/// Runs the program through one cache, made at the first use.
class ExecutorTest : public FusionTest {
 protected:
  FusionExecutorCache& cache() {
    if (!cache_) cache_.emplace(fusion);
    return *cache_;
  }
  at::Tensor run(std::vector<InputValue> inputs) {
    auto outputs = cache().run(std::move(inputs));
    EXPECT_EQ(outputs.size(), 1U);
    return outputs.at(0);
  }
  TensorView* call(std::string_view op, std::vector<Arg> args) {
    return std::get<TensorView*>(callOp(op, std::move(args)).at(0));
  }

 private:
  std::optional<FusionExecutorCache> cache_;
};

}  // namespace meshfuse
