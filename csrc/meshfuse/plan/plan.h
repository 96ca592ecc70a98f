// SPDX-License-Identifier: BSD-3-Clause
// A compiled program: a flat list of steps over numbered slots, for one signature of inputs.
#pragma once
#include <meshfuse/comm/communicator.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/plan/agreement.h>
#include <meshfuse/plan/exchange.h>
#include <meshfuse/plan/signature.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshfuse {

using Slot = int32_t;

/// One device axis of a local tensor, as part of a tensor axis: whole, the axis has outer * devices
/// * inner elements, and this digit tells the devices apart. `whole` is smaller where the division
/// is uneven (then outer is 1): the last devices have fewer elements.
struct ShardDigit {
  int64_t axis = -1;
  int64_t outer = 1, inner = 1;
  int64_t whole = 1;
};

/// What a communication step does.
struct CommunicationStep {
  CommunicationInfo info;
  const DeviceMesh* from = nullptr;  // devices that have the operand
  const DeviceMesh* to = nullptr;    // devices that get the result
  /// Teams in which local devices are; where there is none, any of the others. With a root: one.
  std::shared_ptr<const std::vector<Team>> teams;  // shared by steps of one mesh axis
  int64_t devices = 1;                             // of one team
  ShardDigit in, out;         // AllGather: in; LocalSlice, ReduceScatter: out; AllToAll: both
  int64_t partial_axis = -1;  // reductions: the operand's axis of the partial results
  int64_t root = -1;          // Reduce: place in the first team
  std::vector<Piece> pieces;  // of an exchange

  /// Whether pieces go from device to device, rather than buffers through a collective of teams:
  /// between meshes, and from one digit of an axis to another.
  bool isExchange() const {
    if (info.kind == CommunicationKind::AllToAll && !info.between_meshes)
      return in.axis == out.axis;
    return info.between_meshes && info.kind != CommunicationKind::Broadcast &&
           info.kind != CommunicationKind::Reduce;
  }
  /// Whether devices of one mesh send one another something.
  bool isWithinMesh() const {
    return !info.between_meshes && info.kind != CommunicationKind::LocalSlice;
  }
  /// Whether one message or collective does all of it, so that it can be posted.
  bool mayPost() const { return isExchange() || isWithinMesh(); }
};

struct Step {
  const Expr* expr;  // what is run
  OpCall call;       // attributes, wanted layouts, values of constant scalars
  SmallVector<Slot, 2> in, out;
  SmallVector<Slot, 2> free_after;         // slots whose tensor is not read again
  SmallVector<size_t, 1> dynamic_scalars;  // parameters whose value depends on scalar inputs
  SmallVector<size_t, 1> drawn;            // parameters whose value is drawn at every execution
  const DeviceMesh* mesh = nullptr;        // devices outside it skip the step
  std::unique_ptr<const CommunicationStep> communication;  // absent: a local operation
  int32_t awaits = -1;      // the last of the posted communications whose result is first read here
  bool any_layout = false;  // only local operations read the results, in whatever memory order
  bool posted = false;      // a communication that need not end before the next step begins
  std::string text() const;  // for plan() and messages
};

struct PlanOutput {
  Slot slot = -1;
  Scalar scalar;             // a scalar output
  int32_t alias_input = -1;  // position among tensor inputs whose memory takes the result
  bool copy = false;         // shares memory with an input or another output otherwise
  Layout layout;
  DataType dtype = DataType::Float;
  const DeviceMesh* mesh = nullptr;
  std::vector<int64_t> outside_sizes;  // what a device outside the mesh returns
};

struct Plan {
  explicit Plan(std::shared_ptr<const Fusion> program)
      : fusion(std::move(program)), evaluator(*fusion) {}
  std::shared_ptr<const Fusion> fusion;  // after the passes; steps point into it
  ExpressionEvaluator evaluator;         // extents bound; scalar inputs are bound per run
  Signature signature;
  std::deque<Layout> layouts;  // that results of steps must have, each once
  std::vector<Step> steps;
  std::vector<Slot> inputs;  // per fusion input; -1 for scalars
  std::vector<PlanOutput> outputs;
  std::vector<int32_t> overwritten;  // positions of the inputs whose memory takes a result
  Slot num_slots = 0;
  bool has_dynamic_scalars = false;
  std::optional<PlanAgreement> agreement;  // with a single local device that communicates
  bool every_device_runs = true;           // no step or output is restricted to part of the devices
  std::string toString() const;
};

/// Who runs a plan.
struct PlanTarget {
  std::span<const int64_t> local_devices;
  int64_t device_count = 1;  // that the communicator has
  /// Whose inputs these are and whose sizes the plan is for, where those of several local devices
  /// differ (uneven programs); -1: those of all are equal.
  int64_t device = -1;
  const ProgramAgreement* agreement = nullptr;  // where each rank has a process of its own
  std::span<const int64_t> told;                // global sizes of agreement->told; -1: not known
};

/// Compiles `fusion` (after the passes) for these inputs. Throws Error; everything that can fail
/// for reasons of sizes fails here.
std::shared_ptr<const Plan> compile(std::shared_ptr<const Fusion> fusion,
                                    std::span<const InputValue> inputs, Signature signature,
                                    const PlanTarget& target);

/// Evaluator with the sizes of the inputs that the local devices hold. Throws Error when an input
/// is not what `fusion` declares, as compile() does.
ExpressionEvaluator bindInputs(std::shared_ptr<const Fusion> fusion,
                               std::span<const InputValue> inputs, const PlanTarget& target);

}  // namespace meshfuse
