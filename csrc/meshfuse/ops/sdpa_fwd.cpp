// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/sdpa_call.h>
#include <meshfuse/schedule/sharding.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace meshfuse {
namespace {

constexpr size_t kQuery = 0, kKey = 1, kValue = 2, kBias = 3, kMask = 4, kSeed = 8;
constexpr SettingParams kSettings{.dropout_p = 5, .is_causal = 6, .scale = 7};

/// The scalar that the argument certainly is; absent when it becomes known at execution only.
std::optional<double> constant(const OpCall& call, size_t param) {
  if (!call.has(param)) return 0;
  const ScalarPool& pool = call.fusion().scalars();
  if (!pool.isConst(call.scalar(param))) return std::nullopt;
  return toDouble(pool.node(call.scalar(param)).value);
}

at::Tensor shiftRight(const at::Tensor& t, int64_t bits) {
  return t.bitwise_right_shift(bits).bitwise_and((int64_t{1} << (64 - bits)) - 1);
}

/// Uniform numbers from 0 to 1 as a function of seed and index: two rounds of mixing of 64 bits.
at::Tensor uniformOf(const at::Tensor& index, int64_t seed) {
  constexpr auto kStep = static_cast<int64_t>(0x9E3779B97F4A7C15U);
  constexpr auto kA = static_cast<int64_t>(0xBF58476D1CE4E5B9U);
  constexpr auto kB = static_cast<int64_t>(0x94D049BB133111EBU);
  at::Tensor z = (index + 1) * kStep + seed;
  for (int round = 0; round < 2; ++round) {
    z = z.bitwise_xor(shiftRight(z, 30)) * kA;
    z = z.bitwise_xor(shiftRight(z, 27)) * kB;
    z = z.bitwise_xor(shiftRight(z, 31));
  }
  return shiftRight(z, 11).to(at::kDouble) * 0x1p-53;
}

}  // namespace

struct SdpaFwdOp final : OpDef {
  OpInfo info() const override {
    return {.name = "sdpfa_fwd",
            .params = {tensor("query"), tensor("key"), tensor("value"), optTensor("bias"),
                       optTensor("mask"), attr("dropout_p", ParamKind::Number, Arg{}),
                       attr("is_causal", ParamKind::Number, Arg{}),
                       attr("scale", ParamKind::Number, Arg{}),
                       attr("rng_seed", ParamKind::Int, Arg{})},
            .doc =
                "Scaled dot-product attention of query [N, H, L, E], key [N, H, S, E] and value "
                "[N, H, S, Ev], with one more axis in front if need be. bias is added to the "
                "scaled scores; a Bool mask is True where a score counts. scale is 1/sqrt(E) by "
                "default. Dropout on a CPU is a function of rng_seed, drawn from torch's "
                "default generator unless given. Without a tensor from the fourth on, at most "
                "six arguments by position are query, key, value, dropout_p, is_causal, scale.",
            .results = {"output", "logsumexp", "philox_seed", "philox_offset"}};
  }

  /// Without dropout nothing is drawn, so that torch's generator stays as it is.
  std::vector<Val> compose(const OpCall& call) const override {
    checkSettings(call, kSettings);
    if (call.has(kSeed) || constant(call, kSettings.dropout_p) != 0) return {};
    std::vector<Arg> args = call.args();
    args[kSeed] = int64_t{0};
    return callOp(call.fusion(), *this, std::move(args));
  }
  std::vector<size_t> drawnParams() const override { return {kSeed}; }
  bool usesPositions() const override { return true; }

  FactorMap factors(const OpCall& call) const override {
    const TensorView* q = call.tensor(kQuery);
    checkAttentionOperands(call, q, call.tensor(kKey), call.tensor(kValue));
    checkScores(call);
    const int64_t n = q->ndim();
    const size_t extra = call.tensors().size() - 3;  // bias and mask
    FactorBuilder builder(call);
    const auto factor = [&](FactorKind kind, int64_t in_q, int64_t in_k, int64_t in_v,
                            int64_t in_scores, std::string label) {
      std::vector<int64_t> axes = {in_q, in_k, in_v};
      axes.resize(3 + extra, in_scores);
      return builder.factor(kind, axes, std::move(label));
    };
    std::vector<std::optional<int32_t>> rows;
    rows.reserve(static_cast<size_t>(n));
    for (int64_t a = 0; a < n - 2; ++a) {
      rows.push_back(factor(FactorKind::Parallel, a, a, a, a, "axis " + std::to_string(a)));
    }
    // A device would not know its first row's place in the causal mask.
    const FactorKind row_kind =
        constant(call, kSettings.is_causal) == 0 ? FactorKind::Parallel : FactorKind::Blocking;
    rows.push_back(factor(row_kind, n - 2, -1, -1, n - 2, "L"));
    factor(FactorKind::Blocking, -1, n - 2, n - 2, n - 1, "S");
    factor(FactorKind::Blocking, n - 1, n - 1, -1, -1, "E");
    const auto out = factor(FactorKind::Parallel, -1, -1, n - 1, -1, "Ev");
    for (const auto& f : rows) builder.resultAxis(f);
    builder.resultAxis(out);
    builder.nextResult();
    for (const auto& f : rows) builder.resultAxis(f);
    builder.nextResult();
    builder.resultAxis(
        builder.freshFactor(FactorKind::Blocking, call.fusion().scalars().constant(2), "seed"));
    builder.nextResult();
    return builder.build();
  }

