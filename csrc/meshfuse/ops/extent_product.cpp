// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/extent_product.h>

#include <algorithm>

namespace meshfuse {

void ExtentProduct::multiply(const ScalarPool& pool, Scalar extent) {
  if (const auto number = pool.constInt(extent)) {
    const bool overflow = __builtin_mul_overflow(constant_, *number, &constant_);
    MESHFUSE_CHECK(!overflow, "the product of the sizes exceeds 64 bits. Give smaller sizes.");
    if (constant_ == 0) symbols_.clear();
    return;
  }
  const ScalarNode& node = pool.node(extent);
  if (node.op == ScalarOp::Mul) {
    multiply(pool, node.a);
    multiply(pool, node.b);
    return;
  }
  // Conversions between integer types do not change a size.
  if (node.op == ScalarOp::Cast && isIntegral(node.dtype) && isIntegral(pool.dtype(node.a))) {
    multiply(pool, node.a);
    return;
  }
  if (constant_ != 0) symbols_.insert(std::ranges::upper_bound(symbols_, extent.id), extent.id);
}

std::optional<ExtentProduct> ExtentProduct::over(const ExtentProduct& other) const {
  if (other.constant_ == 0 || constant_ % other.constant_ != 0) return std::nullopt;
  if (!std::ranges::includes(symbols_, other.symbols_)) return std::nullopt;
  ExtentProduct result;
  result.constant_ = constant_ / other.constant_;
  std::ranges::set_difference(symbols_, other.symbols_, std::back_inserter(result.symbols_));
  return result;
}

bool ExtentProduct::isBelow(const ExtentProduct& other) const {
  if (isConst() && other.isConst()) return constant_ < other.constant_ && constant_ > 0;
  return other.constant_ != 0 && other.over(*this).has_value();
}

Scalar ExtentProduct::toScalar(ScalarPool& pool) const {
  Scalar result = pool.constant(constant_);
  for (const int32_t symbol : symbols_) result = pool.mul(result, Scalar{symbol});
  return result;
}

}  // namespace meshfuse
