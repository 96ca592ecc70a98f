// SPDX-License-Identifier: BSD-3-Clause
// A tensor of a Fusion: its element type, axes, device mesh, and place in the graph. Scheduling
// methods act on the loop domain (semantics 1.4) and are implemented in schedule/.
#pragma once
#include <meshfuse/base/error.h>
#include <meshfuse/ir/device_mesh.h>
#include <meshfuse/ir/tensor_domain.h>

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace meshfuse {

class Expr;
class Fusion;
class TensorView;
using ExprList = SmallVector<Expr*, 2>;
using TensorViews = SmallVector<TensorView*, 2>;

/// Line of the user's program; file is an index into Fusion::files().
struct SourceLoc {
  int32_t file = -1;
  int32_t line = 0;
};

/// Where a tensor without annotation has its sharding from: the tensor whose split was repeated,
/// and the factor (loop) of the operation between them along which it was.
struct ShardingOrigin {
  static constexpr int32_t kMemory = -2;

  int32_t tensor = -1;  // -1: annotated by the user, or none
  int32_t expr = -1;    // id of the operation
  int32_t factor = -1;  // -1: only the mesh was taken over; kMemory: it shares the tensor's memory
};

class TensorView {
 public:
  TensorView(Fusion* fusion, int32_t id, DataType dtype)
      : fusion_(fusion), id_(id), dtype_(dtype) {}
  TensorView(const TensorView&) = delete;
  TensorView& operator=(const TensorView&) = delete;

  int32_t id() const { return id_; }
  /// "T3", or the name given by IR text.
  std::string name() const { return name_ ? *name_ : "T" + std::to_string(id_); }
  void setName(std::string name) { name_ = std::make_shared<const std::string>(std::move(name)); }
  DataType dtype() const { return dtype_; }
  Fusion* fusion() const { return fusion_; }
  TensorDomain& domain() { return domain_; }
  const TensorDomain& domain() const { return domain_; }

  /// Number of loop axes, reductions counted.
  int64_t nDims() const { return static_cast<int64_t>(domain_.loop().size()); }
  /// Number of axes of the torch tensor: logical axes that are not reductions.
  int64_t ndim() const;
  /// Loop axis `i`; negative counts from the end. Throws Error when out of range.
  IterDomain* axis(int64_t i) const;
  IdList getRootDomain() const;  // empty when equal to logical
  IdList getMaybeRootDomain() const { return domain_.idsOf(domain_.root()); }
  IdList getLogicalDomain() const { return domain_.idsOf(domain_.logical()); }
  IdList getAllocationDomain() const;  // empty when not set
  IdList getMaybeAllocationDomain() const { return domain_.idsOf(domain_.allocation()); }
  IdList getLoopDomain() const { return domain_.idsOf(domain_.loop()); }
  const Contiguity& getContiguity() const { return domain_.contiguity(); }
  bool hasAllocation() const { return domain_.hasAllocation(); }
  bool hasRoot() const { return domain_.hasRoot(); }
  bool hasReduction() const;

  // ---- scheduling (schedule/transforms.cpp, schedule/rfactor.cpp); all return the tensor itself.
  /// Axis E -> [ceilDiv(E, factor), factor], or [factor, ceilDiv(E, factor)] when not inner_split.
  TensorView* split(int64_t axis, int64_t factor, bool inner_split = true);
  TensorView* split(int64_t axis, Scalar factor, bool inner_split = true);
  TensorView* outerSplit(int64_t axis, int64_t factor) { return split(axis, factor, false); }
  TensorView* innerSplit(int64_t axis, int64_t factor) { return split(axis, factor, true); }
  TensorView* merge(int64_t outer, int64_t inner);
  TensorView* merge(int64_t axis) { return merge(axis, axis == -1 ? nDims() : axis + 1); }
  TensorView* reorder(const std::unordered_map<int64_t, int64_t>& old2new);
  TensorView* reorder(const std::vector<int64_t>& permutation);  // permutation[old] = new
  TensorView* parallelize(int64_t axis, ParallelType p);
  /// Splits a reduction in two steps; returns the new producer (semantics 1.5).
  TensorView* rfactor(const std::vector<int64_t>& axes);
  void setDeviceMesh(const DeviceMesh& mesh);
  void setLoopDomain(const std::vector<IterDomain*>& ids);
  void setAllocationDomain(const std::vector<IterDomain*>& ids, bool contiguity);
  void setAllocationDomain(const std::vector<IterDomain*>& ids, const Contiguity& contiguity);
  /// allocation = loop, all contiguous; an explicit memory order is kept in place (semantics 2.4).
  void setAllocationAsLoop();
  /// Memory order over the non-reduction logical axes: order[i] is the place of axis i, 0
  /// innermost. `what` names the caller in messages.
  void setStrideOrder(std::span<const int64_t> order, std::string_view what);
  void setContiguity(bool flag);
  void setContiguity(const Contiguity& contiguity);

  bool hasDeviceMesh() const { return mesh_ != nullptr; }
  const DeviceMesh& getDeviceMesh() const;  // an empty mesh when none is set
  /// True when the user set the mesh, so that propagation must not change the sharding.
  bool meshIsDeclared() const { return mesh_declared_; }
  void setDeclared(bool declared) { mesh_declared_ = declared; }

  Expr* definition() const { return definition_; }
  const ExprList& uses() const { return uses_; }
  bool isFusionInput() const { return input_; }
  bool isFusionOutput() const { return output_; }
  /// A 0-d tensor that stays on the CPU and mixes with tensors of any device.
  bool isCpuScalar() const { return cpu_scalar_; }
  void setCpuScalar(bool flag) { cpu_scalar_ = flag; }
  SourceLoc loc() const { return loc_; }
  void setLoc(SourceLoc loc) { loc_ = loc; }
  /// Where propagation took the mesh from.
  ShardingOrigin meshOrigin() const { return origins_ ? origins_->back() : ShardingOrigin{}; }
  void setMeshOrigin(ShardingOrigin origin) { origins().back() = origin; }
  /// Where propagation took the split over mesh axis `p` from.
  ShardingOrigin splitOrigin(ParallelType p) const {
    return origins_ ? (*origins_)[static_cast<size_t>(meshAxisOffset(p))] : ShardingOrigin{};
  }
  void setSplitOrigin(ParallelType p, ShardingOrigin origin) {
    origins()[static_cast<size_t>(meshAxisOffset(p))] = origin;
  }
  /// Where the mesh and the parallel axes were annotated.
  SourceLoc annotationLoc() const { return annotation_loc_; }

 private:
  friend class Fusion;
  /// Of the splits, x first, then of the mesh.
  using Origins = std::array<ShardingOrigin, kDeviceTypes.size() + 1>;
  int64_t wrapAxis(int64_t axis, const char* what) const;
  Origins& origins() {
    if (!origins_) origins_ = std::make_unique<Origins>();
    return *origins_;
  }

  Fusion* fusion_;
  int32_t id_;
  DataType dtype_;
  bool input_ = false, output_ = false, cpu_scalar_ = false, mesh_declared_ = false;
  TensorDomain domain_;
  const DeviceMesh* mesh_ = nullptr;
  Expr* definition_ = nullptr;
  ExprList uses_;
  std::shared_ptr<const std::string> name_;  // absent: that of its id
  SourceLoc loc_, annotation_loc_;
  std::unique_ptr<Origins> origins_;  // absent: none
};

/// Name of a tensor for a message; recorded in the exception.
inline AtTensor at(const TensorView* tv) { return {tv->name()}; }

}  // namespace meshfuse
