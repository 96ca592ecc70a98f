// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/text/lexer.h>

#include <charconv>

namespace meshfuse {
namespace {

// The classes of <cctype> depend on the locale, and do not take the bytes of UTF-8.
bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) step();
    begin();
    push(TokenKind::End, "");
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void begin() {
    start_ = at_;
    token_ = Token{};
    token_.line = line_;
    token_.column = static_cast<int>(at_ - line_start_) + 1;
  }
  void push(TokenKind kind, std::string text) {
    token_.kind = kind;
    token_.text = std::move(text);
    tokens_.push_back(std::move(token_));
  }
  std::string written() const { return std::string(text_.substr(start_, at_ - start_)); }

  void step() {
    const char c = peek();
    if (c == '\n') return newLine();
    if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (c == '/' && peek(1) == '/') {
      while (at_ < text_.size() && peek() != '\n') ++at_;
    } else {
      begin();
      if (isLetter(c)) return word();
      if (isDigit(c)) return number();
      if (c == '"') return string();
      symbol();
    }
  }

  void newLine() {
    begin();
    ++at_;
    ++line_;
    line_start_ = at_;
    if (depth_ == 0) push(TokenKind::NewLine, "");
  }

  void word() {
    while (isLetter(peek()) || isDigit(peek())) ++at_;
    push(TokenKind::Name, written());
  }

  void number() {
    bool real = false;
    while (isDigit(peek())) ++at_;
    // The point of "a.0" follows a name; after digits it is a decimal point.
    const bool after_point =
        !tokens_.empty() && tokens_.back().kind == TokenKind::Symbol && tokens_.back().text == ".";
    if (peek() == '.' && isDigit(peek(1)) && !after_point) {
      real = true;
      ++at_;
      while (isDigit(peek())) ++at_;
    }
    const size_t sign = peek(1) == '+' || peek(1) == '-' ? 2 : 1;
    if ((peek() == 'e' || peek() == 'E') && isDigit(peek(sign)) && !after_point) {
      real = true;
      at_ += sign;
      while (isDigit(peek())) ++at_;
    }
    const std::string digits = written();
    const char* const end = digits.data() + digits.size();
    if (real) {
      // Out of range leaves the value untouched.
      if (std::from_chars(digits.data(), end, token_.real).ec != std::errc{}) {
        TokenReader::fault(token_, "'" + digits +
                                       "' is no number of 64 bits. Write inf for an "
                                       "infinity, 0.0 for less than the least number");
      }
    } else {
      uint64_t value = 0;
      const bool fits = std::from_chars(digits.data(), end, value).ec == std::errc{};
      // The least integer is written as a minus and 2^63.
      if (!fits || value > uint64_t{1} << 63) {
        TokenReader::fault(token_,
                           "'" + digits + "' does not fit in 64 bits. Use a smaller number");
      }
      token_.integer = static_cast<int64_t>(value);
    }
    push(real ? TokenKind::Float : TokenKind::Int, digits);
  }

  void string() {
    std::string value;
    ++at_;
    while (peek() != '"') {
      if (at_ >= text_.size() || peek() == '\n') {
        TokenReader::fault(token_, "the string has no end on its line. Close it with '\"'");
      }
      if (peek() == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        value += peek() == 'n' ? '\n' : peek();
      } else {
        value += peek();
      }
      ++at_;
    }
    ++at_;
    push(TokenKind::String, std::move(value));
  }

  void symbol() {
    const char c = peek();
    const bool arrow = c == '-' && peek(1) == '>';
    if (std::string_view("[]{}(),;:=@.-").find(c) == std::string_view::npos) {
      const bool printable = c > ' ' && c < '\x7f';
      TokenReader::fault(token_, (printable ? std::string("'") + c + "'" : "this character") +
                                     " starts no word of the text form. Remove it");
    }
    at_ += arrow ? 2 : 1;
    if (c == '[' || c == '{' || c == '(') ++depth_;
    if ((c == ']' || c == '}' || c == ')') && depth_ > 0) --depth_;
    push(TokenKind::Symbol, written());
  }

  std::string_view text_;
  std::vector<Token> tokens_;
  Token token_;
  size_t at_ = 0, start_ = 0, line_start_ = 0;
  int line_ = 1, depth_ = 0;
};

}  // namespace

std::vector<Token> lex(std::string_view text) { return Lexer(text).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::End:
      return "the end of the text";
    case TokenKind::NewLine:
      return "the end of the line";
    case TokenKind::String:
      return "\"" + token.text + "\"";
    default:
      return "'" + token.text + "'";
  }
}

int64_t TokenReader::expectInt(const std::string& what) {
  const bool negative = isSymbol("-") && peek(1).kind == TokenKind::Int;
  if (negative) next();
  if (!is(TokenKind::Int)) expected(what);
  const Token& token = next();
  if (token.integer >= 0) return negative ? -token.integer : token.integer;
  if (!negative) fault(token, "'" + token.text + "' does not fit in 64 bits. Use a smaller number");
  return token.integer;
}

void TokenReader::expected(const Token& found, const std::string& what) {
  fault(found, "found " + describe(found) + ", expected " + what);
}

void TokenReader::fault(const Token& where, const std::string& message) {
  fail("parseIr: line ", where.line, ", column ", where.column, ": ", message, ".");
}

}  // namespace meshfuse
