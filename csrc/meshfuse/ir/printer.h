// SPDX-License-Identifier: BSD-3-Clause
// Texts of scalars, axes and types beyond the toString functions of fusion.h. The text form of a
// whole Fusion is in text/ir_text.h.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace meshfuse {

/// Names that a text uses in place of TensorView::name() and of the numbers of scalar symbols.
struct TextNames {
  std::vector<std::string> tensors;                  // by id of the tensor; empty: their own names
  std::unordered_map<int32_t, std::string> scalars;  // by handle of the symbol

  std::string of(const TensorView* tv) const {
    return tensors.empty() ? tv->name() : tensors[static_cast<size_t>(tv->id())];
  }
};

/// Shortest text that reads back as the same number, always with a point, an exponent or a name:
/// "2.5", "1e+30", "3.0", "-inf", "nan".
std::string doubleText(double value);

/// A string in double quotes; quotes, backslashes and ends of line escaped.
std::string quoted(std::string_view text);

/// A scalar in the text form: "8", "a.0", "ceilDiv(a.0, 2)". Integer constants of a type other than
/// `plain_int` carry theirs: "8:i64".
std::string scalarText(const Fusion& fusion, Scalar s, const TextNames& names,
                       DataType plain_int = DataType::Index);
/// The same with expressions in parentheses, as they stand in extents and arguments.
std::string scalarOperandText(const Fusion& fusion, Scalar s, const TextNames& names,
                              DataType plain_int = DataType::Index);

/// Type of a tensor in the text form (typeText of fusion.h) with other names.
std::string typeText(const TensorView* tv, const TextNames& names);
/// Element type and root axes alone: "f32[i0{4}, r1{8}]".
std::string rootText(const TensorView* tv, const TextNames& names);
/// Order of the loop axes when the schedule only split and merged: the halves of a split stand
/// where the split axis stood, a merged axis where the first of its operands in this order stood.
AxisList defaultLoop(const TensorDomain& domain);

/// An extent as toString(TensorView*) prints it: "8", "i0", "( ceilDiv(i0, 2) )".
std::string extentText(const Fusion& fusion, Scalar s);
/// Loop axes as toString(TensorView*) prints them: "[iS0{8}, rS1{i0}]".
std::string domainText(const TensorView* tv);

}  // namespace meshfuse
