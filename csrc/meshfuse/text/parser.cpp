// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ops/op_def.h>
#include <meshfuse/text/arg_reader.h>
#include <meshfuse/text/parser.h>
#include <meshfuse/text/type_builder.h>

#include <deque>

namespace meshfuse {
namespace {

class Parser {
 public:
  Parser(std::string_view text, const ParseOptions& options)
      : in_(text), fusion_(std::make_unique<Fusion>()), scalars_(in_, *fusion_, names_) {
    fusion_->uneven = options.uneven;
    if (!options.file.empty()) file_ = fusion_->internFile(std::string(options.file));
  }

  std::unique_ptr<Fusion> run() {
    do {
      skipBlankLines();
    } while (!statement());
    skipBlankLines();
    if (!in_.is(TokenKind::End)) in_.expected("nothing more after 'return'");
    for (TypeBuilder& type : types_) {
      fusion_->current_loc = {file_, type.line()};
      type.schedule();
    }
    fusion_->current_loc = {};
    return std::move(fusion_);
  }

 private:
  void skipBlankLines() {
    while (in_.is(TokenKind::NewLine)) in_.next();
  }
  void endLine() {
    if (!in_.is(TokenKind::NewLine) && !in_.is(TokenKind::End)) in_.expected("the end of the line");
  }

  /// Reads one line; returns whether it was the last.
  bool statement() {
    const Token first = in_.peek();
    if (file_ >= 0) fusion_->current_loc = {file_, first.line};
    if (in_.acceptWord("return")) {
      outputs();
      return true;
    }
    std::vector<Token> names = {in_.expectName("a definition or 'return'")};
    while (in_.accept(",")) names.push_back(in_.expectName("the name of a result"));
    if (names.size() == 1 && in_.accept(":")) {
      input(names[0]);
    } else if (in_.accept("=")) {
      operation(names);
    } else {
      in_.expected(names.size() == 1 ? "':' or '='" : "'='");
    }
    scalars_.checkSymbols();
    endLine();
    return false;
  }

  static void setName(TensorView* tv, const Token& name) {
    if (name.text != tv->name()) tv->setName(name.text);
  }

  void input(const Token& name) {
    TypeText type;
    type.at = in_.peek();
    type.dtype = scalars_.dataType();
    if (type.dtype == DataType::Null) TokenReader::expected(type.at, "a data type such as f32");
    if (!in_.isSymbol("[")) {
      const Scalar s = fusion_->scalars().symbol(type.dtype);
      names_.declare(name, s);
      fusion_->addInput(s);
      return;
    }
    // The type of an input may name its own sizes.
    TensorView* tv = fusion_->newTensor(type.dtype);
    setName(tv, name);
    names_.declare(name, tv);
    readTypeRest(in_, scalars_, type);
    define(tv, std::move(type));
    fusion_->addInput(tv);
  }

  void operation(const std::vector<Token>& names) {
    const Token op_name = in_.expectName("the name of an op");
    const OpDef* op = findOp(op_name.text);
    if (op == nullptr) {
      TokenReader::fault(op_name, "there is no op '" + op_name.text +
                                      "'. The ops are listed in "
                                      "docs/ops.md");
    }
    const std::vector<Val> results = call(op_name, *op);
    if (results.size() != names.size()) {
      TokenReader::fault(names[0], op->name() + " gives " + std::to_string(results.size()) +
                                       " results for " + std::to_string(names.size()) +
                                       " names. Name each result");
    }
    for (size_t i = 0; i < names.size(); ++i) {
      if (!std::holds_alternative<TensorView*>(results[i])) {
        TokenReader::fault(op_name, "all operands of " + op->name() +
                                        " are scalars. Write the expression in parentheses where "
                                        "it is used");
      }
      setName(std::get<TensorView*>(results[i]), names[i]);
      names_.declare(names[i], results[i]);
    }
    in_.expect(":");
    for (size_t i = 0; i < names.size(); ++i) {
      if (i > 0) in_.expect(";");
      TypeText type = readType(in_, scalars_);
      if (!type.is_tensor) TokenReader::expected(type.at, "a type with '[' behind the data type");
      TensorView* tv = std::get<TensorView*>(results[i]);
      checkResultType(tv, type, op->name());
      define(tv, std::move(type));
    }
  }

  void define(TensorView* tv, TypeText type) {
    types_.emplace_back(tv, std::move(type));
    types_.back().define();
  }

  std::vector<Val> call(const Token& op_name, const OpDef& op) {
    std::vector<Arg> args = readArguments(in_, scalars_, names_, op);
    try {
      return callOp(*fusion_, op, std::move(args));
    } catch (Error& error) {
      error.addNote(concat("while reading line ", op_name.line, ", column ", op_name.column));
      throw;
    }
  }

  void outputs() {
    bool first = true;
    while (!in_.is(TokenKind::NewLine) && !in_.is(TokenKind::End)) {
      if (!first) in_.expect(",");
      first = false;
      output();
    }
    scalars_.checkSymbols();
  }

  void output() {
    const Val* value = in_.is(TokenKind::Name) ? names_.find(in_.peek().text) : nullptr;
    const bool is_tensor =
        value != nullptr && std::holds_alternative<TensorView*>(*value) && in_.peek(1).text != ".";
    if (!is_tensor) {
      fusion_->addOutput(scalars_.operand(DataType::Int));
      return;
    }
    TensorView* tv = names_.tensor(in_.next());
    if (!in_.accept("->")) {
      fusion_->addOutput(tv);
      return;
    }
    const Token& target = in_.expectName("an input");
    TensorView* alias = names_.tensor(target);
    if (!alias->isFusionInput()) {
      TokenReader::fault(target, "'" + target.text +
                                     "' is not an input. A result can be written "
                                     "into an input only");
    }
    fusion_->aliasOutputToInput(tv, alias);
  }

  TokenReader in_;
  std::unique_ptr<Fusion> fusion_;
  NameTable names_;
  ScalarReader scalars_;
  std::deque<TypeBuilder> types_;
  int32_t file_ = -1;
};

}  // namespace

std::unique_ptr<Fusion> parseIr(std::string_view text, const ParseOptions& options) {
  return Parser(text, options).run();
}

}  // namespace meshfuse
