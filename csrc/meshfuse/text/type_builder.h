// SPDX-License-Identifier: BSD-3-Clause
// From the text of a type to the domain and the mesh of a tensor.
#pragma once
#include <meshfuse/text/type_reader.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace meshfuse {

/// Throws Error unless the type that `op` inferred for `tv` agrees with the text in data type and
/// root axes.
void checkResultType(const TensorView* tv, const TypeText& text, const std::string& op);

/// Gives a tensor what a text says, in two steps: ops refuse operands that are scheduled already,
/// so the schedules wait until all operations are there. All faults are Errors with line and
/// column.
class TypeBuilder {
 public:
  TypeBuilder(TensorView* tv, TypeText text)
      : tv_(tv), fusion_(*tv->fusion()), domain_(tv->domain()), text_(std::move(text)) {}

  /// Root and logical axes. What an op chose beyond its root axes is replaced.
  void define();
  /// Splits, merges, loop and allocation, numbers of axes, and the mesh.
  void schedule();
  /// Where the type stands.
  int line() const { return text_.at.line; }

 private:
  void introduce(const AxisText& axis, int32_t index);
  int32_t find(const AxisRef& ref) const;
  AxisList findAll(const ItemText& item) const;
  void makeRoot();
  void makeLogical();
  void transform(const ItemText& item, bool definition);
  void result(const AxisText& written, int32_t index, bool definition);
  void scheduleItem(const ItemText& item);
  void finishLoop();
  void finishAllocation();
  void readFlags(Contiguity& flags) const;
  void checkCover(const ItemText& item, const AxisList& list) const;
  void renumber();
  void setMesh();

  TensorView* tv_;
  Fusion& fusion_;
  TensorDomain& domain_;
  TypeText text_;
  size_t next_item_ = 0;
  AxisList root_;
  std::unordered_map<int32_t, int32_t> index_;  // written number -> index
  const ItemText* loop_ = nullptr;
  const ItemText* allocation_ = nullptr;
};

}  // namespace meshfuse
