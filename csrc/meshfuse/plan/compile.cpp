// SPDX-License-Identifier: BSD-3-Clause
// From a Fusion (after the passes) and one set of inputs to a plan. Everything that can fail
// because of sizes, types or devices fails here, before the first step runs.
#include <meshfuse/base/error.h>
#include <meshfuse/eval/domain_sizes.h>
#include <meshfuse/ir/printer.h>
#include <meshfuse/ops/torch_types.h>
#include <meshfuse/plan/order_steps.h>
#include <meshfuse/plan/plan.h>
#include <meshfuse/schedule/sharding.h>
#include <meshfuse/text/ir_text.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace meshfuse {

class PlanBuilder {
 public:
  PlanBuilder(const std::shared_ptr<const Fusion>& fusion, std::span<const InputValue> inputs,
              const PlanTarget& target)
      : fusion_(*fusion),
        inputs_(inputs),
        target_(target),
        devices_(target.local_devices),
        device_count_(target.device_count),
        device_(target.device),
        slot_of_(fusion->tensors().size(), -1),
        alias_of_(fusion->tensors().size(), -1),
        plan_(std::make_shared<Plan>(fusion)) {}

  std::shared_ptr<const Plan> build(Signature signature) {
    by_value_ = signature.byValue();
    plan_->signature = std::move(signature);
    bindInputs();
    bindTold();
    exprs_ = fusion_.exprs();
    plan_->steps.reserve(exprs_.size());
    for (const Expr* expr : exprs_) {
      try {
        addStep(expr);
      } catch (Error& error) {
        error.addNote(concat("while compiling ", toString(expr), sourceText(expr->loc())));
        throw;
      }
    }
    for (const FusionOutput& output : fusion_.outputs()) addOutput(output);
    orderSteps(*plan_);
    freeSlots();
    postCommunications(*plan_);
    if (target_.agreement != nullptr) {
      plan_->agreement = makePlanAgreement(fusion_, *target_.agreement, evaluator(), devices_[0]);
    }
    return std::move(plan_);
  }

  const ExpressionEvaluator& bindInputs() {
    if (fusion_.uneven) evaluator().setDevice(device_ < 0 ? devices_[0] : device_);
    checkInputs();
    return evaluator();
  }

 private:
  ExpressionEvaluator& evaluator() const { return plan_->evaluator; }

  std::string sourceText(SourceLoc loc) const {
    const std::string where = fusion_.describe(loc);
    return where.empty() ? "" : " (" + where + ")";
  }

  bool holds(const DeviceMesh& mesh) const {
    return mesh.empty() || std::ranges::any_of(devices_, [&](int64_t d) { return mesh.has(d); });
  }
  bool allHold(const DeviceMesh& mesh) {
    if (mesh.empty()) return true;
    const auto [known, added] = all_hold_.try_emplace(&mesh);
    if (added) {
      known->second = std::ranges::all_of(devices_, [&](int64_t d) { return mesh.has(d); });
    }
    return known->second;
  }

