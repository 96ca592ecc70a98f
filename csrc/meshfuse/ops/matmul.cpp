// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/matmul.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

namespace meshfuse {
namespace {

bool isStaticOne(const TensorView* tv, int64_t axis_from_end) {
  const auto logical = tv->domain().withoutReductions(tv->domain().logical());
  const IterDomain* id =
      tv->domain().id(logical[logical.size() - static_cast<size_t>(axis_from_end)]);
  return id->isBroadcast() && !id->expandedExtent();
}

}  // namespace

OpInfo MatmulOp::info() const {
  return {.name = "matmul",
          .params = {tensor("arg1"), tensor("arg2")},
          .doc = "Matrix product; leading axes broadcast as in torch.matmul."};
}

FactorMap MatmulOp::factors(const OpCall& call) const {
  const TensorView *a = call.tensor(0), *b = call.tensor(1);
  for (const TensorView* tv : {a, b}) {
    MESHFUSE_CHECK(tv->ndim() > 0, "matmul: Expected inputs to be atleast 1D, but ", at(tv),
                   " has no axes. Use mul for scalars.");
  }
  MESHFUSE_CHECK(a->dtype() == b->dtype(),
                 "matmul: Expected A and B dtypes to have the same dtype, but ", at(a), " is ",
                 a->dtype(), " and ", b->name(), " is ", b->dtype(), ". Cast one of them.");
  const bool one_a = isStaticOne(a, 1), one_b = isStaticOne(b, b->ndim() == 1 ? 1 : 2);
  MESHFUSE_CHECK(one_a == one_b,
                 "matmul: K should be broadcast in both A and B, or neither. The "
                 "inner axis of ",
                 at(one_a ? a : b), " has the constant size 1, that of ", (one_a ? b : a)->name(),
                 " does not. Declare both sizes alike.");
  static constexpr const char* kFormula[2][2] = {{"...mk,...kn->...mn", "...mk,k->...m"},
                                                 {"k,...kn->...n", "k,k->"}};
  return einsum(call, kFormula[call.ndim(0) == 1][call.ndim(1) == 1]);
}

at::Tensor matmulInLayout(const at::Tensor& a, const at::Tensor& b, const Layout& want) {
  if (a.dim() < 2 || b.dim() < 2 || want.isRowMajor()) {
    // What matmul would call, without the way through its own dispatch.
    return a.dim() == 2 && b.dim() == 2 ? at::mm(a, b) : at::matmul(a, b);
  }
  const size_t n = want.sizes.size();
  if (std::cmp_not_equal(n, std::max(a.dim(), b.dim()))) return at::matmul(a, b);
  // Result axes in memory order, outermost first.
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int64_t i) { return want.strides[static_cast<size_t>(i)]; });
  const auto last = static_cast<int64_t>(n) - 1;
  const bool swap = order.back() == last - 1;  // rows innermost: (a b)^T = b^T a^T
  if (!swap && order.back() != last) return at::matmul(a, b);
  const at::Tensor left = swap ? b.mT() : a, right = swap ? a.mT() : b;
  // Axis `last - 1` of left @ right stands for result axis `row`.
  const int64_t row = swap ? last : last - 1;
  const auto restore = [&](const at::Tensor& r) { return swap ? r.mT() : r; };
  std::vector<int64_t> outer(order.begin(), order.end() - 1);
  std::ranges::replace(outer, row, last - 1);
  if (std::ranges::is_sorted(outer)) return restore(at::matmul(left, right));
  if (right.dim() != 2 || left.dim() != static_cast<int64_t>(n)) return at::matmul(a, b);
  outer.push_back(last);
  std::vector<int64_t> back(n);
  for (size_t i = 0; i < n; ++i) back[static_cast<size_t>(outer[i])] = static_cast<int64_t>(i);
  return restore(at::matmul(left.permute(outer), right).permute(back));
}

void MatmulOp::evaluate(const OpCall& call, const Operands& io) const {
  io.out() = matmulInLayout(io[0], io[1], call.want(0));
}

MESHFUSE_REGISTER_OP(MatmulOp);

}  // namespace meshfuse
