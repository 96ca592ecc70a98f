// SPDX-License-Identifier: BSD-3-Clause
// Words of the text form of a Fusion.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshfuse {

enum class TokenKind : uint8_t { Name, Int, Float, String, Symbol, NewLine, End };

struct Token {
  TokenKind kind = TokenKind::End;
  std::string text;  // as written; of a String its value
  int line = 1, column = 1;
  int64_t integer = 0;  // Int; negative only for 2^63, which needs a minus before it
  double real = 0;      // Float
};

/// Cuts `text` into words. Comments (`//` to the end of the line) and blanks vanish, and ends of
/// lines inside brackets; the last token is an End. Throws Error at a character that starts no
/// word, at an integer of more than 64 bits, and at a string without an end.
std::vector<Token> lex(std::string_view text);

/// The token as a message shows it: "'matmul'", "the end of the line".
std::string describe(const Token& token);

/// Reads tokens one after another; every complaint is an Error that says line, column, what was
/// found and what was expected.
class TokenReader {
 public:
  explicit TokenReader(std::string_view text) : tokens_(lex(text)) {}

  const Token& peek(size_t ahead = 0) const {
    return tokens_[at_ + ahead < tokens_.size() ? at_ + ahead : tokens_.size() - 1];
  }
  bool is(TokenKind kind) const { return peek().kind == kind; }
  /// Whether the next token is this symbol.
  bool isSymbol(std::string_view symbol) const {
    return is(TokenKind::Symbol) && peek().text == symbol;
  }
  /// Whether the next token is this word.
  bool isWord(std::string_view word) const { return is(TokenKind::Name) && peek().text == word; }
  const Token& next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_.back(); }

  bool accept(std::string_view symbol) { return isSymbol(symbol) && (next(), true); }
  bool acceptWord(std::string_view word) { return isWord(word) && (next(), true); }
  void expect(std::string_view symbol) {
    if (!accept(symbol)) expected("'" + std::string(symbol) + "'");
  }
  const Token& expectName(const std::string& what) {
    if (!is(TokenKind::Name)) expected(what);
    return next();
  }
  /// An integer, perhaps negative.
  int64_t expectInt(const std::string& what);

  /// Complains about the next token.
  [[noreturn]] void expected(const std::string& what) const { expected(peek(), what); }
  [[noreturn]] static void expected(const Token& found, const std::string& what);
  /// Complains about something at a token.
  [[noreturn]] static void fault(const Token& where, const std::string& message);

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace meshfuse
