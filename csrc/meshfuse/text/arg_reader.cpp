// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/text/arg_reader.h>

#include <algorithm>

namespace meshfuse {
namespace {

class ArgReader {
 public:
  ArgReader(TokenReader& in, ScalarReader& scalars, const NameTable& names, const OpDef& op)
      : in_(in), scalars_(scalars), names_(names), op_(op), params_(op.cachedInfo().params) {}

  std::vector<Arg> run() {
    std::vector<Arg> args(params_.size());
    given_.assign(params_.size(), false);
    in_.expect("(");
    for (bool first = true; !in_.isSymbol(")"); first = false) {
      if (!first) in_.expect(",");
      const size_t i = parameter();
      args[i] = value(params_[i]);
    }
    const Token end = in_.next();
    std::string missing;
    for (size_t i = 0; i < params_.size(); ++i) {
      if (given_[i]) continue;
      if (params_[i].has_default) {
        args[i] = params_[i].default_value;
      } else {
        missing += (missing.empty() ? "" : ", ") + params_[i].name;
      }
    }
    if (!missing.empty()) {
      TokenReader::fault(end, op_.name() + " lacks the arguments: " + missing + ". Give them");
    }
    return args;
  }

 private:
  bool isKeyword() const {
    return in_.is(TokenKind::Name) && in_.peek(1).kind == TokenKind::Symbol &&
           in_.peek(1).text == "=";
  }

  /// Parameter that the next argument is for.
  size_t parameter() {
    const Token where = in_.peek();
    size_t i = next_++;
    if (isKeyword()) {
      keywords_ = true;
      i = named(in_.next());
      in_.next();
    } else if (keywords_) {
      in_.expected("a keyword, since one stands before");
    } else if (i >= params_.size()) {
      TokenReader::fault(where, op_.name() + " takes " + std::to_string(params_.size()) +
                                    " arguments. Remove the rest");
    }
    if (given_[i]) {
      TokenReader::fault(where, "the argument " + params_[i].name + " of " + op_.name() +
                                    " is given twice. Give it once");
    }
    given_[i] = true;
    return i;
  }

  size_t named(const Token& key) const {
    std::string known;
    for (size_t i = 0; i < params_.size(); ++i) {
      const std::vector<std::string>& aliases = params_[i].aliases;
      if (params_[i].name == key.text || std::ranges::find(aliases, key.text) != aliases.end()) {
        return i;
      }
      known += (known.empty() ? "" : ", ") + params_[i].name;
    }
    TokenReader::fault(key,
                       op_.name() + " has no argument '" + key.text + "'. Use one of: " + known);
  }

  Arg value(const Param& param) {
    const bool optional = param.has_default && param.default_value == Arg{};
    if (optional && in_.acceptWord("none")) return {};
    switch (param.kind) {
      case ParamKind::Tensor:
      case ParamKind::OptTensor:
        return tensor();
      case ParamKind::TensorOrScalar:
        return namesTensor() ? Arg(tensor()) : Arg(scalar());
      case ParamKind::TensorList:
        return list<TensorView*>([&] { return tensor(); });
      case ParamKind::Number:
        return scalar();
      case ParamKind::Int:
        return in_.expectInt("an integer");
      case ParamKind::Bool:
        return flag();
      case ParamKind::IntList:
        return list<int64_t>([&] { return in_.expectInt("an integer"); });
      case ParamKind::BoolList:
        return list<bool>([&] { return flag(); });
      case ParamKind::ShapeList:
        return list<Scalar>([&] { return scalars_.operand(DataType::Index); });
      case ParamKind::DType:
        return scalars_.dataType();
      case ParamKind::String:
        break;
    }
    if (!in_.is(TokenKind::String)) in_.expected("a string in double quotes");
    return in_.next().text;
  }

  bool namesTensor() const {
    if (!in_.is(TokenKind::Name) || in_.peek(1).text == ".") return false;
    const Val* value = names_.find(in_.peek().text);
    return value != nullptr && std::holds_alternative<TensorView*>(*value);
  }
  TensorView* tensor() { return names_.tensor(in_.expectName("a tensor")); }
  Scalar scalar() { return scalars_.operand(DataType::Int); }
  bool flag() {
    if (in_.acceptWord("true")) return true;
    if (!in_.acceptWord("false")) in_.expected("'true' or 'false'");
    return false;
  }

  template <class T, class Read>
  std::vector<T> list(Read read) {
    std::vector<T> values;
    in_.expect("[");
    while (!in_.isSymbol("]")) {
      if (!values.empty()) in_.expect(",");
      values.push_back(read());
    }
    in_.next();
    return values;
  }

  TokenReader& in_;
  ScalarReader& scalars_;
  const NameTable& names_;
  const OpDef& op_;
  const std::vector<Param>& params_;
  std::vector<bool> given_;
  size_t next_ = 0;
  bool keywords_ = false;
};

}  // namespace

std::vector<Arg> readArguments(TokenReader& in, ScalarReader& scalars, const NameTable& names,
                               const OpDef& op) {
  return ArgReader(in, scalars, names, op).run();
}

}  // namespace meshfuse
