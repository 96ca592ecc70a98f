// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

namespace meshfuse {
namespace {

constexpr size_t kMat1 = 0, kMat2 = 1, kOffsets = 2, kFirstScaled = 3;
constexpr int64_t kAlignment = 16;  // bytes, of rows and columns for torch's fused kernel

/// The axis that the groups cut: of mat1 its columns (2-D by 2-D) or its rows (2-D by 3-D), else
/// the columns of mat2.
enum class Ragged { K, M, N };

Ragged raggedOf(int64_t dims1, int64_t dims2) {
  if (dims1 == 3) return Ragged::N;
  return dims2 == 3 ? Ragged::M : Ragged::K;
}

bool isFusable(const at::Tensor& t) {
  const auto fits = [&](int64_t stride) { return stride * t.element_size() % kAlignment == 0; };
  const int64_t rows = t.stride(-2), columns = t.stride(-1);
  const bool outer = t.dim() == 2 || fits(t.stride(0));
  return outer && ((columns == 1 && fits(rows)) || (rows == 1 && fits(columns)));
}

}  // namespace

struct GroupedMmOp final : OpDef {
  OpInfo info() const override {
    return {.name = "grouped_mm",
            .params = {tensor("mat1"), tensor("mat2"), tensor("offsets"), optTensor("scale1"),
                       optTensor("scale2"), optTensor("alpha"), optTensor("bias"),
                       optTensor("beta"), attr("dtype", ParamKind::DType, DataType::Null),
                       attr("output_block_scale_size", ParamKind::Int, int64_t{0}),
                       attr("output_block_scale_dtype", ParamKind::DType, DataType::Null),
                       attr("output_gamma", ParamKind::Bool, false)},
            .doc =
                "One matrix product per group: [m, k] x [g, k, n] -> [m, n] with grouped rows, "
                "[m, k] x [k, n] -> [g, m, n] with grouped k, [g, m, k] x [k, n] -> [m, n] with "
                "grouped columns. offsets, Int32 [g], are the ends of the groups. Products of "
                "scaled operands are not supported."};
  }

  std::vector<Val> compose(const OpCall& call) const override {
    bool scaled = call.integer(9) != 0 || call.flag(11);
    for (size_t p = kFirstScaled; p < 8; ++p) scaled = scaled || call.has(p);
    if (scaled) {
      throw UnsupportedError(
          concat("grouped_mm: products of scaled operands, here of ", call.tensor(kMat1)->name(),
                 ", run in a CUDA kernel of their own. meshfuse evaluates every operation through "
                 "ATen, so there is none. Multiply by the scales first, and call grouped_mm(mat1, "
                 "mat2, offsets)."));
    }
    return {};
  }

  FactorMap factors(const OpCall& call) const override {
    checkOperands(call);
    switch (raggedOf(call.ndim(kMat1), call.ndim(kMat2))) {
      case Ragged::M:
        return einsum(call, "m!k,g!kn,g!->mn");
      case Ragged::N:
        return einsum(call, "g!mk,kn!,g!->mn");
      case Ragged::K:
        break;
    }
    return einsum(call, "mk!,k!n,g!->gmn");
  }

  DataType dtype(const OpCall& call) const override {
    const DataType asked = call.type(8);
    return asked == DataType::Null ? call.tensor(kMat1)->dtype() : asked;
  }

  void evaluate(const OpCall& call, const Operands& io) const override {
    const at::Tensor &a = io[0], &b = io[1];
    const Ragged ragged = raggedOf(a.dim(), b.dim());
    const int64_t whole = ragged == Ragged::M ? a.size(0) : b.size(-1 - (ragged == Ragged::K));
    const std::vector<int64_t> ends = checkedEnds(call, io[2], ragged, whole);
    if (a.is_cuda() && a.scalar_type() == at::kBFloat16 && a.numel() > 0 && b.numel() > 0 &&
        isFusable(a) && isFusable(b)) {
      io.out() = at::_grouped_mm(a, b, io[2]);
      return;
    }
    io.out() = loop(a, b, ends, ragged);
  }

 private:
  static void checkOperands(const OpCall& call) {
    const TensorView *a = call.tensor(kMat1), *b = call.tensor(kMat2);
    const TensorView* offsets = call.tensor(kOffsets);
    const auto isMatrix = [](const TensorView* tv) { return tv->ndim() == 2 || tv->ndim() == 3; };
    MESHFUSE_CHECK(isMatrix(a) && isMatrix(b), "grouped_mm: ", at(a), " has ", a->ndim(),
                   " axes and ", b->name(), " has ", b->ndim(),
                   ". Give one 2-D operand and one that is 2-D or 3-D.");
    MESHFUSE_CHECK(a->ndim() + b->ndim() < 6, "grouped_mm: ", at(a), " and ", b->name(),
                   " both have 3 axes, so that no axis is cut into groups. Use matmul, which "
                   "multiplies batches.");
    MESHFUSE_CHECK(a->dtype() == b->dtype(), "grouped_mm: ", at(a), " is ", a->dtype(), " and ",
                   b->name(), " is ", b->dtype(), ". Cast one of them.");
    MESHFUSE_CHECK(offsets->ndim() == 1 && offsets->dtype() == DataType::Int32,
                   "grouped_mm: offsets ", at(offsets), " has ", offsets->ndim(), " axes and is ",
                   offsets->dtype(), ". Give the ends of the groups as a 1-D Int32 tensor.");
  }

  static std::vector<int64_t> checkedEnds(const OpCall& call, const at::Tensor& offsets,
                                          Ragged ragged, int64_t whole) {
    const TensorView* tv = call.tensor(kOffsets);
    const at::Tensor host = offsets.to(at::kCPU, at::kLong).contiguous();
    const auto* first = static_cast<const int64_t*>(host.const_data_ptr());
    const std::vector<int64_t> ends(first, first + host.numel());
    int64_t before = 0;
    for (const int64_t end : ends) {
      MESHFUSE_CHECK(end >= before, "grouped_mm: offsets ", at(tv), " hold ", end, " after ",
                     before, ". Give the ends of the groups, which never fall.");
      before = end;
    }
    const size_t cut = ragged == Ragged::M ? kMat1 : kMat2;
    MESHFUSE_CHECK(before == whole, "grouped_mm: the last of the offsets ", at(tv), " is ", before,
                   ", but axis ", AtAxis{ragged == Ragged::N ? 1 : 0}, " of ",
                   call.tensor(cut)->name(), ", which the groups cut, has size ", whole,
                   ". Give the ends of all groups, the last one being that size.");
    return ends;
  }

  static at::Tensor loop(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& ends,
                         Ragged ragged) {
    const auto groups = static_cast<int64_t>(ends.size());
    const int64_t m = a.size(-2), n = b.size(-1);
    at::Tensor out = ragged == Ragged::K ? at::empty({groups, m, n}, a.options())
                                         : at::empty({m, n}, a.options());
    int64_t begin = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t size = ends[static_cast<size_t>(g)] - begin;
      if (ragged == Ragged::M) {
        out.narrow(0, begin, size).copy_(at::mm(a.narrow(0, begin, size), b.select(0, g)));
      } else if (ragged == Ragged::N) {
        out.narrow(1, begin, size).copy_(at::mm(a.select(0, g), b.narrow(1, begin, size)));
      } else {
        out.select(0, g).copy_(at::mm(a.narrow(1, begin, size), b.narrow(0, begin, size)));
      }
      begin += size;
    }
    return out;
  }
};
MESHFUSE_REGISTER_OP(GroupedMmOp);

}  // namespace meshfuse
