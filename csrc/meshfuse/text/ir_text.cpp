// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ops/op_def.h>
#include <meshfuse/text/ir_text.h>

#include <algorithm>
#include <array>
#include <set>

namespace meshfuse {
namespace {

bool isName(const std::string& text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  constexpr std::array<std::string_view, 6> kReserved = {"return", "none", "true",
                                                         "false",  "inf",  "nan"};
  return !text.empty() && letter(text[0]) &&
         std::ranges::all_of(text, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); }) &&
         std::ranges::find(kReserved, text) == kReserved.end();
}

/// Tensors in the order in which the text defines them.
std::vector<const TensorView*> definedTensors(const Fusion& fusion,
                                              const std::vector<Expr*>& exprs) {
  std::vector<const TensorView*> list;
  for (const Val& in : fusion.inputs()) {
    if (const auto* tv = std::get_if<TensorView*>(&in)) list.push_back(*tv);
  }
  for (const Expr* expr : exprs) {
    list.insert(list.end(), expr->outputs().begin(), expr->outputs().end());
  }
  return list;
}

TextNames textNames(const Fusion& fusion, const std::vector<Expr*>& exprs) {
  TextNames names;
  std::set<std::string> taken;
  for (const Val& in : fusion.inputs()) {
    const auto* s = std::get_if<Scalar>(&in);
    if (s == nullptr || names.scalars.contains(s->id)) continue;
    names.scalars[s->id] = "s" + std::to_string(names.scalars.size());
    taken.insert(names.scalars[s->id]);
  }
  for (const TensorView& tv : fusion.tensors()) names.tensors.push_back(tv.name());
  for (const TensorView* tv : definedTensors(fusion, exprs)) {
    std::string name = tv->name();
    if (!isName(name)) name = "T" + std::to_string(tv->id());
    const std::string stem = name;
    for (int i = 1; !taken.insert(name).second; ++i) name = stem + "_" + std::to_string(i);
    names.tensors[static_cast<size_t>(tv->id())] = name;
  }
  return names;
}

/// Whether an argument is what the parameter has when nothing is written.
bool isDefault(const Param& param, const Arg& arg) {
  return param.has_default && arg == param.default_value;
}

class ArgPrinter {
 public:
  ArgPrinter(const Fusion& fusion, const TextNames& names) : fusion_(fusion), names_(names) {}

  std::string text(const Arg& arg) const {
    return std::visit([this](const auto& value) { return one(value); }, arg);
  }

 private:
  std::string one(std::monostate) const { return "none"; }
  std::string one(const TensorView* tv) const { return names_.of(tv); }
  std::string one(Scalar s) const { return scalarOperandText(fusion_, s, names_, DataType::Int); }
  std::string one(bool b) const { return b ? "true" : "false"; }
  std::string one(int64_t i) const { return std::to_string(i); }
  std::string one(double d) const { return doubleText(d); }
  std::string one(const std::string& s) const { return quoted(s); }
  std::string one(DataType t) const { return std::string(textName(t)); }
  template <class T>
  std::string one(const std::vector<T>& list) const {
    std::string text = "[";
    for (const T value : list) {
      if (text.size() > 1) text += ", ";
      if constexpr (std::is_same_v<T, Scalar>) {
        text += scalarOperandText(fusion_, value, names_, DataType::Index);
      } else {
        text += one(value);
      }
    }
    return text + "]";
  }

  const Fusion& fusion_;
  const TextNames& names_;
};

bool isOperand(ParamKind kind) {
  return kind == ParamKind::Tensor || kind == ParamKind::OptTensor ||
         kind == ParamKind::TensorOrScalar || kind == ParamKind::TensorList;
}

std::string callText(const Expr& expr, const TextNames& names) {
  std::string text;
  for (const TensorView* out : expr.outputs()) {
    text += (text.empty() ? "" : ", ") + names.of(out);
  }
  text += " = " + expr.op().name() + "(";
  bool first = true;
  for (const std::string& arg : argumentTexts(expr, names)) {
    text += (first ? "" : ", ") + arg;
    first = false;
  }
  return text + ")";
}

}  // namespace

TextNames textNames(const Fusion& fusion) { return textNames(fusion, fusion.exprs()); }

std::vector<std::string> argumentTexts(const Expr& expr, const TextNames& names) {
  const Fusion& fusion = *expr.outputs()[0]->fusion();
  const ArgPrinter printer(fusion, names);
  const std::vector<Param>& params = expr.op().cachedInfo().params;
  std::vector<std::string> texts;
  bool positional = true;  // operands go by place as long as none is left out
  for (size_t i = 0; i < params.size(); ++i) {
    const Arg& arg = expr.args()[i];
    positional = positional && isOperand(params[i].kind);
    if (isDefault(params[i], arg)) {
      positional = false;
      continue;
    }
    texts.push_back((positional ? "" : params[i].name + "=") + printer.text(arg));
  }
  return texts;
}

std::string toString(const Expr* expr) { return callText(*expr, TextNames()); }

std::string irText(const Fusion& fusion) {
  const std::vector<Expr*> exprs = fusion.exprs();
  const TextNames names = textNames(fusion, exprs);
  const auto nameOf = [&](const TensorView* tv) { return names.of(tv); };
  std::string text;
  for (const Val& in : fusion.inputs()) {
    if (const auto* tv = std::get_if<TensorView*>(&in)) {
      text += nameOf(*tv) + ": " + typeText(*tv, names) + "\n";
    } else {
      const Scalar s = std::get<Scalar>(in);
      const std::string_view type = textName(fusion.scalars().dtype(s));
      text += scalarText(fusion, s, names) + ": " + std::string(type) + "\n";
    }
  }
  for (const Expr* expr : exprs) {
    text += callText(*expr, names) + ": ";
    for (const TensorView* out : expr->outputs()) {
      text += (out == expr->outputs()[0] ? "" : "; ") + typeText(out, names);
    }
    text += '\n';
  }
  text += "return";
  bool first = true;
  for (const FusionOutput& out : fusion.outputs()) {
    text += first ? " " : ", ";
    first = false;
    if (const auto* tv = std::get_if<TensorView*>(&out.value)) {
      text += nameOf(*tv);
      if (out.alias != nullptr) text += " -> " + nameOf(out.alias);
    } else {
      text += scalarOperandText(fusion, std::get<Scalar>(out.value), names, DataType::Int);
    }
  }
  return text + "\n";
}

}  // namespace meshfuse
