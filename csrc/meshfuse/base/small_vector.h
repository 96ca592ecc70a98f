// SPDX-License-Identifier: BSD-3-Clause
// A list of plain values that keeps a few of them in itself. Most lists of axes are that short, and
// there are many of them.
#pragma once
#include <meshfuse/base/error.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace meshfuse {

/// std::vector's interface as far as it is used; up to N values need no memory of their own.
/// Moving or growing one makes its iterators invalid.
template <class T, uint32_t N>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() {}
  explicit SmallVector(size_t n, T value = T()) { assign(n, value); }
  SmallVector(std::initializer_list<T> values) { append(values.begin(), values.end()); }
  template <std::forward_iterator It>
  SmallVector(It first, It last) {
    append(first, last);
  }
  template <std::ranges::contiguous_range R>
    requires(!std::same_as<std::remove_cvref_t<R>, SmallVector> &&
             std::same_as<std::ranges::range_value_t<R>, T>)
  explicit SmallVector(const R& values) {
    append(std::ranges::begin(values), std::ranges::end(values));
  }
  SmallVector(const SmallVector& other) { append(other.begin(), other.end()); }
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this == &other) return *this;
    size_ = 0;
    append(other.begin(), other.end());
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this == &other) return *this;
    release();
    take(other);
    return *this;
  }
  ~SmallVector() { release(); }
  // NOLINTNEXTLINE(google-explicit-constructor): for interfaces that take a std::vector
  operator std::vector<T>() const { return {begin(), end()}; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return isInline() ? inline_ : heap_; }
  const T* data() const { return isInline() ? inline_ : heap_; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  const T& at(size_t i) const {
    MESHFUSE_ASSERT(i < size_, "a list of ", size_, " has no place ", i);
    return data()[i];
  }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }

  void clear() { size_ = 0; }
  void reserve(size_t n) {
    if (n > capacity_) grow(n);
  }
  void push_back(T value) {
    if (size_ == capacity_) grow(size_ + 1);
    data()[size_++] = value;
  }
  template <class... Args>
  void emplace_back(Args&&... args) {
    push_back(T{std::forward<Args>(args)...});
  }
  void pop_back() { --size_; }
  void assign(size_t n, T value) {
    size_ = 0;
    reserve(n);
    std::fill_n(data(), n, value);
    size_ = static_cast<uint32_t>(n);
  }
  void insert(const T* where, T value) {
    const std::ptrdiff_t place = where - begin();
    push_back(value);
    std::rotate(begin() + place, end() - 1, end());
  }
  template <std::forward_iterator It>
  void insert(const T* where, It first, It last) {
    const std::ptrdiff_t place = where - begin();
    const auto before = static_cast<std::ptrdiff_t>(size_);
    append(first, last);
    std::rotate(begin() + place, begin() + before, end());
  }
  void insert(const T* where, std::initializer_list<T> values) {
    insert(where, values.begin(), values.end());
  }
  T* erase(const T* where) {
    T* place = begin() + (where - begin());
    std::copy(place + 1, end(), place);
    --size_;
    return place;
  }

  bool operator==(const SmallVector& other) const { return std::ranges::equal(*this, other); }
  bool operator==(std::span<const T> other) const { return std::ranges::equal(*this, other); }

 private:
  bool isInline() const { return capacity_ == N; }

  template <class It>
  void append(It first, It last) {
    const auto n = static_cast<size_t>(std::distance(first, last));
    reserve(size_ + n);
    std::copy(first, last, data() + size_);
    size_ += static_cast<uint32_t>(n);
  }
  void grow(size_t n) {
    const auto capacity = std::max<uint32_t>(2 * capacity_, static_cast<uint32_t>(n));
    const uint32_t size = size_;  // read before `new`, which compilers think may change it
    T* now = new T[capacity];
    std::copy_n(begin(), size, now);
    release();
    heap_ = now;
    capacity_ = capacity;
  }
  /// Frees the memory that is not in the list itself. The values are gone, their number is not.
  void release() {
    if (!isInline()) delete[] heap_;
    capacity_ = N;
  }
  /// Takes over the values of `other` into this empty list.
  void take(SmallVector& other) {
    if (other.isInline()) {
      std::copy(other.inline_, other.inline_ + other.size_, inline_);
    } else {
      heap_ = other.heap_;
      capacity_ = other.capacity_;
      other.capacity_ = N;
    }
    size_ = std::exchange(other.size_, 0);
  }

  union {  // NOLINTBEGIN(readability-identifier-naming): private, as the others
    T inline_[N];
    T* heap_;
  };  // NOLINTEND(readability-identifier-naming)
  uint32_t size_ = 0, capacity_ = N;
};

}  // namespace meshfuse
