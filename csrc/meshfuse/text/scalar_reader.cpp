// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/text/scalar_reader.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace meshfuse {
namespace {

constexpr int kMaxDepth = 200;  // of nested expressions: the reader calls itself
constexpr std::array<std::string_view, 6> kReserved = {"return", "none", "true",
                                                       "false",  "inf",  "nan"};

}  // namespace

void NameTable::declare(const Token& name, Val value) {
  if (std::ranges::find(kReserved, name.text) != kReserved.end()) {
    TokenReader::fault(name, "'" + name.text + "' has a meaning of its own. Choose another name");
  }
  if (!values_.emplace(name.text, value).second) {
    TokenReader::fault(name, "'" + name.text + "' is defined twice. Give each value its own name");
  }
}

const Val* NameTable::find(const std::string& name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

TensorView* NameTable::tensor(const Token& name) const {
  const Val* value = find(name.text);
  if (value == nullptr || !std::holds_alternative<TensorView*>(*value)) {
    TokenReader::fault(name, "'" + name.text + "' is not a tensor defined above. Define it first");
  }
  return std::get<TensorView*>(*value);
}

DataType ScalarReader::dataType() {
  const Token& token = in_.peek();
  const auto type = dataTypeFromText(token.text);
  if (token.kind != TokenKind::Name || !type) in_.expected("a data type such as f32");
  in_.next();
  return *type;
}

Scalar ScalarReader::operand(DataType plain_int) {
  if (in_.accept("(")) {
    const Scalar s = expression();
    in_.expect(")");
    return s;
  }
  const bool named = in_.is(TokenKind::Name) &&
                     std::ranges::find(kReserved, in_.peek().text) == kReserved.end() &&
                     !(in_.isWord("complex") && in_.peek(1).text == "(");
  return named ? symbol() : literal(plain_int);
}

Scalar ScalarReader::extent(int64_t least) {
  const Token where = in_.peek();
  const Scalar s = operand(DataType::Index);
  const ScalarPool& pool = fusion_.scalars();
  if (!isIntegral(pool.dtype(s))) TokenReader::expected(where, "an integer");
  if (const auto value = pool.constInt(s); value && *value < least) {
    TokenReader::fault(
        where, "found " + std::to_string(*value) + ", expected at least " + std::to_string(least));
  }
  return s;
}

Scalar ScalarReader::expression() {
  if (++depth_ > kMaxDepth) {
    in_.fault(in_.peek(), "an expression is nested more than " + std::to_string(kMaxDepth) +
                              " deep. Make it simpler");
  }
  const Token& first = in_.peek();
  const bool is_call =
      first.kind == TokenKind::Name && in_.peek(1).text == "(" && first.text != "complex";
  const Scalar s = is_call ? call(Token(in_.next())) : operand(DataType::Index);
  --depth_;
  return s;
}

Scalar ScalarReader::call(const Token& function) {
  ScalarPool& pool = fusion_.scalars();
  const auto op = scalarOpFromName(function.text);
  if (!op) TokenReader::expected(function, "a scalar function such as add or ceilDiv");
  in_.expect("(");
  const Scalar a = expression();
  Scalar result;
  if (*op == ScalarOp::Cast) {
    in_.expect(",");
    result = pool.cast(a, dataType());
  } else if (arity(*op) == 1) {
    result = pool.unary(*op, a);
  } else {
    in_.expect(",");
    result = pool.binary(*op, a, expression());
  }
  in_.expect(")");
  return result;
}

Scalar ScalarReader::symbol() {
  const Token name = in_.next();
  const Val* value = names_.find(name.text);
  if (value == nullptr) {
    TokenReader::fault(name, "'" + name.text + "' is not defined above. Define it first");
  }
  if (const auto* scalar = std::get_if<Scalar>(value)) return *scalar;
  const TensorView* tv = std::get<TensorView*>(*value);
  if (!in_.isSymbol(".")) {
    TokenReader::expected(name, "a scalar, such as the size " + name.text + ".0");
  }
  in_.next();
  const int64_t axis = in_.expectInt("the number of an axis");
  if (axis < 0 || axis > std::numeric_limits<int32_t>::max()) {
    TokenReader::fault(name, name.text + "." + std::to_string(axis) +
                                 " is the size of no axis. Count axes from 0");
  }
  symbols_.push_back({name, tv, axis});
  return fusion_.scalars().extentSymbol(tv->id(), static_cast<int32_t>(axis));
}

void ScalarReader::checkSymbols() {
  for (const Use& use : symbols_) {
    const size_t axes = use.tensor->domain().logical().size();
    if (std::cmp_less(use.axis, axes)) continue;
    TokenReader::fault(use.where, use.tensor->name() + "." + std::to_string(use.axis) +
                                      " is the size of no axis: the tensor has " +
                                      std::to_string(axes) + ". Count axes from 0");
  }
  symbols_.clear();
}

double ScalarReader::real() {
  const bool negative = in_.accept("-");
  const Token& token = in_.peek();
  double value = 0;
  if (token.kind == TokenKind::Float) {
    value = token.real;
  } else if (token.kind == TokenKind::Int) {
    value = static_cast<double>(static_cast<uint64_t>(token.integer));
  } else if (in_.isWord("inf")) {
    value = std::numeric_limits<double>::infinity();
  } else if (in_.isWord("nan")) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    in_.expected("a number");
  }
  in_.next();
  return negative ? -value : value;
}

ScalarValue ScalarReader::complexNumber() {
  in_.next();
  in_.expect("(");
  const double re = real();
  in_.expect(",");
  const double im = real();
  in_.expect(")");
  return std::complex<double>(re, im);
}

Scalar ScalarReader::literal(DataType plain_int) {
  const Token where = in_.peek();
  const bool integer =
      in_.is(TokenKind::Int) || (in_.isSymbol("-") && in_.peek(1).kind == TokenKind::Int);
  ScalarValue value;
  DataType type = plain_int;
  if (in_.isWord("true") || in_.isWord("false")) {
    value = in_.next().text == "true";
    type = DataType::Bool;
  } else if (in_.isWord("complex")) {
    value = complexNumber();
    type = DataType::ComplexDouble;
  } else if (integer) {
    value = in_.expectInt("an integer");
  } else {
    const bool number =
        in_.is(TokenKind::Float) || in_.isSymbol("-") || in_.isWord("inf") || in_.isWord("nan");
    if (!number) in_.expected("a number, a size such as a.0, or an expression in parentheses");
    value = real();
    type = DataType::Double;
  }
  if (in_.accept(":")) {
    const DataType written = dataType();
    // Only what the printer writes: a value of the C++ type that represents the data type.
    if (written == DataType::Null || castValue(value, written).index() != value.index()) {
      TokenReader::fault(where, describe(where) + " is no constant of type " +
                                    std::string(textName(written)) + ". Write it as one");
    }
    type = written;
  }
  return fusion_.scalars().constant(value, type);
}

}  // namespace meshfuse
