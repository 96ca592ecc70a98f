// SPDX-License-Identifier: BSD-3-Clause
#include "random_program.h"

#include <meshfuse/base/error.h>
#include <meshfuse/ops/arith.h>
#include <meshfuse/ops/cache.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/schedule/swizzle.h>
#include <meshfuse/schedule/transform_like.h>

#include <array>

namespace meshfuse::fuzz {
namespace {

constexpr std::array<int64_t, 9> kSizes = {1, 2, 3, 4, 6, 8, 5, 0, -1};
constexpr std::array<const char*, 26> kOps = {"matmul",       "add",
                                              "sum",          "relu",
                                              "mul",          "sub",
                                              "neg",          "set",
                                              "permute",      "reshape",
                                              "cat",          "slice",
                                              "max",          "min",
                                              "maximum",      "linear",
                                              "pad",          "squeeze",
                                              "where",        "cumsum",
                                              "select",       "broadcast",
                                              "expand",       "ge",
                                              "stride_order", "broadcast_in_dim"};

std::vector<int64_t> smallInts(Choices& choices, size_t count, int64_t low, int64_t high) {
  std::vector<int64_t> list(count);
  for (int64_t& n : list) n = choices.range(low, high);
  return list;
}

/// Numbers of axes, mostly each once.
std::vector<int64_t> axes(Choices& choices, const TensorView* tv) {
  const auto n = static_cast<size_t>(tv->ndim());
  const size_t kind = choices.below(4);
  if (kind == 0) return {choices.range(0, static_cast<int64_t>(n))};
  if (kind == 1) return smallInts(choices, choices.below(n + 1), -3, 3);
  std::vector<int64_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = static_cast<int64_t>(i);
  for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[choices.below(i)]);
  if (kind == 2 && n > 1) order.pop_back();
  return order;
}

/// Sizes, among them those of a tensor's own axes and products of these.
std::vector<Scalar> sizes(Fusion& fusion, Choices& choices, const TensorView* tv) {
  std::vector<Scalar> list;
  for (const IterDomain* id : tv->getLogicalDomain()) {
    if (id->isReduction()) continue;
    const Scalar extent = id->getMaybeExpandedExtent();
    switch (choices.below(5)) {
      case 0:
        list.push_back(extent);
        break;
      case 1:
        if (list.empty())
          list.push_back(extent);
        else
          list.back() = fusion.scalars().mul(list.back(), extent);
        break;
      case 2: {
        const int64_t factor = choices.range(1, 4);
        list.push_back(fusion.scalars().constant(factor));
        list.push_back(
            fusion.scalars().binary(ScalarOp::FloorDiv, extent, fusion.scalars().constant(factor)));
        break;
      }
      case 3:
        list.push_back(fusion.scalars().constant(choices.pick(kSizes)));
        break;
      default:
        list.push_back(extent);
        list.push_back(fusion.scalars().constant(int64_t{1}));
    }
  }
  return list;
}

Arg argument(Fusion& fusion, Choices& choices, const Param& param, const TensorView* first) {
  const auto tensor = [&] {
    auto& all = fusion.tensors();
    return &all[all.size() - 1 - choices.below(all.size())];
  };
  if (param.has_default && choices.below(3) != 0) return param.default_value;
  switch (param.kind) {
    case ParamKind::Tensor:
    case ParamKind::OptTensor:
    case ParamKind::TensorOrScalar:
      return tensor();
    case ParamKind::TensorList:
      return std::vector<TensorView*>{tensor(), tensor()};
    case ParamKind::Number:
      return fusion.scalars().constant(choices.range(-2, 3));
    case ParamKind::Int:
      return choices.range(-3, 3);
    case ParamKind::Bool:
      return choices.coin();
    case ParamKind::IntList:
      return axes(choices, first);
    case ParamKind::BoolList: {
      std::vector<bool> flags(static_cast<size_t>(first->ndim()) + choices.below(3));
      for (auto&& flag : flags) flag = choices.coin();
      return flags;
    }
    case ParamKind::ShapeList:
      return sizes(fusion, choices, first);
    case ParamKind::DType:
      return DataType::Double;
    case ParamKind::String:
      return std::string("none");
  }
  return {};
}

void addOperation(Fusion& fusion, Choices& choices) {
  const OpDef* op = findOp(choices.pick(kOps));
  std::vector<Arg> args;
  const TensorView* first = &fusion.tensors().back();
  for (const Param& param : op->cachedInfo().params) {
    args.push_back(argument(fusion, choices, param, first));
    if (const auto* tv = std::get_if<TensorView*>(&args.back()); tv != nullptr && args.size() == 1)
      first = *tv;
  }
  callOp(fusion, *op, std::move(args));
}

/// What the library refuses is no fault.
template <class F>
void attempt(F&& f) {
  try {
    f();
  } catch (const Error&) {
  } catch (const UnsupportedError&) {
  }
}

DeviceMesh randomMesh(Choices& choices) {
  switch (choices.below(6)) {
    case 0:
      return DeviceMesh::createForNumDevices(2);
    case 1:
      return DeviceMesh::createForNumDevices(4);
    case 2:
      return DeviceMesh::createForShape({2, 2});
    case 3:
      return DeviceMesh::createForNumDevices(3);
    case 4:
      return DeviceMesh({1, 0});
    default:
      return DeviceMesh::createForNumDevices(1);
  }
}

void scheduleOnce(TensorView* tv, const DeviceMesh& mesh, Choices& choices) {
  constexpr std::array<int64_t, 6> kFactors = {2, 1, 3, 4, 0, 5};
  constexpr std::array<ParallelType, 5> kTypes = {ParallelType::DIDx, ParallelType::DIDy,
                                                  ParallelType::Serial, ParallelType::DIDz,
                                                  ParallelType::Stream};
  const int64_t axis = choices.range(-1, 4);
  switch (choices.below(16)) {
    case 0:
    case 1:
    case 2: {  // what users do most: shard an axis
      const auto p = choices.coin() ? ParallelType::DIDx : ParallelType::DIDy;
      const int64_t place = mesh.rank() - 1 - meshAxisOffset(p);
      if (place < 0) return;
      tv->setDeviceMesh(mesh);
      const int64_t at = axis < 0 ? axis + tv->nDims() : axis;
      tv->split(at, mesh.shape()[static_cast<size_t>(place)], false);
      tv->parallelize(at, p);
      break;
    }
    case 3:
      tv->setDeviceMesh(mesh);
      break;
    case 4:
    case 5:
      tv->split(axis, choices.pick(kFactors), choices.coin());
      break;
    case 6:
      tv->merge(axis, choices.range(-1, 3));
      break;
    case 7:
      tv->parallelize(axis, choices.pick(kTypes));
      break;
    case 8:
      tv->setAllocationAsLoop();
      break;
    case 9:
      tv->reorder(std::unordered_map<int64_t, int64_t>{{axis, choices.range(-1, 3)}});
      break;
    case 10:
      tv->setStrideOrder(axes(choices, tv), "fuzz");
      break;
    case 11:
      tv->rfactor({axis});
      break;
    case 12:
      choices.coin() ? cacheAfter(tv) : cacheBefore(tv);
      break;
    case 13:
      swizzle1d(tv, axis, ParallelType::DIDx);
      break;
    case 14:
      transformLike(tv);
      break;
    default:
      parallelizeLike(tv);
  }
}

}  // namespace

