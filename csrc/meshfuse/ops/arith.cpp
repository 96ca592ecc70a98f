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

Arg optional(TensorView* tv) { return tv == nullptr ? Arg{} : Arg{tv}; }
Arg optional(Scalar s) { return s ? Arg{s} : Arg{}; }

TensorView* tensorAt(const std::vector<Val>& results, size_t i) {
  return std::get<TensorView*>(results.at(i));
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

TensorView* full(const std::vector<Scalar>& shape, Scalar fill_value, DataType dtype) {
  return one("full", {shape, fill_value, dtype});
}
TensorView* iota(Scalar length, Scalar start, Scalar step, DataType dtype) {
  return one("iota", {length, optional(start), optional(step), dtype});
}
TensorView* uniform(Scalar minval, Scalar maxval, const std::vector<Scalar>& shape, DataType dtype,
                    Scalar rng_seed, Scalar rng_offset) {
  return one("uniform", {minval, maxval, shape, optional(rng_seed), optional(rng_offset), dtype});
}
TensorView* normal(Scalar mean, Scalar std, const std::vector<Scalar>& shape, DataType dtype,
                   Scalar rng_seed, Scalar rng_offset) {
  return one("normal", {mean, std, shape, optional(rng_seed), optional(rng_offset), dtype});
}
TensorView* rand_like(TensorView* x, Scalar rng_seed, Scalar rng_offset) {
  return one("rand_like", {x, optional(rng_seed), optional(rng_offset)});
}
TensorView* randn_like(TensorView* x, Scalar rng_seed, Scalar rng_offset) {
  return one("randn_like", {x, optional(rng_seed), optional(rng_offset)});
}

TensorView* var(TensorView* x, const std::vector<int64_t>& dims, int64_t correction, bool keepdim) {
  return one("var", {x, dims, correction, keepdim});
}
VarMeanResult var_mean(TensorView* x, const std::vector<int64_t>& dims, int64_t correction,
                       bool keepdim) {
  const std::vector<Val> results = callOp("var_mean", {x, dims, correction, keepdim});
  return {tensorAt(results, 0), tensorAt(results, 1)};
}
WelfordResult welford(TensorView* x, const std::vector<int64_t>& dims) {
  const std::vector<Val> results = callOp("welford", {x, dims});
  return {tensorAt(results, 0), tensorAt(results, 1), tensorAt(results, 2)};
}
TensorView* layer_norm(TensorView* x, const std::vector<Scalar>& normalized_shape,
                       TensorView* weight, TensorView* bias, double eps) {
  return one("layer_norm", {x, normalized_shape, optional(weight), optional(bias), eps});
}
TensorView* rms_norm(TensorView* x, const std::vector<Scalar>& normalized_shape, TensorView* weight,
                     std::optional<double> eps) {
  return one("rms_norm", {x, normalized_shape, optional(weight), eps ? Arg{*eps} : Arg{}});
}
TensorView* dropout(TensorView* x, double p, Scalar rng_seed, Scalar rng_offset) {
  return one("dropout", {x, p, optional(rng_seed), optional(rng_offset)});
}

}  // namespace meshfuse
