// SPDX-License-Identifier: BSD-3-Clause
// Exceptions of meshfuse and the two check macros. Every message says what was wrong, where, and
// what to do; tensor and axis named with AtTensor/AtAxis are kept as attributes of the exception.
#pragma once
#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace meshfuse {

/// Where an error happened, as far as it is known.
struct ErrorWhere {
  std::string tensor;
  std::optional<int64_t> axis;
  std::optional<int64_t> rank;
};

/// The user can fix it (Python: meshfuse.Error, a ValueError and a RuntimeError).
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorWhere where = {})
      : std::runtime_error(message), text_(message), where_(std::move(where)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const ErrorWhere& where() const { return where_; }
  /// Appends a line that says what the library was doing ("while compiling T2 = matmul(T0, T1)").
  void addNote(const std::string& note) { text_ += "\n  " + note; }

 private:
  std::string text_;
  ErrorWhere where_;
};

/// A fault of meshfuse itself.
class InternalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The call controls CUDA kernels, which meshfuse does not generate.
class UnsupportedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Another rank failed or never arrived.
class PeerError : public std::runtime_error {
 public:
  PeerError(int rank, std::string reason, const std::string& message)
      : std::runtime_error(message), rank_(rank), reason_(std::move(reason)) {}
  int rank() const { return rank_; }
  const std::string& reason() const { return reason_; }

 private:
  int rank_;
  std::string reason_;
};

/// Prints a tensor's name in a message and records it in the exception.
struct AtTensor {
  std::string name;
};
/// Prints an axis in a message and records it in the exception.
struct AtAxis {
  int64_t axis;
};

namespace detail {
class MessageBuilder {
 public:
  template <class... Args>
  explicit MessageBuilder(const Args&... args) {
    (add(args), ...);
  }
  const std::string& text() const { return text_; }
  const ErrorWhere& where() const { return where_; }

 private:
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      text_ += std::string_view(value);
    } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t> ||
                         std::is_same_v<T, int32_t>) {
      text_ += std::to_string(value);
    } else {
      std::ostringstream out;
      out << value;
      text_ += out.str();
    }
  }
  void add(const AtTensor& t) {
    text_ += t.name;
    if (where_.tensor.empty()) where_.tensor = t.name;
  }
  void add(const AtAxis& a) {
    add(a.axis);
    if (!where_.axis) where_.axis = a.axis;
  }
  std::string text_;
  ErrorWhere where_;
};
[[noreturn]] void throwError(const MessageBuilder& message);
[[noreturn]] void throwInternal(const char* file, int line, const char* condition,
                                const MessageBuilder& message);
}  // namespace detail

/// Throws Error built from `args`.
template <class... Args>
[[noreturn]] void fail(const Args&... args) {
  detail::throwError(detail::MessageBuilder(args...));
}

/// Text made of all arguments, as in a check's message.
template <class... Args>
std::string concat(const Args&... args) {
  return detail::MessageBuilder(args...).text();
}

}  // namespace meshfuse

/// The user can fix it: throws meshfuse::Error.
#define MESHFUSE_CHECK(condition, ...) \
  do {                                 \
    if (!(condition)) [[unlikely]]     \
      ::meshfuse::fail(__VA_ARGS__);   \
  } while (false)

/// Our bug: throws meshfuse::InternalError.
#define MESHFUSE_ASSERT(condition, ...)                                                   \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::meshfuse::detail::throwInternal(__FILE__, __LINE__, #condition,                   \
                                        ::meshfuse::detail::MessageBuilder(__VA_ARGS__)); \
  } while (false)
