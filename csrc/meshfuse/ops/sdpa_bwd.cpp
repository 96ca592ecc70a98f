// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/sdpa_call.h>
#include <meshfuse/schedule/sharding.h>

namespace meshfuse {
namespace {

constexpr size_t kGrad = 0, kQuery = 1, kKey = 2, kValue = 3, kOutput = 4, kLogsumexp = 5;
constexpr size_t kSeed = 8, kOffset = 9;
constexpr SettingParams kSettings{.dropout_p = 6, .is_causal = 7, .scale = 10};

}  // namespace

struct SdpaBwdOp final : OpDef {
  OpInfo info() const override {
    Param logsumexp = tensor("logsumexp");
    logsumexp.aliases = {"log_sumexp"};
    return {.name = "sdpfa_bwd",
            .params = {tensor("grad_output"), tensor("query"), tensor("key"), tensor("value"),
                       tensor("output"), std::move(logsumexp),
                       attr("dropout_p", ParamKind::Number, Arg{}),
                       attr("is_causal", ParamKind::Number, Arg{}), optTensor("philox_seed"),
                       optTensor("philox_offset"), attr("scale", ParamKind::Number, Arg{})},
            .doc =
                "Gradients of sdpfa_fwd without bias and mask, from its results. Of dropout on "
                "CUDA only, where the kernel repeats it from philox_seed and philox_offset.",
            .results = {"grad_query", "grad_key", "grad_value"}};
  }

  FactorMap factors(const OpCall& call) const override {
    checkSettings(call, kSettings);
    checkOperands(call);
    const int64_t n = call.ndim(kQuery);
    FactorBuilder builder(call);
    // Axis of each operand, in their order.
    const auto factor = [&](FactorKind kind, std::array<int64_t, 6> axes, std::string label) {
      std::vector<int64_t> all(axes.begin(), axes.end());
      all.resize(call.tensors().size(), -1);
      return builder.factor(kind, all, std::move(label));
    };
    std::vector<std::optional<int32_t>> lead;
    lead.reserve(static_cast<size_t>(n));
    for (int64_t a = 0; a < n - 2; ++a) {
      lead.push_back(factor(FactorKind::Parallel, {a, a, a, a, a, a}, "axis " + std::to_string(a)));
    }
    constexpr FactorKind kWhole = FactorKind::Blocking;
    const auto l = factor(kWhole, {n - 2, n - 2, -1, -1, n - 2, n - 2}, "L");
    const auto s = factor(kWhole, {-1, -1, n - 2, n - 2, -1, -1}, "S");
    const auto e = factor(kWhole, {-1, n - 1, n - 1, -1, -1, -1}, "E");
    const auto v = factor(kWhole, {n - 1, -1, -1, n - 1, n - 1, -1}, "Ev");
    for (size_t i = 6; i < call.tensors().size(); ++i) {
      for (int64_t a = 0; a < call.tensors()[i]->ndim(); ++a) {
        std::vector<int64_t> axes(call.tensors().size(), -1);
        axes[i] = a;
        builder.factor(kWhole, axes, "state");
      }
    }
    const std::array<std::array<std::optional<int32_t>, 2>, 3> last = {{{l, e}, {s, e}, {s, v}}};
    for (size_t i = 0; i < last.size(); ++i) {
      if (i > 0) builder.nextResult();
      for (const auto& f : lead) builder.resultAxis(f);
      for (const auto& f : last[i]) builder.resultAxis(f);
    }
    return builder.build();
  }

  void finish(const OpCall& call, std::span<TensorView* const> outputs) const override {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::vector<int64_t> order = strideOrderOf(call.tensor(kQuery + i));
      if (!order.empty()) outputs[i]->setStrideOrder(order, "sdpfa_bwd");
    }
  }

  void evaluate(const OpCall& call, const Operands& io) const override {
    const AttentionSettings settings = settingsOf(call, kSettings);
    const at::Tensor q = foldLeading(io[kQuery], 3), k = foldLeading(io[kKey], 3),
                     v = foldLeading(io[kValue], 3);
    MESHFUSE_CHECK(settings.dropout_p == 0 || repeatsDropout(q, k, v, settings),
                   "sdpfa_bwd: dropout_p is ", settings.dropout_p, " in the call on ",
                   at(call.tensor(kQuery)),
                   ", but no kernel repeats dropout for these operands (only CUDA's for Half and "
                   "BFloat16 does). Set dropout_p to 0.");
    size_t next = 6;
    AttentionSaved saved{.output = foldLeading(io[kOutput], 3),
                         .logsumexp = foldLeading(io[kLogsumexp], 2),
                         .philox_seed = {},
                         .philox_offset = {}};
    if (call.has(kSeed)) saved.philox_seed = io[next++];
    if (call.has(kOffset)) saved.philox_offset = io[next];
    AttentionGradients grads =
        attentionBackward(foldLeading(io[kGrad], 3), q, k, v, saved, settings);
    io.out(0) = unfoldLeading(grads.query, io[kQuery]);
    io.out(1) = unfoldLeading(grads.key, io[kKey]);
    io.out(2) = unfoldLeading(grads.value, io[kValue]);
  }

 private:
  static void checkOperands(const OpCall& call) {
    const TensorView* q = call.tensor(kQuery);
    checkAttentionOperands(call, q, call.tensor(kKey), call.tensor(kValue));
    const int64_t n = q->ndim();
    for (const size_t p : {kGrad, kOutput}) {
      const TensorView* tv = call.tensor(p);
      MESHFUSE_CHECK(tv->ndim() == n && tv->dtype() == q->dtype(), "sdpfa_bwd: ", at(tv), " has ",
                     tv->ndim(), " axes and is ", tv->dtype(), ", but query ", q->name(), " has ",
                     n, " and is ", q->dtype(),
                     ". Give the output of sdpfa_fwd and a gradient like it.");
      checkSameLeading(call, q, tv, n - 1);
    }
    const TensorView* lse = call.tensor(kLogsumexp);
    MESHFUSE_CHECK(lse->ndim() == n - 1,
                   "sdpfa_bwd: Expected logsumexp to have one less dimension than Q/K/V, but ",
                   at(lse), " has ", lse->ndim(), " and ", q->name(), " has ", n,
                   ". Give the logsumexp of sdpfa_fwd.");
    checkSameLeading(call, q, lse, n - 1);
  }
};
MESHFUSE_REGISTER_OP(SdpaBwdOp);

}  // namespace meshfuse
