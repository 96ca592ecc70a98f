// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/plan/signature.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

namespace meshfuse {
namespace {

/// The number as a word; an integer as it is.
int64_t wordOf(const ScalarValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  return std::bit_cast<int64_t>(toDouble(value));
}

/// Calls `word` for every word of the signature until it returns false.
template <class F>
bool forEachWord(std::span<const InputValue> inputs, std::span<const size_t> by_value, F word) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputValue& input = inputs[i];
    const auto* tensor = std::get_if<at::Tensor>(&input);
    if (tensor == nullptr) {
      const auto& value = std::get<ScalarValue>(input);
      if (!word(-1 - static_cast<int64_t>(value.index()))) return false;
      if (std::ranges::binary_search(by_value, i) && !word(wordOf(value))) return false;
      continue;
    }
    if (!tensor->defined() || tensor->layout() != at::kStrided || tensor->is_nested()) {
      if (!word(std::numeric_limits<int64_t>::min())) return false;  // compile() refuses it
      continue;
    }
    const c10::Device device = tensor->device();
    const int64_t kind = (static_cast<int64_t>(tensor->scalar_type()) << 32) |
                         (static_cast<int64_t>(device.type()) << 16) |
                         static_cast<int64_t>(static_cast<uint8_t>(device.index()));
    if (!word(kind) || !word(tensor->dim())) return false;
    for (const int64_t size : tensor->sizes()) {
      if (!word(size)) return false;
    }
    for (const int64_t stride : tensor->strides()) {
      if (!word(stride)) return false;
    }
  }
  return true;
}

}  // namespace

Signature::Signature(std::span<const InputValue> inputs, std::vector<size_t> by_value,
                     std::span<const int64_t> told)
    : by_value_(std::move(by_value)), told_(told.size()) {
  size_t words = told.size();
  forEachWord(inputs, by_value_, [&](int64_t) { return ++words > 0; });
  words_.reserve(words);
  const auto add = [&](int64_t w) {
    words_.push_back(w);
    hash_ = hash_ * 0x9E3779B97F4A7C15ull + static_cast<size_t>(w);
    return true;
  };
  forEachWord(inputs, by_value_, add);
  for (const int64_t size : told) add(size);
}

std::optional<size_t> Signature::prefix(std::span<const InputValue> inputs) const {
  size_t i = 0;
  const bool same = forEachWord(inputs, by_value_, [&](int64_t w) {
    if (i == words_.size() || words_[i] != w) return false;
    ++i;
    return true;
  });
  if (!same) return std::nullopt;
  return i;
}

bool Signature::matches(std::span<const InputValue> inputs, std::span<const int64_t> told) const {
  const auto length = prefix(inputs);
  return length && *length + told.size() == words_.size() &&
         std::ranges::equal(told, std::span(words_).subspan(*length));
}

bool Signature::matchesInputs(std::span<const InputValue> inputs) const {
  const auto length = prefix(inputs);
  return length && *length + told_ == words_.size();
}

std::vector<size_t> inputsThatSizesNeed(const Fusion& fusion) {
  const ScalarPool& pool = fusion.scalars();
  std::vector<bool> seen(pool.size(), false);
  const std::function<void(Scalar)> visit = [&](Scalar s) {
    if (!s || seen[static_cast<size_t>(s.id)]) return;
    seen[static_cast<size_t>(s.id)] = true;
    const ScalarNode& node = pool.node(s);
    visit(node.a);
    visit(node.b);
  };
  for (const TensorView& tv : fusion.tensors()) {
    for (const IterDomain* id : tv.getLogicalDomain()) visit(id->getMaybeExpandedExtent());
    for (const Transform& t : tv.domain().transforms()) visit(t.factor);
  }
  for (const Expr* expr : fusion.exprs()) {
    for (const Constraint& c : expr->constraints()) {
      visit(c.a);
      visit(c.b);
    }
  }
  std::vector<size_t> positions;
  for (size_t i = 0; i < fusion.inputs().size(); ++i) {
    const auto* s = std::get_if<Scalar>(&fusion.inputs()[i]);
    if (s != nullptr && seen[static_cast<size_t>(s->id)]) positions.push_back(i);
  }
  return positions;
}

}  // namespace meshfuse
