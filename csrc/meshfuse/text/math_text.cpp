// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ir/printer.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/math_text.h>

#include <array>

namespace meshfuse {
namespace {

struct SignRow {
  std::string_view op, sign;
};
constexpr std::array<SignRow, 17> kInfix = {{
    {"add", "+"},
    {"sub", "-"},
    {"mul", "*"},
    {"div", "/"},
    {"mod", "%"},
    {"eq", "=="},
    {"ne", "!="},
    {"lt", "<"},
    {"le", "<="},
    {"gt", ">"},
    {"ge", ">="},
    {"logical_and", "&&"},
    {"logical_or", "||"},
    {"bitwise_and", "&"},
    {"bitwise_or", "|"},
    {"bitwise_left_shift", "<<"},
    {"bitwise_right_shift", ">>"},
}};
constexpr std::array<SignRow, 3> kPrefix = {
    {{"neg", "-"}, {"logical_not", "!"}, {"bitwise_not", "~"}}};

template <size_t N>
std::string_view signOf(const std::array<SignRow, N>& rows, std::string_view op) {
  for (const SignRow& row : rows) {
    if (row.op == op) return row.sign;
  }
  return "";
}

std::string valText(const Fusion& fusion, const Val& value) {
  if (const auto* tv = std::get_if<TensorView*>(&value)) return toString(*tv);
  return extentText(fusion, std::get<Scalar>(value));
}

/// Operands as long texts, one each; then the attributes that differ from their default.
std::vector<std::string> operands(const Fusion& fusion, const Expr& expr) {
  std::vector<std::string> texts;
  for (const Arg& arg : expr.args()) {
    if (const auto* tv = std::get_if<TensorView*>(&arg)) texts.push_back(toString(*tv));
    if (const auto* s = std::get_if<Scalar>(&arg)) texts.push_back(extentText(fusion, *s));
    if (const auto* list = std::get_if<std::vector<TensorView*>>(&arg)) {
      for (const TensorView* tv : *list) texts.push_back(toString(tv));
    }
  }
  return texts;
}

std::string join(const std::vector<std::string>& texts, const std::string& separator) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : separator) + text;
  return out;
}

std::string assignment(const Fusion& fusion, const Expr& expr, const TextNames& names) {
  std::string text;
  for (const TensorView* out : expr.outputs()) text += (text.empty() ? "" : ",\n") + toString(out);
  const std::string& op = expr.op().name();
  std::vector<std::string> parts = operands(fusion, expr);
  const std::string_view infix = signOf(kInfix, op), prefix = signOf(kPrefix, op);
  if (!infix.empty() && parts.size() == 2) {
    return text + "\n   = " + parts[0] + "\n   " + std::string(infix) + " " + parts[1] + ";\n";
  }
  if (!prefix.empty() && parts.size() == 1) {
    return text + "\n   = " + std::string(prefix) + parts[0] + ";\n";
  }
  const std::vector<Param>& params = expr.op().cachedInfo().params;
  for (const std::string& arg : argumentTexts(expr, names)) {
    for (const Param& param : params) {
      const bool attribute = param.kind >= ParamKind::Int;
      if (attribute && arg.starts_with(param.name + "=")) parts.push_back(arg);
    }
  }
  text += "\n   = " + op + "(";
  if (expr.op().isPointwise()) return text + join(parts, "\n   , ") + ");\n";
  return text + join(parts, ",\n" + std::string(6 + op.size(), ' ')) + ")\n";
}

}  // namespace

std::string mathText(const Fusion& fusion, bool from_outputs_only) {
  std::string text = "Inputs:\n";
  for (const Val& in : fusion.inputs()) text += "  " + valText(fusion, in) + "\n";
  text += "Outputs:\n";
  for (const FusionOutput& out : fusion.outputs()) text += "  " + valText(fusion, out.value) + "\n";
  text += "\n%kernel_math {\n";
  const TextNames names = textNames(fusion);
  if (from_outputs_only) {
    for (const Expr* expr : fusion.exprs()) text += assignment(fusion, *expr, names);
  } else {
    for (const Expr& expr : fusion.allExprs()) {
      if (!expr.outputs().empty()) text += assignment(fusion, expr, names);
    }
  }
  return text + "} // %kernel_math \n\n";
}

}  // namespace meshfuse
