// SPDX-License-Identifier: BSD-3-Clause
// Arguments and results of a program as C++ callers hold them.
#pragma once
#include <meshfuse/base/error.h>
#include <meshfuse/plan/signature.h>

#include <utility>
#include <vector>

namespace meshfuse {

/// A tensor or a number.
class PolymorphicValue {
 public:
  PolymorphicValue() = default;
  PolymorphicValue(at::Tensor tensor) : value_(std::move(tensor)) {}
  PolymorphicValue(ScalarValue number) : value_(number) {}

  template <class T>
  bool is() const {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      return std::holds_alternative<at::Tensor>(value_);
    } else {
      const auto* number = std::get_if<ScalarValue>(&value_);
      return number != nullptr && std::holds_alternative<T>(*number);
    }
  }
  /// The value as at::Tensor, int64_t, double, bool or std::complex<double>. Throws Error when it
  /// is of another kind.
  template <class T>
  const T& as() const {
    MESHFUSE_CHECK(is<T>(), "as: the value is of another kind than asked for. Ask is<T>() first.");
    if constexpr (std::is_same_v<T, at::Tensor>) {
      return std::get<at::Tensor>(value_);
    } else {
      return std::get<T>(std::get<ScalarValue>(value_));
    }
  }
  const InputValue& value() const { return value_; }

 private:
  InputValue value_;
};

/// A list of them.
class KernelArgumentHolder {
 public:
  KernelArgumentHolder() = default;
  explicit KernelArgumentHolder(std::vector<at::Tensor> tensors) {
    for (at::Tensor& t : tensors) push(std::move(t));
  }
  template <class... Args>
    requires(sizeof...(Args) > 0 && (std::is_constructible_v<PolymorphicValue, Args> && ...))
  explicit KernelArgumentHolder(Args&&... args) {
    (values_.emplace_back(std::forward<Args>(args)), ...);
  }
  void push(at::Tensor tensor) { values_.emplace_back(std::move(tensor)); }
  void push(ScalarValue number) { values_.emplace_back(number); }
  size_t size() const { return values_.size(); }
  PolymorphicValue& operator[](size_t i) { return values_.at(i); }
  const PolymorphicValue& operator[](size_t i) const { return values_.at(i); }
  std::vector<InputValue> inputs() const {
    std::vector<InputValue> out;
    out.reserve(values_.size());
    for (const PolymorphicValue& v : values_) out.push_back(v.value());
    return out;
  }

 private:
  std::vector<PolymorphicValue> values_;
};

}  // namespace meshfuse