std::shared_ptr<Fusion> randomProgram(Choices& choices) {
  auto fusion = std::make_shared<Fusion>();
  const FusionGuard guard(fusion.get());
  for (size_t i = choices.below(3) + 1; i > 0; --i) {
    std::vector<int64_t> shape(choices.below(4));
    for (int64_t& n : shape) n = choices.pick(kSizes);
    fusion->addInput(makeContigConcreteTensor(shape, DataType::Double));
  }
  for (size_t i = choices.below(6) + 1; i > 0; --i) {
    attempt([&] { addOperation(*fusion, choices); });
  }
  fusion->addOutput(&fusion->tensors().back());
  for (TensorView& tv : fusion->tensors()) {
    if (tv.isFusionOutput() || tv.definition() == nullptr) continue;
    if (choices.below(4) == 1) fusion->addOutput(&tv);
  }
  return fusion;
}

int64_t randomSchedule(Fusion& fusion, Choices& choices) {
  const FusionGuard guard(&fusion);
  const DeviceMesh mesh = randomMesh(choices);
  fusion.uneven = choices.below(4) == 1;
  fusion.strict = choices.below(8) == 1;
  for (int step = 0; step < 24 && !choices.empty(); ++step) {
    TensorView* tv = &fusion.tensors()[choices.below(fusion.tensors().size())];
    attempt([&] { scheduleOnce(tv, mesh, choices); });
  }
  return mesh.size();
}

}  // namespace meshfuse::fuzz
