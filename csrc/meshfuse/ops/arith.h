// SPDX-License-Identifier: BSD-3-Clause
// Ops as C++ functions on the current Fusion, and builders of input tensors.
#pragma once
#include <meshfuse/ir/fusion.h>

#include <optional>
#include <string_view>
#include <vector>

namespace meshfuse {

TensorView* matmul(TensorView* a, TensorView* b);
TensorView* linear(TensorView* x, TensorView* weight, TensorView* bias = nullptr);
TensorView* set(TensorView* x);
TensorView* sum(TensorView* x, const std::vector<int64_t>& axes, bool keepdim = false,
                DataType dtype = DataType::Null);
TensorView* prod(TensorView* x, const std::vector<int64_t>& axes, bool keepdim = false,
                 DataType dtype = DataType::Null);
TensorView* max(TensorView* x, const std::vector<int64_t>& axes, bool keepdim = false,
                DataType dtype = DataType::Null);
TensorView* min(TensorView* x, const std::vector<int64_t>& axes, bool keepdim = false,
                DataType dtype = DataType::Null);
TensorView* cumsum(TensorView* x, int64_t dim);
TensorView* cumprod(TensorView* x, int64_t dim);
TensorView* cummax(TensorView* x, int64_t dim);
TensorView* cummin(TensorView* x, int64_t dim);
TensorView* triu(TensorView* x, int64_t diagonal = 0);
TensorView* add(TensorView* a, TensorView* b);
TensorView* sub(TensorView* a, TensorView* b);
TensorView* mul(TensorView* a, TensorView* b);
TensorView* div(TensorView* a, TensorView* b);
TensorView* relu(TensorView* x);
TensorView* neg(TensorView* x);
TensorView* exp(TensorView* x);
TensorView* tanh(TensorView* x);
TensorView* sqrt(TensorView* x);
TensorView* rsqrt(TensorView* x);
TensorView* reciprocal(TensorView* x);
TensorView* maximum(TensorView* a, TensorView* b);
TensorView* minimum(TensorView* a, TensorView* b);
TensorView* where(TensorView* condition, TensorView* x, TensorView* y);
TensorView* lerp(TensorView* start, TensorView* end, TensorView* weight);
TensorView* addcmul(TensorView* a, TensorView* b, TensorView* c, Scalar alpha);
TensorView* clamp(TensorView* x, Scalar min, Scalar max);
TensorView* castOp(DataType dtype, TensorView* x);
TensorView* broadcast(TensorView* x, const std::vector<bool>& is_broadcast_dim);
TensorView* permute(TensorView* x, const std::vector<int64_t>& new2old);
TensorView* transpose(TensorView* x, int64_t a, int64_t b);

// ---- tensors from scalars; an absent Scalar is the default of the op of that name
TensorView* full(const std::vector<Scalar>& shape, Scalar fill_value, DataType dtype);
TensorView* iota(Scalar length, Scalar start = {}, Scalar step = {},
                 DataType dtype = DataType::Int);
TensorView* uniform(Scalar minval, Scalar maxval, const std::vector<Scalar>& shape,
                    DataType dtype = DataType::Float, Scalar rng_seed = {}, Scalar rng_offset = {});
TensorView* normal(Scalar mean, Scalar std, const std::vector<Scalar>& shape,
                   DataType dtype = DataType::Float, Scalar rng_seed = {}, Scalar rng_offset = {});
TensorView* rand_like(TensorView* x, Scalar rng_seed = {}, Scalar rng_offset = {});
TensorView* randn_like(TensorView* x, Scalar rng_seed = {}, Scalar rng_offset = {});

// ---- compositions
struct VarMeanResult {
  TensorView *var, *mean;
};
struct WelfordResult {
  TensorView *mean, *m2, *n;
};
TensorView* var(TensorView* x, const std::vector<int64_t>& dims, int64_t correction = 1,
                bool keepdim = false);
VarMeanResult var_mean(TensorView* x, const std::vector<int64_t>& dims, int64_t correction = 1,
                       bool keepdim = false);
WelfordResult welford(TensorView* x, const std::vector<int64_t>& dims);
TensorView* layer_norm(TensorView* x, const std::vector<Scalar>& normalized_shape,
                       TensorView* weight = nullptr, TensorView* bias = nullptr, double eps = 1e-5);
TensorView* rms_norm(TensorView* x, const std::vector<Scalar>& normalized_shape,
                     TensorView* weight = nullptr, std::optional<double> eps = std::nullopt);
TensorView* dropout(TensorView* x, double p = 0.5, Scalar rng_seed = {}, Scalar rng_offset = {});

// ---- attention, indexing, products of groups
TensorView* embedding_fwd(TensorView* input, TensorView* weight);
TensorView* indexSelect(TensorView* x, int64_t dim, TensorView* index);
TensorView* select(TensorView* x, int64_t dim, Scalar index);
TensorView* gather(TensorView* x, int64_t dim, TensorView* index);
TensorView* takeAlongAxis(TensorView* x, TensorView* index, int64_t dim);
TensorView* scatter(TensorView* x, int64_t dim, TensorView* index, TensorView* src);
TensorView* argsort(TensorView* x, int64_t dim, bool descending = false, bool stable = false);
TensorView* grouped_mm(TensorView* mat1, TensorView* mat2, TensorView* offsets);

struct TopKResult {
  TensorView *values, *indices;
};
TopKResult topk(TensorView* x, Scalar k, int64_t dim = -1, bool largest = true,
                bool sorted = false);

/// Absent scalars stand for no dropout, not causal, and 1 / sqrt(E).
struct SdpfaFwdResult {
  TensorView *output, *logsumexp, *philox_seed, *philox_offset;
};
SdpfaFwdResult sdpfa_fwd(TensorView* query, TensorView* key, TensorView* value,
                         Scalar dropout_p = {}, Scalar is_causal = {}, Scalar scale = {},
                         TensorView* bias = nullptr, TensorView* mask = nullptr);
struct SdpfaBwdResult {
  TensorView *grad_query, *grad_key, *grad_value;
};
SdpfaBwdResult sdpfa_bwd(TensorView* grad_output, TensorView* query, TensorView* key,
                         TensorView* value, TensorView* output, TensorView* logsumexp,
                         Scalar dropout_p, Scalar is_causal, TensorView* philox_seed,
                         TensorView* philox_offset, Scalar scale = {});

/// Describes a tensor: -1 is a symbolic extent, 1 a broadcast axis, other sizes are constants.
class TensorViewBuilder {
 public:
  TensorViewBuilder& ndims(size_t n);
  TensorViewBuilder& shape(std::vector<int64_t> shape);
  TensorViewBuilder& dtype(DataType type);
  /// One flag for all axes that are not broadcast.
  TensorViewBuilder& contiguity(bool flag);
  /// One entry per axis in allocation order; nullopt = broadcast, which makes an axis whose size is
  /// not 1 an expanded broadcast.
  TensorViewBuilder& contiguity(Contiguity flags);
  TensorViewBuilder& expanded(std::vector<bool> flags);
  /// order[i] is the place of axis i in memory, 0 innermost; negative entries wrap.
  TensorViewBuilder& strideOrder(std::vector<int64_t> order);
  /// Makes the tensor in `fusion` (default: the current one). Throws Error.
  TensorView* build(Fusion* fusion = nullptr) const;

