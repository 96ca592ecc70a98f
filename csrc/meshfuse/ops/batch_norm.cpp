// SPDX-License-Identifier: BSD-3-Clause
// batch_norm: the statistics of a channel are over all other axes; where one of these is divided
// over devices, its sums are added up over them.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/compose.h>

namespace meshfuse {
namespace {

constexpr size_t kArg = 0, kWeight = 1, kBias = 2, kRunningMean = 3, kRunningVar = 4, kMomentum = 5,
                 kEps = 6, kTraining = 7, kChannelsLast = 8;

class BatchNorm {
 public:
  explicit BatchNorm(const OpCall& call)
      : call_(call), ops_(call), x_(ops_.operand(kArg)), channel_(channelOf(call)) {
    const int64_t n = x_->ndim();
    for (int64_t axis = 0; axis < n; ++axis) {
      if (axis != channel_) others_.push_back(axis);
    }
    for (const size_t p : {kWeight, kBias, kRunningMean, kRunningVar}) checkParameter(p);
    const bool both = call.has(kRunningMean) == call.has(kRunningVar);
    MESHFUSE_CHECK(both && (call.flag(kTraining) || call.has(kRunningMean)),
                   "batch_norm: ", at(call.tensor(kArg)),
                   " is normalised with running statistics that are not both given. Give "
                   "running_mean and running_var, or leave out both and train.");
  }

  std::vector<Val> results() {
    TensorView *mean, *variance;
    if (call_.flag(kTraining)) {
      mean = ops_.mean(x_, others_);
      TensorView* distance = ops_("sub", {x_, ops_.keepAxes(mean, others_)});
      TensorView* squares = ops_("mul", {distance, distance});
      variance = ops_.mean(squares, others_);
      if (call_.has(kRunningMean)) updateRunning(mean, ops_("sum", {squares, others_}));
    } else {
      mean = ops_.operand(kRunningMean);
      variance = ops_.operand(kRunningVar);
    }
    TensorView* scale = ops_("rsqrt", {ops_("add", {variance, call_.scalar(kEps)})});
    TensorView* distance = ops_("sub", {x_, ops_.keepAxes(mean, others_)});
    TensorView* out = ops_("mul", {distance, ops_.keepAxes(scale, others_)});
    if (call_.has(kWeight)) out = ops_("mul", {out, wide(kWeight)});
    if (call_.has(kBias)) out = ops_("add", {out, wide(kBias)});
    return {ops_.as(call_.tensor(kArg)->dtype(), out), mean, scale};
  }

 private:
  static int64_t channelOf(const OpCall& call) {
    const TensorView* x = call.tensor(kArg);
    MESHFUSE_CHECK(x->ndim() >= 2, "batch_norm: ", at(x), " has ", x->ndim(),
                   " axes. Give at least a batch and channels.");
    return call.flag(kChannelsLast) ? x->ndim() - 1 : 1;
  }

  void checkParameter(size_t param) const {
    if (!call_.has(param)) return;
    const TensorView* tv = call_.tensor(param);
    MESHFUSE_CHECK(tv->ndim() == 1, "batch_norm: ", call_.op().cachedInfo().params[param].name, " ",
                   at(tv), " has ", tv->ndim(), " axes. Give one element per channel.");
    const bool running = param == kRunningMean || param == kRunningVar;
    MESHFUSE_CHECK(!running || !call_.flag(kTraining) || tv->isFusionInput(),
                   "batch_norm: ", at(tv),
                   " is updated in place, but is no input. Use define_tensor for it.");
  }

  /// A parameter with the axes of the operand.
  TensorView* wide(size_t param) const { return ops_.keepAxes(ops_.operand(param), others_); }

  /// new = (1 - momentum) * old + momentum * now, the variance of the batch being unbiased.
  void updateRunning(TensorView* mean, TensorView* squares) const {
    ScalarPool& pool = ops_.scalars();
    const Scalar count = pool.cast(ops_.countOf(x_, others_), DataType::Double);
    const Scalar divisor = pool.sub(count, ops_.number(1));
    const Scalar rest = pool.sub(ops_.number(1), call_.scalar(kMomentum));
    const auto update = [&](size_t param, TensorView* now) {
      TensorView* old = call_.tensor(param);
      TensorView* next = ops_("add", {ops_("mul", {ops_.operand(param), rest}),
                                      ops_("mul", {now, call_.scalar(kMomentum)})});
      call_.fusion().aliasOutputToInput(ops_.as(old->dtype(), next), old);
    };
    update(kRunningMean, mean);
    update(kRunningVar, ops_("div", {squares, divisor}));
  }

  const OpCall& call_;
  Composer ops_;
  TensorView* x_;
  int64_t channel_;
  std::vector<int64_t> others_;
};

}  // namespace

struct BatchNormOp final : ComposedOp {
  OpInfo info() const override {
    return {
        .name = "batch_norm",
        .params = {tensor("arg"), optTensor("weight"), optTensor("bias"), optTensor("running_mean"),
                   optTensor("running_var"), attr("momentum", ParamKind::Number, 0.1),
                   attr("eps", ParamKind::Number, 1e-5), attr("training", ParamKind::Bool, false),
                   attr("channels_last", ParamKind::Bool, false)},
        .doc =
            "(arg - mean) * invstd * weight + bias, statistics per channel (axis 1, or the "
            "last): of the batch in training, which also updates the running ones in place.",
        .results = {"out", "mean", "invstd"}};
  }
  std::vector<Val> compose(const OpCall& call) const override { return BatchNorm(call).results(); }
};
MESHFUSE_REGISTER_OP(BatchNormOp);

}  // namespace meshfuse
