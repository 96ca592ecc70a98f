// SPDX-License-Identifier: BSD-3-Clause
// Names of a text and scalar expressions.
#pragma once
#include <meshfuse/ir/fusion.h>
#include <meshfuse/text/lexer.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace meshfuse {

/// What the text has named so far.
class NameTable {
 public:
  /// Throws Error when the name is taken or means something else in the text form.
  void declare(const Token& name, Val value);
  /// The value of that name, or nullptr.
  const Val* find(const std::string& name) const;
  /// The tensor of that name; throws Error when there is none.
  TensorView* tensor(const Token& name) const;

 private:
  std::unordered_map<std::string, Val> values_;
};

/// Reads scalars into a Fusion's pool.
class ScalarReader {
 public:
  ScalarReader(TokenReader& in, Fusion& fusion, const NameTable& names)
      : in_(in), fusion_(fusion), names_(names) {}

  /// A number, a symbol such as `a.0` or `s0`, or an expression in parentheses. An integer without
  /// a type of its own gets `plain_int`, inside parentheses Index.
  Scalar operand(DataType plain_int);
  /// An operand that can be the size of an axis, not less than `least` when constant.
  Scalar extent(int64_t least = 0);
  DataType dataType();
  /// Throws Error when a symbol `a.3` read since the last call names an axis that its tensor lacks.
  void checkSymbols();

 private:
  Scalar expression();
  Scalar call(const Token& function);
  Scalar symbol();
  Scalar literal(DataType plain_int);
  ScalarValue complexNumber();
  double real();

  TokenReader& in_;
  Fusion& fusion_;
  const NameTable& names_;
  struct Use {
    Token where;
    const TensorView* tensor;
    int64_t axis;
  };
  std::vector<Use> symbols_;
  int depth_ = 0;
};

}  // namespace meshfuse
