// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/schedule/replay.h>

#include <algorithm>

namespace meshfuse {
namespace {

const Transform* splitOf(const TensorDomain& domain, int32_t id) {
  const auto it = std::ranges::find_if(domain.transforms(), [&](const Transform& t) {
    return t.in[0] == id || (t.kind == Transform::Merge && t.in[1] == id);
  });
  return it == domain.transforms().end() ? nullptr : &*it;
}

bool fits(const TensorDomain& domain, int32_t id, std::span<const PathStep> path) {
  for (const PathStep& step : path) {
    const Transform* t = splitOf(domain, id);
    if (t == nullptr) return std::ranges::find(domain.loop(), id) != domain.loop().end();
    if (t->kind != Transform::Split || t->inner != step.inner_split ||
        !(t->factor == step.factor)) {
      return false;
    }
    id = t->out[step.outer_half ? 0 : 1];
  }
  return std::ranges::find(domain.loop(), id) != domain.loop().end() &&
         !domain.id(id)->isParallelized() && !domain.id(id)->isSwizzled();
}

}  // namespace

bool replayPath(TensorView* tv, int32_t id, std::span<const PathStep> path, ParallelType p) {
  TensorDomain& domain = tv->domain();
  if (!fits(domain, id, path)) return false;
  for (const PathStep& step : path) {
    if (const Transform* t = splitOf(domain, id)) {
      id = t->out[step.outer_half ? 0 : 1];
      continue;
    }
    const auto [outer, inner] = domain.split(*tv->fusion(), id, step.factor, step.inner_split);
    AxisList loop = domain.loop();
    const auto place = std::ranges::find(loop, id);
    *place = outer;
    loop.insert(place + 1, inner);
    domain.setLoop(std::move(loop));
    id = step.outer_half ? outer : inner;
  }
  domain.parallelize(id, p);
  return true;
}

}  // namespace meshfuse
