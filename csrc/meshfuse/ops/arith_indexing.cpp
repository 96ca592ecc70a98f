// SPDX-License-Identifier: BSD-3-Clause
// C++ functions over the registry: attention, indexing, and products of groups.
#include <meshfuse/ops/arith.h>
#include <meshfuse/ops/op_def.h>

namespace meshfuse {
namespace {

std::vector<TensorView*> all(std::string_view name, std::vector<Arg> args) {
  std::vector<TensorView*> out;
  for (const Val& val : callOp(name, std::move(args))) out.push_back(std::get<TensorView*>(val));
  return out;
}

Arg optional(TensorView* tv) { return tv == nullptr ? Arg{} : Arg{tv}; }
Arg optional(Scalar s) { return s ? Arg{s} : Arg{}; }

}  // namespace

TensorView* embedding_fwd(TensorView* input, TensorView* weight) {
  return all("embedding_fwd", {input, weight, Arg{}, Arg{}, Arg{}, Arg{}, Arg{}}).at(0);
}
TensorView* indexSelect(TensorView* x, int64_t dim, TensorView* index) {
  return all("index_select", {x, index, dim}).at(0);
}
TensorView* select(TensorView* x, int64_t dim, Scalar index) {
  return all("select", {x, index, dim}).at(0);
}
TensorView* gather(TensorView* x, int64_t dim, TensorView* index) {
  return all("gather", {x, index, dim}).at(0);
}
TensorView* takeAlongAxis(TensorView* x, TensorView* index, int64_t dim) {
  return all("take_along_axis", {x, index, dim}).at(0);
}
TensorView* scatter(TensorView* x, int64_t dim, TensorView* index, TensorView* src) {
  return all("scatter", {x, index, src, dim}).at(0);
}
TensorView* argsort(TensorView* x, int64_t dim, bool descending, bool stable) {
  return all("argsort", {x, dim, descending, stable}).at(0);
}
TensorView* grouped_mm(TensorView* mat1, TensorView* mat2, TensorView* offsets) {
  return all("grouped_mm", {mat1, mat2, offsets, Arg{}, Arg{}, Arg{}, Arg{}, Arg{}, DataType::Null,
                            int64_t{0}, DataType::Null, false})
      .at(0);
}
TopKResult topk(TensorView* x, Scalar k, int64_t dim, bool largest, bool sorted) {
  const auto r = all("topk", {x, k, dim, largest, sorted});
  return {.values = r.at(0), .indices = r.at(1)};
}

SdpfaFwdResult sdpfa_fwd(TensorView* query, TensorView* key, TensorView* value, Scalar dropout_p,
                         Scalar is_causal, Scalar scale, TensorView* bias, TensorView* mask) {
  const auto r =
      all("sdpfa_fwd", {query, key, value, optional(bias), optional(mask), optional(dropout_p),
                        optional(is_causal), optional(scale), Arg{}});
  return {
      .output = r.at(0), .logsumexp = r.at(1), .philox_seed = r.at(2), .philox_offset = r.at(3)};
}
SdpfaBwdResult sdpfa_bwd(TensorView* grad_output, TensorView* query, TensorView* key,
                         TensorView* value, TensorView* output, TensorView* logsumexp,
                         Scalar dropout_p, Scalar is_causal, TensorView* philox_seed,
                         TensorView* philox_offset, Scalar scale) {
  const auto r = all("sdpfa_bwd", {grad_output, query, key, value, output, logsumexp,
                                   optional(dropout_p), optional(is_causal), optional(philox_seed),
                                   optional(philox_offset), optional(scale)});
  return {.grad_query = r.at(0), .grad_key = r.at(1), .grad_value = r.at(2)};
}

}  // namespace meshfuse
