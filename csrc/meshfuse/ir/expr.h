// SPDX-License-Identifier: BSD-3-Clause
// One operation of a Fusion: a registered op, its arguments, and the loops (factors) it stands for.
#pragma once
#include <meshfuse/base/scalar.h>
#include <meshfuse/ir/factor_map.h>
#include <meshfuse/ir/tensor_view.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace meshfuse {

struct OpDef;  // ops/op_def.h

/// An argument of an op, one per parameter. monostate = absent (an optional tensor, a "none").
using Arg = std::variant<std::monostate, TensorView*, Scalar, bool, int64_t, double, std::string,
                         std::vector<int64_t>, std::vector<bool>, std::vector<Scalar>, DataType,
                         std::vector<TensorView*>>;

/// Two extents that must agree; known only when sizes are bound.
struct Constraint {
  Scalar a, b;
  int32_t tensor_a = -1, axis_a = -1;  // where they come from, for the message
  int32_t tensor_b = -1, axis_b = -1;  // tensor_b is -1 where b is an argument of the call
};

/// Why a pass inserted an operation: the user's operation that it serves, and what disagrees.
struct Cause {
  std::string op;                // name of the user's op
  std::string tensor;            // its result
  std::string reason;            // a sentence that names the tensors that disagree
  std::vector<SourceLoc> lines;  // where they were annotated, then the operation itself
};

class Expr {
 public:
  Expr(int32_t id, const OpDef* op) : id_(id), op_(op) {}
  Expr(const Expr&) = delete;
  Expr& operator=(const Expr&) = delete;

  int32_t id() const { return id_; }
  const OpDef& op() const { return *op_; }
  /// Whether this is a call of the op kind T (tests and users may ask; passes may not).
  template <class T>
  bool is() const {
    return dynamic_cast<const T*>(op_) != nullptr;
  }
  const std::vector<Arg>& args() const { return args_; }
  /// Tensor arguments in order of the parameters.
  const TensorViews& inputs() const { return inputs_; }
  const TensorViews& outputs() const { return outputs_; }
  TensorView* input(size_t i) const { return inputs_.at(i); }
  TensorView* output(size_t i) const { return outputs_.at(i); }
  const FactorMap& factors() const { return *factors_; }
  const std::vector<Constraint>& constraints() const { return constraints_; }
  SourceLoc loc() const { return loc_; }
  /// Set on operations that a pass inserted because of a resharding.
  const std::shared_ptr<const Cause>& cause() const { return cause_; }
  void setCause(std::shared_ptr<const Cause> cause) { cause_ = std::move(cause); }

 private:
  friend class Fusion;
  int32_t id_;
  const OpDef* op_;
  std::vector<Arg> args_;
  TensorViews inputs_, outputs_;
  std::shared_ptr<const FactorMap> factors_;  // shared with operations alike, and with copies
  std::vector<Constraint> constraints_;
  SourceLoc loc_;
  std::shared_ptr<const Cause> cause_;
};

}  // namespace meshfuse
