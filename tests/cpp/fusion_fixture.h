// SPDX-License-Identifier: BSD-3-Clause
// A program under test, and short texts of its axes.
#pragma once
#include <gtest/gtest.h>
#include <meshfuse/ops/arith.h>

#include <memory>
#include <string>
#include <vector>

namespace meshfuse {

inline constexpr ParallelType kX = ParallelType::DIDx;
inline constexpr ParallelType kY = ParallelType::DIDy;
inline constexpr ParallelType kZ = ParallelType::DIDz;

/// An open Fusion, current for the length of a test.
class FusionTest : public testing::Test {
 protected:
  /// Adds an input with contiguous symbolic, broadcast or constant axes, as define_tensor.
  TensorView* input(const std::vector<int64_t>& shape, DataType dtype = DataType::Float) {
    return addInput(makeContigConcreteTensor(shape, dtype));
  }
  TensorView* addInput(TensorView* tv) {
    fusion->addInput(tv);
    return tv;
  }
  TensorView* output(TensorView* tv) {
    fusion->addOutput(tv);
    return tv;
  }

  std::shared_ptr<Fusion> fusion = std::make_shared<Fusion>();
  FusionGuard guard{fusion.get()};
  const DeviceMesh two = DeviceMesh::createForNumDevices(2);
  const DeviceMesh square = DeviceMesh::createForShape({2, 2});  // y, x
};

/// "i4", "r8", "b1", "b1 exp 5"; "X2" for an axis on mesh_x, "rX2" and "bX1" for other kinds.
inline std::string shortText(const IterDomain* id) {
  const Fusion& fusion = *id->tensor()->fusion();
  std::string text;
  if (id->isReduction()) text = "r";
  if (id->isBroadcast()) text = "b";
  switch (id->getParallelType()) {
    case ParallelType::DIDx:
      text += "X";
      break;
    case ParallelType::DIDy:
      text += "Y";
      break;
    case ParallelType::DIDz:
      text += "Z";
      break;
    case ParallelType::Stream:
      text += "S";
      break;
    default:
      text += text.empty() ? "i" : "";
  }
  text += toString(fusion, id->extent());
  if (id->expandedExtent()) text += " exp " + toString(fusion, id->expandedExtent());
  return text;
}

/// "[i4, X2, i3, r8]"
inline std::string shortText(const std::vector<IterDomain*>& ids) {
  std::string text = "[";
  for (const IterDomain* id : ids) text += (text.size() > 1 ? ", " : "") + shortText(id);
  return text + "]";
}

inline std::string loopText(const TensorView* tv) { return shortText(tv->getLoopDomain()); }
inline std::string logicalText(const TensorView* tv) { return shortText(tv->getLogicalDomain()); }
inline std::string allocationText(const TensorView* tv) {
  return shortText(tv->getMaybeAllocationDomain());
}

}  // namespace meshfuse
