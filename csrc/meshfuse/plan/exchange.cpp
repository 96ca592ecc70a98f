// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/plan/exchange.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace meshfuse {
namespace {

using Indices = std::vector<int64_t>;  // of one axis of the global tensor, in local order
using Box = std::vector<Indices>;      // per axis

/// What devices hold of a tensor.
class Holdings {
 public:
  Holdings(const TensorView* tv, std::span<const int64_t> shape, const ScalarLookup& lookup)
      : tv_(tv), domain_(tv->domain()), shape_(shape) {
    for (size_t t = domain_.definitionTransforms(); t < domain_.transforms().size(); ++t) {
      const Transform& x = domain_.transforms()[t];
      if (x.kind == Transform::Split) factors_[x.in[0]] = lookup(x.factor).value_or(0);
    }
  }

  Box of(int64_t device) const {
    Box box;
    const auto logical = domain_.withoutReductions(domain_.logical());
    for (size_t i = 0; i < logical.size(); ++i) {
      const IterDomain* axis = domain_.id(logical[i]);
      if (axis->isBroadcast() && !axis->expandedExtent()) {  // a mesh axis on it divides nothing
        box.push_back({0});
        continue;
      }
      box.push_back(indices(logical[i], shape_[i], device));
    }
    return box;
  }

 private:
  Indices indices(int32_t id, int64_t extent, int64_t device) const {
    const auto it = std::ranges::find_if(domain_.transforms(), [&](const Transform& t) {
      return t.in[0] == id || (t.kind == Transform::Merge && t.in[1] == id);
    });
    const bool definition = it == domain_.transforms().end() ||
                            it - domain_.transforms().begin() <
                                static_cast<std::ptrdiff_t>(domain_.definitionTransforms());
    if (definition) {
      const IterDomain* axis = domain_.id(id);
      if (!axis->isDeviceDim()) {
        Indices all(static_cast<size_t>(extent));
        std::iota(all.begin(), all.end(), 0);
        return all;
      }
      if (axis->isBroadcast() && extent == 1) return {0};
      return {tv_->getDeviceMesh().indexOn(device, axis->getParallelType()).value_or(0)};
    }
    if (it->kind == Transform::Merge) {
      // Merged axes that no device divides stay as they are.
      MESHFUSE_CHECK(
          !domain_.id(it->out[0])->isDeviceDim(), "an axis of ", at(tv_),
          " is divided over devices through a merged axis. Split one of the axes instead "
          "of the merged one.");
      Indices all(static_cast<size_t>(extent));
      std::iota(all.begin(), all.end(), 0);
      return all;
    }
    const int64_t factor = std::max<int64_t>(factors_.at(id), 1);
    const int64_t rest = (extent + factor - 1) / factor;
    const int64_t outer = it->inner ? rest : factor, inner = it->inner ? factor : rest;
    Indices all;
    const Indices inside = indices(it->out[1], inner, device);
    for (const int64_t o : indices(it->out[0], outer, device)) {
      for (const int64_t i : inside) {
        if (o * inner + i < extent) all.push_back(o * inner + i);  // uneven splits say more
      }
    }
    return all;
  }

  const TensorView* tv_;
  const TensorDomain& domain_;
  std::span<const int64_t> shape_;
  std::map<int32_t, int64_t> factors_;
};

AxisPart compact(Indices positions) {
  AxisPart part{.length = static_cast<int64_t>(positions.size()), .list = {}};
  if (positions.empty()) return part;
  part.start = positions[0];
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] == part.start + static_cast<int64_t>(i)) continue;
    part.list = std::move(positions);
    break;
  }
  return part;
}

/// The elements that are in both boxes; nullopt when there are none.
std::optional<Piece> common(const Box& held, const Box& wanted) {
  Piece piece{.from = -1, .to = -1, .source = {}, .target = {}};
  piece.fills_target = true;
  for (size_t axis = 0; axis < held.size(); ++axis) {
    std::map<int64_t, int64_t> place;
    for (size_t i = 0; i < held[axis].size(); ++i) place[held[axis][i]] = static_cast<int64_t>(i);
    Indices source, target;
    for (size_t i = 0; i < wanted[axis].size(); ++i) {
      const auto it = place.find(wanted[axis][i]);
      if (it == place.end()) continue;
      source.push_back(it->second);
      target.push_back(static_cast<int64_t>(i));
    }
    if (source.empty()) return std::nullopt;
    piece.fills_target = piece.fills_target && target.size() == wanted[axis].size();
    piece.source.push_back(compact(std::move(source)));
    piece.target.push_back(compact(std::move(target)));
  }
  return piece;
}

}  // namespace

std::vector<Piece> planExchange(const TensorView* in, const TensorView* out,
                                std::span<const int64_t> shape, const ScalarLookup& lookup) {
  if (std::ranges::find(shape, 0) != shape.end()) return {};
  const Holdings holdings(in, shape, lookup), wishes(out, shape, lookup);
  std::vector<std::pair<Box, std::vector<int64_t>>> classes;  // equal boxes: copies
  for (const int64_t device : in->getDeviceMesh().vector()) {
    Box box = holdings.of(device);
    const auto it = std::ranges::find(classes, box, [](const auto& c) { return c.first; });
    if (it == classes.end()) {
      classes.emplace_back(std::move(box), std::vector<int64_t>{device});
    } else {
      it->second.push_back(device);
    }
  }
  std::vector<Piece> pieces;
  const std::vector<int64_t>& receivers = out->getDeviceMesh().vector();
  for (size_t r = 0; r < receivers.size(); ++r) {
    const Box wanted = wishes.of(receivers[r]);
    for (const auto& [box, owners] : classes) {
      auto piece = common(box, wanted);
      if (!piece) continue;
      const bool own = std::ranges::find(owners, receivers[r]) != owners.end();
      piece->from = own ? receivers[r] : owners[r % owners.size()];
      piece->to = receivers[r];
      pieces.push_back(std::move(*piece));
    }
  }
  return pieces;
}

}  // namespace meshfuse