  void checkInputs() {
    const size_t n = fusion_.inputs().size();
    MESHFUSE_CHECK(inputs_.size() == n, "execute: expected ", n, " inputs, but ", inputs_.size(),
                   " were given. Pass one value per define_tensor and define_scalar, in order.");
    checkMeshes();
    plan_->inputs.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      const Val& declared = fusion_.inputs()[i];
      if (const auto* tv = std::get_if<TensorView*>(&declared)) {
        bindTensor(*tv, static_cast<int64_t>(i));
      } else {
        checkScalar(std::get<Scalar>(declared), static_cast<int64_t>(i));
        plan_->inputs.push_back(-1);
      }
    }
  }

  void bindTold() {
    for (size_t i = 0; i < target_.told.size(); ++i) {
      if (target_.told[i] < 0) continue;
      const ToldAxis& axis = target_.agreement->told[i];
      const auto* tv = std::get<TensorView*>(fusion_.inputs()[axis.input]);
      evaluator().bind(axis.extent, target_.told[i],
                       concat("axis ", axis.axis, " of input ", axis.input, ", ", tv->name(),
                              ", of other ranks"));
    }
  }

  void checkMeshes() {
    for (const DeviceMesh& mesh : fusion_.meshes()) {
      MESHFUSE_CHECK(mesh.maxDeviceId() < device_count_, "execute: ", mesh.toString(),
                     " needs device ", mesh.maxDeviceId(), ", but the communicator has ",
                     device_count_, " devices (0 to ", device_count_ - 1, "). Start ",
                     mesh.maxDeviceId() + 1, " ranks, simulate them (meshfuse.simulate(",
                     mesh.maxDeviceId() + 1, ")), or use a smaller mesh.");
    }
  }

  void bindTensor(const TensorView* tv, int64_t position) {
    const auto* tensor = std::get_if<at::Tensor>(&inputs_[static_cast<size_t>(position)]);
    MESHFUSE_CHECK(tensor != nullptr, "Expected input ", position, ", ", toString(tv),
                   ", to be an at::Tensor but got scalar ",
                   tensor == nullptr
                       ? toString(std::get<ScalarValue>(inputs_[static_cast<size_t>(position)]))
                       : "",
                   ". Pass a tensor for ", at(tv), ".");
    const bool here = holds(tv->getDeviceMesh()) && (device_ < 0 || tv->getDeviceMesh().empty() ||
                                                     tv->getDeviceMesh().has(device_));
    MESHFUSE_CHECK(tensor->defined() || !here, "Expected input ", position, ", ", toString(tv),
                   ", to be a tensor, but got an undefined one. Pass a tensor for ", at(tv), ".");
    MESHFUSE_CHECK(
        !here || (tensor->layout() == at::kStrided && !tensor->is_nested()), "Expected input ",
        position, ", ", toString(tv), ", to be a dense tensor, but ", at(tv),
        " was given a sparse or nested one. Pass tensor.to_dense(), or a padded tensor.");
    const bool cpu_scalar = here && tensor->dim() == 0 && tensor->is_cpu();
    if (!cpu_scalar && here) {
      MESHFUSE_CHECK(!input_device_ || *input_device_ == tensor->device(),
                     "execute: Inputs are not all on the same device or don't match selection! "
                     "Input ",
                     position, " (", at(tv), ") is on ", tensor->device().str(),
                     ", an earlier one on ", input_device_ ? input_device_->str() : "",
                     ". Move all inputs to one device.");
      input_device_ = tensor->device();
    }
    if (here) evaluator().bind(tv, *tensor, position);
    slotOf(tv) = plan_->num_slots;
    aliasOf(tv) = plan_->num_slots;
    input_of_slot_.push_back(static_cast<int32_t>(position));
    plan_->inputs.push_back(plan_->num_slots++);
  }

  void checkScalar(Scalar s, int64_t position) {
    const DataType want = fusion_.scalars().dtype(s);
    const InputValue& given = inputs_[static_cast<size_t>(position)];
    if (const auto* tensor = std::get_if<at::Tensor>(&given)) {
      fail("Expected input ", position, ", ", extentText(fusion_, s), ", to be a scalar but got ",
           toDataType(tensor->scalar_type()), " tensor of rank ", tensor->dim(),
           ". Pass a Python number.");
    }
    const auto& value = std::get<ScalarValue>(given);
    const DataType have = dtypeOf(value);
    const bool fits = isComplex(want) || (isFloating(want) && !isComplex(have)) ||
                      (isIntegral(want) && (have == DataType::Int || have == DataType::Bool)) ||
                      (want == DataType::Bool && have == DataType::Bool);
    MESHFUSE_CHECK(fits, "Scalar value ", toString(value),
                   " is not compatible with the expected data type: ", want,
                   ". It was given as input ", position, ", ", extentText(fusion_, s), ".");
    if (std::ranges::binary_search(by_value_, static_cast<size_t>(position))) {
      evaluator().bind(s, exactValue(value, want), concat("input ", position));
    }
  }

  /// Nothing has no largest element. Checked for whole axes: a device may well have no part of one.
  void checkNotEmpty(const Expr* expr) const {
    const ReduceKind kind = expr->op().reduceKind();
    if (kind != ReduceKind::Max && kind != ReduceKind::Min) return;
    for (size_t axis = 0; axis < expr->factors().numAxes(0); ++axis) {
      for (const int32_t f : expr->factors().axis(0, axis)) {
        const Factor& factor = expr->factors().factor(f);
        MESHFUSE_CHECK(
            factor.kind != FactorKind::Reduction || evaluator().evaluate(factor.extent) != 0,
            expr->op().name(), ": Expected reduction dim ", axis,
            " to have non-zero size, but axis ", AtAxis{static_cast<int64_t>(axis)}, " of ",
            at(expr->input(0)), " is empty. Reduce an axis that has elements.");
      }
    }
  }

  void addStep(const Expr* expr) {
    evaluator().checkConstraints(expr);
    checkNotEmpty(expr);
    Step step{.expr = expr,
              .call = OpCall(*expr),
              .in = {},
              .out = {},
              .free_after = {},
              .dynamic_scalars = {},
              .drawn = {},
              .communication = {}};
    for (const TensorView* in : expr->inputs()) step.in.push_back(slotOf(in));
    const TensorView* first = expr->outputs().at(0);
    if (first->hasDeviceMesh()) {
      step.mesh = &first->getDeviceMesh();
      if (!allHold(*step.mesh)) plan_->every_device_runs = false;
    }
    for (const TensorView* out : expr->outputs()) checkPartial(out);
    const bool runs_here = holds(first->getDeviceMesh());
    for (const TensorView* out : expr->outputs()) {
      slotOf(out) = plan_->num_slots++;
      step.out.push_back(slotOf(out));
      step.call.want_.push_back(internLayout(runs_here ? localLayout(out, evaluator()) : Layout{}));
      step.call.result_types_.push_back(out->dtype());
    }
    if (expr->op().usesPositions() && runs_here) bindPositions(step.call, expr);
    if (input_device_) {
      step.call.device_type_ = static_cast<int8_t>(input_device_->type());
      step.call.device_index_ = input_device_->index();
    }
    step.communication = communicationOf(expr);
    step.any_layout = isReadLocally(expr, step);
    if (roundsOnceMore(expr)) {
      step.call.narrow_ = true;
      step.call.result_types_[0] = expr->input(0)->dtype();
    }
    const bool may_share =
        expr->op().cachedInfo().is_view && !hasOwnMemory(step.communication.get());
    for (const TensorView* out : expr->outputs()) {
      aliasOf(out) = may_share ? aliasOf(expr->input(0)) : slotOf(out);
    }
    bindScalars(step);
    plan_->steps.push_back(std::move(step));
  }

  /// Whether results stay in the program, only local operations read them, and their memory order
  /// is the logical one. Then it may as well be another: a view costs less than a copy.
  bool isReadLocally(const Expr* expr, const Step& step) {
    if (step.communication) return false;
    for (size_t i = 0; i < expr->outputs().size(); ++i) {
      const TensorView* out = expr->output(i);
      if (out->isFusionOutput() || !step.call.want(i).isRowMajor()) return false;
      for (const Expr* reader : out->uses()) {
        if (getCommunicationInfo(reader)) return false;
      }
    }
    return true;
  }

  /// Whether a result, computed from 16-bit floats and widened, is only cast back to their type.
  /// torch, which widens each element, then gives the same values in one operation.
  static bool roundsOnceMore(const Expr* expr) {
    const TensorView* out = expr->output(0);
    if (!expr->op().roundsOnce() || out->dtype() != DataType::Float || out->isFusionOutput() ||
        expr->inputs().size() != 2 || out->uses().size() != 1) {
      return false;
    }
    const DataType type = expr->input(0)->dtype();
    const Expr* reader = out->uses()[0];
    return isReducedFloating(type) && expr->input(1)->dtype() == type && reader->op().isCast() &&
           reader->output(0)->dtype() == type;
  }

  /// torch's op knows nothing of the axis that an rfactor keeps, so one device must hold one of it.
  void checkPartial(const TensorView* tv) const {
    const AxisList logical = tv->domain().withoutReductions(tv->domain().logical());
    for (size_t i = 0; i < logical.size(); ++i) {
      const IterDomain* id = tv->domain().id(logical[i]);
      if (!id->isRFactorProduct() || id->isDeviceDim()) continue;
      const auto size = evaluator().evaluate(id->extent());
      MESHFUSE_CHECK(size == 1, "rfactor: axis ", AtAxis{static_cast<int64_t>(i)}, " of ", at(tv),
                     " (size ", size.value_or(-1),
                     ") is a piece of a reduction that is on no mesh axis. Parallelize it on the "
                     "mesh (mesh_x, ...), or leave the reduction in one piece.");
    }
  }

  std::unique_ptr<const CommunicationStep> communicationOf(const Expr* expr) {
    const auto info = getCommunicationInfo(expr);
    if (!info) return nullptr;
    const TensorView *in = expr->input(0), *out = expr->output(0);
    CommunicationStep step{.info = *info,
                           .from = &in->getDeviceMesh(),
                           .to = &out->getDeviceMesh(),
                           .teams = {},
                           .in = {},
                           .out = {},
                           .pieces = {}};
    // A rank outside may not know the sizes; it has no part in the messages, but counts the call.
    const bool takes_part = holds(*step.from) || holds(*step.to) || (knows(in) && knows(out));
    if (info->kind == CommunicationKind::Broadcast) {
      step.teams = shared({receiversOf(step, step.from->at(0))});
    } else if (info->kind == CommunicationKind::Reduce) {
      planReduce(step, in);
    } else if (info->between_meshes) {
      if (takes_part) step.pieces = planExchange(in, out, evaluator().globalShape(in), lookup());
    } else {
      planTeams(step, in, out, takes_part);
    }
    return std::make_unique<const CommunicationStep>(std::move(step));
  }

  /// Whether the result is in the communication's own memory on every device.
  static bool hasOwnMemory(const CommunicationStep* step) {
    return step && !step->isExchange() &&
           (step->info.kind == CommunicationKind::AllGather ||
            step->info.kind == CommunicationKind::AllToAll);
  }

  bool knows(const TensorView* tv) const {
    return std::ranges::all_of(tv->getLogicalDomain(), [&](const IterDomain* id) {
      return id->isReduction() || evaluator().evaluate(id->getMaybeExpandedExtent()).has_value();
    });
  }

  ScalarLookup lookup() const {
    return [this](Scalar s) { return evaluator().evaluate(s); };
  }

  /// Root and those devices of the result's mesh that do not have the whole tensor, root first.
  static Team receiversOf(const CommunicationStep& step, int64_t root) {
    Team team{{root}};
    for (const int64_t device : step.to->vector()) {
      const bool has = step.info.kind != CommunicationKind::Reduce && step.from->has(device);
      if (device != root && !has) team.devices.push_back(device);
    }
    return team;
  }

  /// Partial results to the root, which is a receiver if it can be; then from there to the others.
  static void planReduce(CommunicationStep& step, const TensorView* in) {
    const auto& senders = step.from->vector();
    const auto common =
        std::ranges::find_if(senders, [&](int64_t device) { return step.to->has(device); });
    const int64_t root = common == senders.end() ? senders[0] : *common;
    Team team{step.from->getSlice(root, step.info.mesh_axis)};
    step.root = std::ranges::find(team.devices, root) - team.devices.begin();
    step.teams = shared({std::move(team), receiversOf(step, root)});
    step.partial_axis = shardedAxis(in, step.info.mesh_axis)->logical;
  }

  using Teams = std::shared_ptr<const std::vector<Team>>;
  static Teams shared(std::vector<Team> teams) {
    return std::make_shared<const std::vector<Team>>(std::move(teams));
  }

  /// Teams along mesh axis `p` that have local devices; where none has, any other.
  Teams teamsAlong(const DeviceMesh& mesh, ParallelType p) {
    Teams& known = teams_[{&mesh, p}];
    if (known) return known;
    std::vector<Team> teams;
    for (const int64_t device : devices_) {
      if (!mesh.has(device)) continue;
      Team team{mesh.getSlice(device, p)};
      if (std::ranges::find(teams, team) == teams.end()) teams.push_back(std::move(team));
    }
    if (teams.empty()) teams.push_back({mesh.getSlice(mesh.at(0), p)});
    return known = shared(std::move(teams));
  }

  void planTeams(CommunicationStep& step, const TensorView* in, const TensorView* out,
                 bool takes_part) {
    const ParallelType p = step.info.mesh_axis;
    step.devices = step.from->size(p);
    const bool partial = step.info.kind == CommunicationKind::AllReduce ||
                         step.info.kind == CommunicationKind::ReduceScatter;
    step.teams = teamsAlong(*step.from, p);
    if (!takes_part) return;
    if (partial) {
      step.partial_axis = shardedAxis(in, p)->logical;
    } else {
      step.in = digitOf(in, p);
    }
    step.out = digitOf(out, p);
    if (step.isExchange()) {
      step.pieces = planExchange(in, out, evaluator().globalShape(in), lookup());
    }
  }

  /// Sizes on one device around the digit that tells devices apart on `p`.
  ShardDigit digitOf(const TensorView* tv, ParallelType p) const {
    const auto axis = shardedAxis(tv, p);
    if (!axis) return {};
    MESHFUSE_CHECK(!axis->through_merge, "communication: an axis of ", at(tv), " is divided over ",
                   p, " through a merged axis. Split one of the axes instead of the merged one.");
    const DomainSizes sizes = domainSizes(tv, evaluator().globalShape(tv), lookup());
    ShardDigit digit{.axis = axis->logical};
    int32_t id = axis->id;
    for (size_t i = 0; i < axis->path.size(); ++i, id = tv->domain().definition(id)->in[0]) {
      const Transform* t = tv->domain().definition(id);
      if (t->out[0] == id) {
        digit.inner *= sizes.localOf(t->out[1]);
      } else {
        digit.outer *= sizes.localOf(t->out[0]);
      }
    }
    digit.whole = digit.outer * digit.inner * tv->getDeviceMesh().size(p);
    const Transform* cut = tv->domain().definition(axis->id);
    if (axis->path.size() == 1 && tv->fusion()->uneven) {
      digit.whole = std::min(digit.whole, sizes.globalOf(cut->in[0]));
    }
    return digit;
  }

  void bindPositions(OpCall& call, const Expr* expr) const {
    OpCall::Places places;
    for (const TensorView* out : expr->outputs()) {
      places.global_sizes.push_back(evaluator().globalShape(out));
    }
    places.positions = [expr, sizes = places.global_sizes](size_t i, int64_t axis, int64_t device) {
      return globalPositions(expr->output(i), sizes[i], axis, device);
    };
    call.places_ = std::make_shared<const OpCall::Places>(std::move(places));
  }

  void bindScalars(Step& step) {
    OpCall& call = step.call;
    // Most calls have tensors alone, and need no memory for values.
    const bool has_values = std::ranges::any_of(call.args(), [](const Arg& arg) {
      return std::holds_alternative<Scalar>(arg) || std::holds_alternative<std::monostate>(arg) ||
             std::holds_alternative<std::vector<Scalar>>(arg);
    });
    if (has_values) {
      call.values_.resize(call.args().size());
      call.integers_.resize(call.args().size());
    }
    const std::vector<size_t> drawn = call.op().drawnParams();
    for (size_t p = 0; p < call.args().size(); ++p) {
      if (!call.has(p) && std::ranges::find(drawn, p) != drawn.end()) step.drawn.push_back(p);
      if (call.bindScalar(p, [&](Scalar s) { return evaluator().evaluateValue(s); })) continue;
      step.dynamic_scalars.push_back(p);
      plan_->has_dynamic_scalars = true;
    }
  }

  /// The plan's copy of a layout.
  const Layout* internLayout(Layout layout) {
    size_t hash = layout.sizes.size();
    for (const auto* list : {&layout.sizes, &layout.strides}) {
      for (const int64_t n : *list) hash = mixHash(hash, static_cast<uint64_t>(n));
    }
    const auto [first, last] = layouts_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (*it->second == layout) return it->second;
    }
    plan_->layouts.push_back(std::move(layout));
    return layouts_.emplace(hash, &plan_->layouts.back())->second;
  }

  void addOutput(const FusionOutput& output) {
    PlanOutput out;
    if (const auto* s = std::get_if<Scalar>(&output.value)) {
      out.scalar = *s;
      out.dtype = fusion_.scalars().dtype(*s);
      plan_->has_dynamic_scalars = true;
      plan_->outputs.push_back(out);
      return;
    }
    const auto* tv = std::get<TensorView*>(output.value);
    out.slot = slotOf(tv);
    out.dtype = tv->dtype();
    MESHFUSE_ASSERT(out.slot >= 0, tv->name(), " is an output that nothing computes");
    // A view may be the memory of an input or of another result, and the caller owns what it gets.
    // An input is returned itself, with the value that the program read: not where it takes
    // another.
    const bool shares_input = static_cast<size_t>(aliasOf(tv)) < input_of_slot_.size();
    const bool twice = output.alias == nullptr && !returned_.insert(aliasOf(tv)).second;
    const bool into_input = output.alias != nullptr;
    const bool itself = tv->isFusionInput() && !into_input && !isOverwritten(tv);
    out.copy = (shares_input && !itself) || twice;
    if (holds(tv->getDeviceMesh())) out.layout = localLayout(tv, evaluator());
    if (into_input) {
      checkAlias(tv, output.alias);
      out.alias_input = inputOf(output.alias);
      plan_->overwritten.push_back(out.alias_input);
    }
    if (tv->hasDeviceMesh() && !allHold(tv->getDeviceMesh())) {
      plan_->every_device_runs = false;
      out.mesh = &tv->getDeviceMesh();
      out.outside_sizes = outsideSizes(tv);
    }
    plan_->outputs.push_back(std::move(out));
  }

  bool isOverwritten(const TensorView* input) const {
    return std::ranges::any_of(fusion_.outputs(),
                               [&](const FusionOutput& output) { return output.alias == input; });
  }

  /// A result goes into an input's memory only where both have the same type and each device the
  /// same elements of both.
  void checkAlias(const TensorView* tv, const TensorView* input) {
    MESHFUSE_CHECK(tv->dtype() == input->dtype(), "add_output: ", at(tv), " is ", tv->dtype(),
                   " but ", input->name(), ", whose memory is to take it, is ", input->dtype(),
                   ". Cast the result first.");
    if (holds(tv->getDeviceMesh()) && holds(input->getDeviceMesh())) {
      const std::vector<int64_t> sizes = localLayout(tv, evaluator()).sizes;
      const std::vector<int64_t> taken = localLayout(input, evaluator()).sizes;
      MESHFUSE_CHECK(sizes == taken, "add_output: ", at(tv), " has local sizes ",
                     c10::IntArrayRef(sizes), " but ", input->name(),
                     ", whose memory is to take it, has ", c10::IntArrayRef(taken),
                     ". Alias an input of the same sizes and sharding.");
    }
    const auto device = deviceWithOtherElements(tv, input, evaluator().globalShape(tv));
    MESHFUSE_CHECK(!device, "add_output: device ", *device, " has other elements of ", at(tv),
                   " than of ", input->name(), ", whose memory is to take it: ", toString(tv),
                   " and ", toString(input), ". Give the result the input's mesh and sharding.");
    if (!holds(input->getDeviceMesh())) return;
    const int32_t i = inputOf(input);
    const auto& tensor = std::get<at::Tensor>(inputs_[static_cast<size_t>(i)]);
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
      MESHFUSE_CHECK(tensor.size(axis) <= 1 || tensor.stride(axis) != 0, "add_output: input ", i,
                     " (", at(input), ") is expanded along axis ", AtAxis{axis},
                     ", so a result cannot be written into it. Pass a contiguous tensor.");
    }
  }

  /// What a device outside the mesh returns: size 0 in every divided axis, in axis 0 when none is.
  std::vector<int64_t> outsideSizes(const TensorView* tv) {
    std::vector<int64_t> sizes;
    for (const int32_t i : tv->domain().withoutReductions(tv->domain().logical())) {
      sizes.push_back(
          evaluator().evaluate(tv->domain().id(i)->getMaybeExpandedExtent()).value_or(0));
    }
    if (sizes.empty()) return {0};
    bool sharded = false;
    for (const ParallelType p : kDeviceTypes) {
      const int64_t axis = getShardedLogicalAxis(tv, p);
      if (axis < 0) continue;
      sizes[static_cast<size_t>(axis)] = 0;
      sharded = true;
    }
    if (!sharded) sizes[0] = 0;
    return sizes;
  }

  void freeSlots() {
    std::vector<bool> kept(static_cast<size_t>(plan_->num_slots), false);
    for (const Slot s : plan_->inputs) {
      if (s >= 0) kept[static_cast<size_t>(s)] = true;
    }
    for (const PlanOutput& out : plan_->outputs) {
      if (out.slot >= 0) kept[static_cast<size_t>(out.slot)] = true;
    }
    for (size_t i = plan_->steps.size(); i-- > 0;) {
      Step& step = plan_->steps[i];
      for (const auto* list : {&step.in, &step.out}) {
        for (const Slot s : *list) {
          if (kept[static_cast<size_t>(s)]) continue;
          kept[static_cast<size_t>(s)] = true;
          step.free_after.push_back(s);
        }
      }
    }
  }

  Slot& slotOf(const TensorView* tv) { return slot_of_[static_cast<size_t>(tv->id())]; }
  /// Position of an input among those of the program.
  int32_t inputOf(const TensorView* tv) const {
    return input_of_slot_[static_cast<size_t>(slot_of_[static_cast<size_t>(tv->id())])];
  }
  Slot& aliasOf(const TensorView* tv) { return alias_of_[static_cast<size_t>(tv->id())]; }

  const Fusion& fusion_;
  std::span<const InputValue> inputs_;
  const PlanTarget& target_;
  std::span<const int64_t> devices_;
  int64_t device_count_;
  int64_t device_;                // whose sizes the plan is for; -1: those of all are equal
  std::vector<size_t> by_value_;  // scalar inputs whose value the plan depends on
  std::optional<c10::Device> input_device_;  // of the tensors of this process
  std::vector<Slot> slot_of_;
  std::vector<int32_t> input_of_slot_;  // inputs have the first slots
  std::vector<Slot> alias_of_;  // by tensor: slot of the input or result whose memory it may share
  std::unordered_multimap<size_t, const Layout*> layouts_;  // of the plan, by hash
  std::map<std::pair<const DeviceMesh*, ParallelType>, Teams> teams_;
  std::map<const DeviceMesh*, bool> all_hold_;
  std::unordered_set<Slot> returned_;  // memory that a result returned to the caller has
  std::vector<Expr*> exprs_;
  std::shared_ptr<Plan> plan_;
};

std::shared_ptr<const Plan> compile(std::shared_ptr<const Fusion> fusion,
                                    std::span<const InputValue> inputs, Signature signature,
                                    const PlanTarget& target) {
  return PlanBuilder(fusion, inputs, target).build(std::move(signature));
}

ExpressionEvaluator bindInputs(std::shared_ptr<const Fusion> fusion,
                               std::span<const InputValue> inputs, const PlanTarget& target) {
  return PlanBuilder(fusion, inputs, target).bindInputs();
}

}  // namespace meshfuse