 private:
  std::vector<int64_t> shape_;
  DataType dtype_ = DataType::Float;
  std::optional<bool> uniform_;
  std::optional<Contiguity> contiguity_;
  std::vector<bool> expanded_;
  std::vector<int64_t> stride_order_;
};

TensorView* makeContigTensor(size_t ndims, DataType dtype = DataType::Float);
TensorView* makeSymbolicTensor(size_t ndims, DataType dtype = DataType::Float);
TensorView* makeSymbolicTensor(const std::vector<int64_t>& shape, DataType dtype = DataType::Float);
TensorView* makeConcreteTensor(const std::vector<int64_t>& shape, DataType dtype = DataType::Float);
TensorView* makeContigConcreteTensor(const std::vector<int64_t>& shape,
                                     DataType dtype = DataType::Float);

/// Makes nodes in the current Fusion: create<TensorView>(shape, dtype), create<Scalar>(value).
struct IrBuilder {
  template <class T, class... A>
  static auto create(A&&... args) {
    return createInContainer<T>(&currentFusion(), std::forward<A>(args)...);
  }
  template <class T, class... A>
  static auto createInContainer(Fusion* fusion, A&&... args) {
    return make(static_cast<T*>(nullptr), *fusion, std::forward<A>(args)...);
  }
  /// Throws Error when no FusionGuard is alive in this thread.
  static Fusion& currentFusion();

 private:
  static TensorView* make(TensorView*, Fusion& fusion, const std::vector<int64_t>& shape,
                          DataType dtype = DataType::Float) {
    return TensorViewBuilder().shape(shape).dtype(dtype).build(&fusion);
  }
  static Scalar make(Scalar*, Fusion& fusion, int64_t value) {
    return fusion.scalars().constant(value);
  }
  static Scalar make(Scalar*, Fusion& fusion, DataType symbolic) {
    return fusion.scalars().symbol(symbolic);
  }
};

}  // namespace meshfuse
