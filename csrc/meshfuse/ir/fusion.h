// SPDX-License-Identifier: BSD-3-Clause
// A tensor program: owns all tensors, axes, scalars and operations, and the ordered inputs and
// outputs. Tensors and operations have stable addresses and dense ids.
#pragma once
#include <meshfuse/ir/expr.h>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace meshfuse {

/// A value of a program.
using Val = std::variant<TensorView*, Scalar>;

/// What Fusion::addOutput recorded: `alias` is the input whose memory takes the result, if any;
/// such an output is not returned to the caller.
struct FusionOutput {
  Val value;
  TensorView* alias = nullptr;
};

class Fusion : public std::enable_shared_from_this<Fusion> {
 public:
  Fusion() = default;
  Fusion(const Fusion&) = delete;
  Fusion& operator=(const Fusion&) = delete;

  ScalarPool& scalars() { return scalars_; }
  const ScalarPool& scalars() const { return scalars_; }

  /// A tensor without axes; fill its domain() next.
  TensorView* newTensor(DataType dtype);
  IterDomain* newIterDomain() {
    IterDomain& id = ids_.emplace_back();
    id.number_ = static_cast<int32_t>(ids_.size()) - 1;
    return &id;
  }
  Expr* newExpr(const OpDef* op, std::vector<Arg> args, TensorViews inputs, TensorViews outputs,
                FactorMap factors, std::vector<Constraint> constraints);
  /// Makes `outputs` the results of `expr` instead of its present ones.
  void replaceOutputs(Expr* expr, TensorViews outputs);
  /// Makes `expr` read `now` wherever it read `before`.
  void replaceInput(Expr* expr, TensorView* before, TensorView* now);

  void addInput(Val value);
  void addOutput(Val value);
  /// The result goes into the memory of `input`.
  void aliasOutputToInput(TensorView* output, TensorView* input);
  const std::vector<Val>& inputs() const { return inputs_; }
  const std::vector<FusionOutput>& outputs() const { return outputs_; }
  /// Puts `now` in place of `before` among the outputs.
  void replaceOutput(TensorView* before, TensorView* now);

  /// Operations that the outputs need, producers first, in order of creation where free.
  std::vector<Expr*> exprs() const;
  std::deque<Expr>& allExprs() { return exprs_; }
  const std::deque<Expr>& allExprs() const { return exprs_; }
  std::deque<TensorView>& tensors() { return tensors_; }
  const std::deque<TensorView>& tensors() const { return tensors_; }
  std::vector<TensorView*> allTvs();
  /// Tensors that are inputs or results of exprs() or outputs, in order of id.
  std::vector<TensorView*> usedTvs();
  TensorView* tensor(int32_t id) { return &tensors_[static_cast<size_t>(id)]; }
  const TensorView* tensor(int32_t id) const { return &tensors_[static_cast<size_t>(id)]; }

  const DeviceMesh* internMesh(const DeviceMesh& mesh);
  const std::deque<DeviceMesh>& meshes() const { return meshes_; }

  /// Changes with every modification; caches of plans depend on it.
  uint64_t version() const { return version_; }
  void bumpVersion() { ++version_; }
  /// A copy with the same ids of tensors, scalars and operations.
  std::unique_ptr<Fusion> clone() const;
  /// Same structure: inputs, outputs, operations and schedules, names and source lines aside.
  bool sameAs(const Fusion& other) const;

  std::vector<std::string>& files() { return files_; }
  const std::vector<std::string>& files() const { return files_; }
  int32_t internFile(const std::string& file);
  /// "file:line", or "" when unknown.
  std::string describe(SourceLoc loc) const;
  /// Line of the user's program that new tensors and operations get.
  SourceLoc current_loc;
  /// Communication that no `set` of the user asks for is an error.
  bool strict = false;
  /// Extents that the devices do not divide are cut unevenly (semantics 5.7) instead of refused.
  bool uneven = false;
  /// Floating type of partial results and of their sums across devices; Null: that of the result.
  DataType reduce_dtype = DataType::Null;

 private:
  void checkOwn(const TensorView* tv, const char* what) const;
  /// The map, or an equal one that an operation has already.
  std::shared_ptr<const FactorMap> internFactors(FactorMap factors);

  ScalarPool scalars_;
  std::deque<TensorView> tensors_;
  std::deque<IterDomain> ids_;
  std::deque<Expr> exprs_;
  std::vector<Val> inputs_;
  std::vector<FusionOutput> outputs_;
  std::deque<DeviceMesh> meshes_;
  std::unordered_multimap<size_t, std::shared_ptr<const FactorMap>> factor_maps_;  // by hash
  std::vector<std::string> files_;
  uint64_t version_ = 0;
};

/// Makes a Fusion the current one of this thread, until destroyed (a stack).
class FusionGuard {
 public:
  explicit FusionGuard(Fusion* fusion);
  ~FusionGuard();
  FusionGuard(const FusionGuard&) = delete;
  FusionGuard& operator=(const FusionGuard&) = delete;
  /// The current Fusion of this thread, or nullptr.
  static Fusion* getCurFusion();
};

/// Text of a scalar: "8", "T0.1", "ceilDiv(T0.1, 2)".
std::string toString(const Fusion& fusion, Scalar s);
/// "T1_g_float[iS0{8}, ideviceIdx.x1{2}] (DeviceMesh{0 1})" (python_api 9.1).
std::string toString(const TensorView* tv);
std::string toString(const IterDomain* id);
/// Type of a tensor as in the text form, without its name: "f32[i0{4}, i1{8}] mesh(x=2)".
std::string typeText(const TensorView* tv);

}  // namespace meshfuse