  DataType resultType(const OpCall& call, size_t i) const override {
    if (i == 0) return call.tensor(kQuery)->dtype();
    return i == 1 ? DataType::Float : DataType::UInt64;
  }
  void finish(const OpCall& call, std::span<TensorView* const> outputs) const override {
    const std::vector<int64_t> order = strideOrderOf(call.tensor(kQuery));
    if (!order.empty()) outputs[0]->setStrideOrder(order, "sdpfa_fwd");
  }

  void evaluate(const OpCall& call, const Operands& io) const override {
    const AttentionSettings settings = settingsOf(call, kSettings);
    const bool scores = call.has(kBias) || call.has(kMask);
    checkDropout(call, settings.dropout_p, scores);
    const at::Tensor &q = io[kQuery], &k = io[kKey], &v = io[kValue];
    const auto kept = [&] {
      return foldLeading(uniformOf(positionOfScores(call, io), seedOf(call)).to(q.device()), 3)
          .ge(settings.dropout_p);
    };
    AttentionResult r =
        attentionForward(foldLeading(q, 3), foldLeading(k, 3), foldLeading(v, 3),
                         scores ? foldLeading(addend(call, io), 3) : at::Tensor(), settings, kept);
    io.out(0) = unfoldLeading(r.output, q);
    io.out(1) = unfoldLeading(r.logsumexp, q);
    io.out(2) = r.philox_seed;
    io.out(3) = r.philox_offset;
  }

 private:
  static void checkDropout(const OpCall& call, double dropout_p, bool scores) {
    MESHFUSE_CHECK(dropout_p == 0 || !scores, "sdpfa_fwd: dropout_p is ", dropout_p, ", but ",
                   at(call.tensor(kQuery)),
                   " is given with a bias or mask, with which there is no dropout. Set dropout_p "
                   "to 0, or apply the dropout before.");
  }

  static void checkScores(const OpCall& call) {
    const TensorView* q = call.tensor(kQuery);
    for (const size_t p : {kBias, kMask}) {
      if (!call.has(p)) continue;
      const TensorView* tv = call.tensor(p);
      const DataType want = p == kBias ? q->dtype() : DataType::Bool;
      MESHFUSE_CHECK(tv->ndim() == q->ndim() && tv->dtype() == want,
                     "sdpfa_fwd: ", p == kBias ? "bias " : "mask ", at(tv), " has ", tv->ndim(),
                     " axes and is ", tv->dtype(), ", but ", q->ndim(), " axes of ", want,
                     " are needed. Give [N, H, L, S], with axes of size 1 where it is the same "
                     "for all.");
    }
    if (const auto p = constant(call, kSettings.dropout_p)) {
      checkDropout(call, *p, call.has(kBias) || call.has(kMask));
    }
  }

  /// What is added to the scores, [N*, L, S]: the bias, and minus infinity where the mask is False.
  static at::Tensor addend(const OpCall& call, const Operands& io) {
    std::vector<int64_t> sizes = io[kQuery].sizes().vec();
    sizes.back() = io[kKey].size(-2);
    at::Tensor sum = call.has(kBias) ? io[3] : at::zeros({}, io[kQuery].options());
    if (call.has(kMask)) {
      sum = sum.expand(sizes).masked_fill(io[io.size() - 1].logical_not(), -INFINITY);
    }
    return sum.expand(sizes);
  }

  static int64_t seedOf(const OpCall& call) {
    return call.has(kSeed) ? call.integer(kSeed) : toInt(call.value(kSeed));
  }

  /// The place of every score of this device in the whole [N*, L, S], so that devices that hold the
  /// same part drop the same weights.
  static at::Tensor positionOfScores(const OpCall& call, const Operands& io) {
    const int64_t n = io[kQuery].dim();
    const std::vector<int64_t>& global = call.globalSizes(0);
    at::Tensor place = at::zeros(std::vector<int64_t>(static_cast<size_t>(n), 1), at::kLong);
    const auto append = [&](int64_t axis, const std::vector<int64_t>& positions, int64_t size) {
      std::vector<int64_t> shape(static_cast<size_t>(n), 1);
      shape[static_cast<size_t>(axis)] = static_cast<int64_t>(positions.size());
      place = place * size + at::tensor(positions, at::kLong).reshape(shape);
    };
    for (int64_t axis = 0; axis < n - 1; ++axis) {
      append(axis, call.positions(0, axis, io.device()), global[static_cast<size_t>(axis)]);
    }
    std::vector<int64_t> columns(static_cast<size_t>(io[kKey].size(-2)));
    for (size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<int64_t>(i);
    const auto count = static_cast<int64_t>(columns.size());
    append(n - 1, std::move(columns), count);
    return place;
  }
};
MESHFUSE_REGISTER_OP(SdpaFwdOp);

}  // namespace meshfuse
