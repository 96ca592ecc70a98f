// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/exec/executor.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/parser.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <numeric>

#include "random_program.h"
#include "targets.h"

namespace meshfuse::fuzz {
namespace {

/// -3 to 3 in turn; sizes that are open are all the same.
at::Tensor values(const TensorView* tv, int64_t open, int64_t first) {
  std::vector<int64_t> shape;
  for (const IterDomain* id : tv->getLogicalDomain()) {
    shape.push_back(tv->fusion()->scalars().constInt(id->getMaybeExpandedExtent()).value_or(open));
  }
  const int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::arange(first, first + n, at::kDouble).remainder(7).sub(3).reshape(shape);
}

using Tensors = std::vector<at::Tensor>;

/// The results of the program as it is written, without a mesh; nothing when it refuses the inputs.
std::optional<Tensors> runAlone(const std::shared_ptr<Fusion>& fusion, const Tensors& inputs) {
  try {
    FusionExecutorCache cache(fusion);
    return cache.run({inputs.begin(), inputs.end()});
  } catch (const Error&) {
  } catch (const UnsupportedError&) {
  }
  return std::nullopt;
}

/// Whether no value on the way is so large that the order of additions shows in its last bits.
bool isExact(const std::shared_ptr<Fusion>& fusion, const Tensors& inputs) {
  for (TensorView& tv : fusion->tensors()) {
    if (!tv.isFusionOutput()) fusion->addOutput(&tv);
  }
  const auto all = runAlone(fusion, inputs);
  return all && std::ranges::all_of(*all, [](const at::Tensor& t) {
           return t.numel() == 0 || t.to(at::kDouble).abs().max().item<double>() < 0x1p48;
         });
}

/// The part of an input in the strides that the program declares for it.
at::Tensor part(const at::Tensor& whole, const TensorView* tv, int64_t device) {
  return tv->hasDeviceMesh() ? shardTensor(whole, tv, device) : whole;
}

/// The joined results on the simulated mesh; nothing when the library refuses the schedule.
std::optional<Tensors> runOnMesh(const std::shared_ptr<Fusion>& fusion, int64_t devices,
                                 const Tensors& inputs) {
  try {
    FusionExecutorCache cache(fusion);
    std::vector<std::vector<InputValue>> parts(static_cast<size_t>(devices));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto* tv = std::get<TensorView*>(fusion->inputs().at(i));
      for (int64_t d = 0; d < devices; ++d) {
        parts[static_cast<size_t>(d)].emplace_back(part(inputs[i], tv, d));
      }
    }
    const auto mesh = makeSimulatedCommunicator(devices);
    const auto results = cache.runAll(parts, *mesh);
    const auto compiled = cache.compiledFusion();
    std::vector<int64_t> numbers(static_cast<size_t>(devices));
    std::iota(numbers.begin(), numbers.end(), 0);
    Tensors joined;
    for (size_t k = 0; k < compiled->outputs().size(); ++k) {
      const auto* tv = std::get<TensorView*>(compiled->outputs()[k].value);
      Tensors of_output;
      for (const auto& of_device : results) of_output.push_back(of_device.at(k));
      joined.push_back(tv->hasDeviceMesh() ? unshardTensor(of_output, numbers, tv) : of_output[0]);
    }
    return joined;
  } catch (const Error&) {
  } catch (const UnsupportedError&) {
  }
  return std::nullopt;
}

}  // namespace

void scheduleProgram(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  const int64_t open = choices.range(1, 6);
  const std::shared_ptr<Fusion> fusion = randomProgram(choices);
  const std::string alone = irText(*fusion);
  const int64_t devices = randomSchedule(*fusion, choices);

  const std::string text = irText(*fusion);
  Tensors inputs;
  for (const Val& input : fusion->inputs()) {
    inputs.push_back(
        values(std::get<TensorView*>(input), open, static_cast<int64_t>(inputs.size())));
  }
  std::optional<Tensors> want, found;
  try {
    const auto again = parseIr(text, {.file = {}, .uneven = fusion->uneven});
    MESHFUSE_ASSERT(irText(*again) == text, "The text is read as another program.");
    want = runAlone(parseIr(alone), inputs);
    found = runOnMesh(fusion, devices, inputs);
  } catch (const std::exception& error) {
    MESHFUSE_ASSERT(false, error.what(), " On ", devices, " devices (open sizes: ", open, "):\n",
                    text);
  }
  if (!want || !found) return;
  for (size_t k = 0; k < want->size(); ++k) {
    const bool same = at::equal((*want)[k], (*found)[k]);
    MESHFUSE_ASSERT(same || !isExact(parseIr(alone), inputs), "output ", k, " on ", devices,
                    " devices differs from that of the program alone (open sizes: ", open, "):\n",
                    text, "\n", (*found)[k], "\ninstead of\n", (*want)[k]);
  }
}

}  // namespace meshfuse::fuzz
