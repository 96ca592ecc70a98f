// SPDX-License-Identifier: BSD-3-Clause
// What the passes make of a program, as facts: how every tensor is divided and why, and every
// communication with its cause and cost. Needs no devices and no tensors.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshfuse {

/// A size that the program leaves open: of an input by its name ("T0": the global sizes of all its
/// axes), or of a symbol by its name in the text form ("T0.1") or in printed axes ("i0"): one
/// number.
struct KnownSize {
  std::string name;
  std::vector<int64_t> sizes;
  bool is_shape = false;
};

/// How a tensor is divided over one mesh axis.
struct AxisSharding {
  ParallelType mesh_axis = ParallelType::DIDx;
  int64_t axis = -1;     // tensor axis (reductions not counted); -1: whole
  bool partial = false;  // each device holds a part of a sum; then axis is -1
  std::string from;      // tensor whose split was repeated; empty: annotated, or none
  std::string factor;    // along which loop of the operation between them
};

struct TensorFacts {
  std::string name;
  std::string mesh;  // empty: none
  bool declared = false;
  std::string line;                    // "file:line" of the annotation, if declared and known
  std::string made_at;                 // "file:line" of the call that made it, if known
  std::string mesh_from;               // tensor whose mesh was taken over
  std::vector<AxisSharding> sharding;  // the mesh axes that it is divided over, x first
};

struct CommunicationFacts {
  std::string kind;    // "all-reduce"
  std::string tensor;  // result of the user's operation that needs it
  std::string op;      // that operation
  ParallelType mesh_axis = ParallelType::DIDx;
  std::string mesh_axis_name;               // the user's name of the mesh axis, if any
  std::vector<std::vector<int64_t>> teams;  // devices that communicate with each other
  AxisSharding before, after;               // of the tensor that is sent
  std::string sent;                         // its name in the compiled program
  int64_t bytes = 0;  // that one device sends (docs/concepts/explain.md has the formulas)
  std::string reason;
  std::vector<std::string> lines;  // "file:line": annotations, then the operation
};

struct ExplanationFacts {
  std::vector<TensorFacts> tensors;                // the user's, then those that the passes made
  std::vector<CommunicationFacts> communications;  // in order of execution
};

/// Runs the passes on a copy of `fusion`. Throws Error when a name in `sizes` is unknown or sizes
/// contradict each other, when the bytes of a communication depend on a size that is not given, and
/// where the passes do.
ExplanationFacts explain(const Fusion& fusion, std::span<const KnownSize> sizes = {});

}  // namespace meshfuse
