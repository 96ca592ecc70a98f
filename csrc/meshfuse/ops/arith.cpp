// SPDX-License-Identifier: BSD-3-Clause
// C++ functions over the registry.
#include <meshfuse/ops/arith.h>
#include <meshfuse/ops/op_def.h>

#include <numeric>

namespace meshfuse {
namespace {

TensorView* one(std::string_view name, std::vector<Arg> args) {
  return std::get<TensorView*>(callOp(name, std::move(args)).at(0));
}

}  // namespace

TensorView* matmul(TensorView* a, TensorView* b) { return one("matmul", {a, b}); }
TensorView* linear(TensorView* x, TensorView* weight, TensorView* bias) {
  return one("linear", {x, weight, bias == nullptr ? Arg{} : Arg{bias}});
}
TensorView* set(TensorView* x) { return one("set", {x}); }
TensorView* sum(TensorView* x, const std::vector<int64_t>& axes, bool keepdim, DataType dtype) {
  return one("sum", {x, axes, keepdim, dtype});
}
TensorView* prod(TensorView* x, const std::vector<int64_t>& axes, bool keepdim, DataType dtype) {
  return one("prod", {x, axes, keepdim, dtype});
}
TensorView* max(TensorView* x, const std::vector<int64_t>& axes, bool keepdim, DataType dtype) {
  return one("max", {x, axes, keepdim, dtype});
}
TensorView* min(TensorView* x, const std::vector<int64_t>& axes, bool keepdim, DataType dtype) {
  return one("min", {x, axes, keepdim, dtype});
}
TensorView* cumsum(TensorView* x, int64_t dim) { return one("cumsum", {x, dim, Arg{}}); }
TensorView* cumprod(TensorView* x, int64_t dim) { return one("cumprod", {x, dim, Arg{}}); }
TensorView* cummax(TensorView* x, int64_t dim) { return one("cummax", {x, dim, Arg{}}); }
TensorView* cummin(TensorView* x, int64_t dim) { return one("cummin", {x, dim, Arg{}}); }
TensorView* triu(TensorView* x, int64_t diagonal) { return one("triu", {x, diagonal}); }
TensorView* add(TensorView* a, TensorView* b) { return one("add", {a, b}); }
TensorView* sub(TensorView* a, TensorView* b) { return one("sub", {a, b}); }
TensorView* mul(TensorView* a, TensorView* b) { return one("mul", {a, b}); }
TensorView* div(TensorView* a, TensorView* b) { return one("div", {a, b}); }
TensorView* relu(TensorView* x) { return one("relu", {x}); }
TensorView* neg(TensorView* x) { return one("neg", {x}); }
TensorView* exp(TensorView* x) { return one("exp", {x}); }
TensorView* tanh(TensorView* x) { return one("tanh", {x}); }
TensorView* sqrt(TensorView* x) { return one("sqrt", {x}); }
TensorView* rsqrt(TensorView* x) { return one("rsqrt", {x}); }
TensorView* reciprocal(TensorView* x) { return one("reciprocal", {x}); }
TensorView* maximum(TensorView* a, TensorView* b) { return one("maximum", {a, b}); }
TensorView* minimum(TensorView* a, TensorView* b) { return one("minimum", {a, b}); }
TensorView* where(TensorView* condition, TensorView* x, TensorView* y) {
  return one("where", {condition, x, y});
}
TensorView* lerp(TensorView* start, TensorView* end, TensorView* weight) {
  return one("lerp", {start, end, weight});
}
TensorView* addcmul(TensorView* a, TensorView* b, TensorView* c, Scalar alpha) {
  return one("addcmul", {a, b, c, alpha});
}
TensorView* clamp(TensorView* x, Scalar min, Scalar max) { return one("clamp", {x, min, max}); }
TensorView* castOp(DataType dtype, TensorView* x) { return one("cast", {x, dtype}); }
TensorView* broadcast(TensorView* x, const std::vector<bool>& is_broadcast_dim) {
  return one("broadcast", {x, is_broadcast_dim});
}
TensorView* permute(TensorView* x, const std::vector<int64_t>& new2old) {
  return one("permute", {x, new2old});
}
TensorView* transpose(TensorView* x, int64_t a, int64_t b) {
  const int64_t n = x->ndim();
  MESHFUSE_CHECK(a >= -n && a < n && b >= -n && b < n, "transpose: axes ", AtAxis{a}, " and ", b,
                 " of ", at(x), " must lie in ", -n, " to ", n - 1, ".");
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<size_t>(a < 0 ? a + n : a)],
            order[static_cast<size_t>(b < 0 ? b + n : b)]);
  return permute(x, order);
}

}  // namespace meshfuse
