// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/exec/communicate.h>

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace meshfuse {
namespace {

std::vector<int64_t> withLeading(int64_t n, c10::IntArrayRef sizes) {
  std::vector<int64_t> out = {n};
  out.insert(out.end(), sizes.begin(), sizes.end());
  return out;
}

/// The axis of a whole tensor that holds `digit`, as three axes: outer, devices, inner.
at::Tensor parted(const at::Tensor& whole, const ShardDigit& digit, int64_t devices) {
  return whole.unflatten(digit.axis, {digit.outer, devices, digit.inner});
}

/// `parts` has the devices first and then a local tensor; gives the tensor whole along `digit`.
at::Tensor assembled(const at::Tensor& parts, const ShardDigit& digit) {
  const at::Tensor apart = parts.unflatten(digit.axis + 1, {digit.outer, digit.inner});
  return apart.movedim(0, digit.axis + 1).flatten(digit.axis, digit.axis + 2);
}

/// The pieces of a whole tensor, one per device, devices first and dense: [devices, local sizes].
at::Tensor pieces(const at::Tensor& whole, const ShardDigit& digit, int64_t devices) {
  const at::Tensor first = parted(whole, digit, devices).movedim(digit.axis + 1, 0);
  return first.flatten(digit.axis + 1, digit.axis + 2).contiguous();
}

class TeamRun {
 public:
  TeamRun(const CommunicationStep& step, Communicator& comm, Team team, std::vector<at::Tensor> in,
          std::vector<int64_t> places)
      : step_(step),
        comm_(comm),
        team_(std::move(team)),
        in_(std::move(in)),
        places_(std::move(places)) {}

  std::vector<at::Tensor> run() {
    switch (step_.info.kind) {
      case CommunicationKind::AllReduce:
        return allReduce();
      case CommunicationKind::ReduceScatter:
        return reduceScatter();
      case CommunicationKind::AllGather:
        return gather();
      case CommunicationKind::LocalSlice:
        return slices(in_);
      case CommunicationKind::AllToAll:
        break;
    }
    // Two digits of one axis: whole first, then the other cut.
    if (step_.in.axis == step_.out.axis) return slices(gather());
    return allToAll();
  }

 private:
  template <class F>
  std::vector<at::Tensor> each(const std::vector<at::Tensor>& list, F f) const {
    std::vector<at::Tensor> out;
    out.reserve(list.size());
    for (const at::Tensor& t : list) out.push_back(f(t));
    return out;
  }

  /// Partial results without the axis that counts them.
  at::Tensor partial(const at::Tensor& t) const { return t.squeeze(step_.partial_axis); }

  std::vector<at::Tensor> allReduce() {
    auto data = each(
        in_, [&](const at::Tensor& t) { return partial(t).clone(at::MemoryFormat::Contiguous); });
    comm_.allReduce(data, team_, step_.info.reduce);
    return data;
  }

  std::vector<at::Tensor> reduceScatter() {
    auto data = each(
        in_, [&](const at::Tensor& t) { return pieces(partial(t), step_.out, step_.devices); });
    auto out = each(data, [](const at::Tensor& t) {
      return at::empty(t.sizes().slice(1), t.options()).unsqueeze(0);
    });
    comm_.reduceScatter(out, data, team_, step_.info.reduce);
    return each(out, [](const at::Tensor& t) { return t.squeeze(0); });
  }

  std::vector<at::Tensor> gather() {
    auto data = each(in_, [](const at::Tensor& t) { return t.contiguous().unsqueeze(0); });
    auto out = each(in_, [&](const at::Tensor& t) {
      return at::empty(withLeading(step_.devices, t.sizes()), t.options());
    });
    comm_.allGather(out, data, team_);
    return each(out, [&](const at::Tensor& t) { return assembled(t, step_.in); });
  }

  std::vector<at::Tensor> slices(const std::vector<at::Tensor>& whole) const {
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < whole.size(); ++i) {
      const at::Tensor axes = parted(whole[i], step_.out, step_.devices);
      out.push_back(
          axes.select(step_.out.axis + 1, places_[i]).flatten(step_.out.axis, step_.out.axis + 1));
    }
    return out;
  }

  std::vector<at::Tensor> allToAll() {
    auto data = each(in_, [&](const at::Tensor& t) { return pieces(t, step_.out, step_.devices); });
    auto out = each(data, [](const at::Tensor& t) { return at::empty_like(t); });
    comm_.allToAll(out, data, team_);
    return each(out, [&](const at::Tensor& t) { return assembled(t, step_.in); });
  }

  const CommunicationStep& step_;
  Communicator& comm_;
  Team team_;
  std::vector<at::Tensor> in_;
  std::vector<int64_t> places_;  // place in the team of each operand
};

}  // namespace

std::vector<at::Tensor> communicate(const CommunicationStep& step, Communicator& comm,
                                    std::span<const int64_t> devices,
                                    std::span<const at::Tensor> in) {
  std::vector<at::Tensor> out(in.size());
  std::vector<bool> done(in.size(), false);
  for (size_t first = 0; first < in.size(); ++first) {
    if (done[first]) continue;
    Team team{step.mesh->getSlice(devices[first], step.info.mesh_axis)};
    std::vector<at::Tensor> operands;
    std::vector<int64_t> places;
    std::vector<size_t> where;
    for (size_t place = 0; place < team.devices.size(); ++place) {
      const auto it = std::ranges::find(devices, team.devices[place]);
      if (it == devices.end()) continue;
      where.push_back(static_cast<size_t>(it - devices.begin()));
      done[where.back()] = true;
      operands.push_back(in[where.back()]);
      places.push_back(static_cast<int64_t>(place));
    }
    const auto results =
        TeamRun(step, comm, std::move(team), std::move(operands), std::move(places)).run();
    for (size_t i = 0; i < where.size(); ++i) out[where[i]] = results[i];
  }
  return out;
}

}  // namespace meshfuse
