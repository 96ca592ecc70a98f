// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/eval/allocation.h>
#include <meshfuse/ir/printer.h>
#include <meshfuse/ops/torch_types.h>
#include <meshfuse/passes/cause.h>
#include <meshfuse/passes/factor_path.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/plan/explain.h>
#include <meshfuse/schedule/sharding.h>

#include <map>

namespace meshfuse {
namespace {

/// The extents that are symbols, by their names in the text form and in printed axes.
std::map<std::string, Scalar> symbolsOf(Fusion& fusion) {
  std::map<std::string, Scalar> symbols;
  const auto add = [&](Scalar s) {
    if (!s || fusion.scalars().node(s).op != ScalarOp::Symbol) return;
    symbols[toString(fusion, s)] = s;
    symbols[extentText(fusion, s)] = s;
  };
  for (const TensorView* tv : fusion.usedTvs()) {
    for (const IterDomain* id : tv->getLogicalDomain()) add(id->getMaybeExpandedExtent());
  }
  for (const Val& in : fusion.inputs()) {
    if (const auto* s = std::get_if<Scalar>(&in)) add(*s);
  }
  return symbols;
}

class SizeBinder {
 public:
  SizeBinder(Fusion& fusion, ExpressionEvaluator& evaluator)
      : fusion_(fusion), evaluator_(evaluator), symbols_(symbolsOf(fusion)) {}

  void bind(const KnownSize& known) {
    if (known.is_shape) {
      bindShape(known);
      return;
    }
    const auto symbol = symbols_.find(known.name);
    MESHFUSE_CHECK(symbol != symbols_.end(), "explain: sizes names '", known.name,
                   "', which is no open size of the program. ", knownNames());
    evaluator_.bind(symbol->second, known.sizes.at(0), "sizes['" + known.name + "']");
  }

  /// Sizes that an operation needs to be equal to known ones are known too.
  void bindEqualSizes(std::span<Expr* const> exprs) {
    for (bool again = true; again;) {
      again = false;
      for (const Expr* expr : exprs) {
        for (const Constraint& c : expr->constraints()) {
          again = bindEqual(c.a, c.b) || bindEqual(c.b, c.a) || again;
        }
      }
    }
    for (const Expr* expr : exprs) evaluator_.checkConstraints(expr);
  }

 private:
  void bindShape(const KnownSize& known) {
    const TensorView* tv = nullptr;
    for (const Val& in : fusion_.inputs()) {
      const auto* input = std::get_if<TensorView*>(&in);
      if (input != nullptr && (*input)->name() == known.name) tv = *input;
    }
    MESHFUSE_CHECK(tv != nullptr, "explain: sizes names '", known.name,
                   "', which is no tensor input of the program. ", knownNames());
    const auto logical = tv->domain().withoutReductions(tv->domain().logical());
    MESHFUSE_CHECK(logical.size() == known.sizes.size(), "explain: ", known.sizes.size(),
                   " sizes are given for ", at(tv), ", which has ", logical.size(),
                   " axes. Give the global size of each axis.");
    for (size_t i = 0; i < logical.size(); ++i) {
      const Scalar extent = tv->domain().id(logical[i])->getMaybeExpandedExtent();
      const auto constant = fusion_.scalars().constInt(extent);
      MESHFUSE_CHECK(!constant || *constant == known.sizes[i], "explain: axis ",
                     AtAxis{static_cast<int64_t>(i)}, " of ", at(tv), " is given the size ",
                     known.sizes[i], " but declared with ", constant.value_or(0),
                     ". Give global sizes, as sim.run takes tensors, not those of one device.");
      if (constant) continue;
      evaluator_.bind(extent, known.sizes[i],
                      concat("axis ", i, " of ", tv->name(), ", as explain was given it,"));
    }
  }

  bool bindEqual(Scalar known, Scalar open) {
    const bool symbol = open && fusion_.scalars().node(open).op == ScalarOp::Symbol;
    if (!symbol || evaluator_.isKnown(open)) return false;
    const auto value = evaluator_.evaluate(known);
    if (!value) return false;
    evaluator_.bind(open, *value, "an operation that needs equal sizes");
    return true;
  }

  std::string knownNames() const {
    std::string text;
    for (const auto& [name, symbol] : symbols_) {
      if (name == toString(fusion_, symbol)) text += (text.empty() ? "" : ", ") + name;
    }
    return text.empty() ? "All its sizes are constants; leave sizes out."
                        : "Open sizes are: " + text + ".";
  }

  Fusion& fusion_;
  ExpressionEvaluator& evaluator_;
  std::map<std::string, Scalar> symbols_;
};

std::string nameOf(const Fusion& fusion, int32_t tensor) {
  return tensor < 0 ? "" : fusion.tensor(tensor)->name();
}

/// How `tv` is divided over `p`; nothing when it is whole.
std::optional<AxisSharding> shardingOver(const TensorView* tv, ParallelType p) {
  const auto axis = shardedAxis(tv, p);
  if (!axis) return std::nullopt;
  const ShardingOrigin origin = tv->splitOrigin(p);
  AxisSharding result{.mesh_axis = p,
                      .axis = axis->logical,
                      .partial = tv->domain().id(axis->id)->isRFactorProduct(),
                      .from = nameOf(*tv->fusion(), origin.tensor),
                      .factor = factorName(*tv->fusion(), origin)};
  if (result.partial) result.axis = -1;
  return result;
}

TensorFacts factsOf(const TensorView* tv) {
  const Fusion& fusion = *tv->fusion();
  TensorFacts facts{.name = tv->name(),
                    .mesh = tv->hasDeviceMesh() ? tv->getDeviceMesh().toString() : "",
                    .declared = tv->meshIsDeclared(),
                    .line = "",
                    .made_at = fusion.describe(tv->loc()),
                    .mesh_from = nameOf(fusion, tv->meshOrigin().tensor),
                    .sharding = {}};
  if (facts.declared) facts.line = fusion.describe(tv->annotationLoc());
  for (const ParallelType p : kDeviceTypes) {
    if (auto sharding = shardingOver(tv, p)) facts.sharding.push_back(std::move(*sharding));
  }
  return facts;
}

class Explainer {
 public:
  Explainer(const Fusion& fusion, std::span<const KnownSize> sizes)
      : user_tensors_(static_cast<int32_t>(fusion.tensors().size())), compiled_(fusion.clone()) {
    for (const std::string& pass : pipeline()) {
      if (pass == "check-strict") continue;  // explaining is what to do about its errors
      runPass(*compiled_, pass);
      if (pass == "propagate-sharding") propagated_ = compiled_->clone();
    }
    causes_.emplace(*propagated_);
    evaluator_.emplace(*compiled_);
    exprs_ = compiled_->exprs();
    SizeBinder binder(*compiled_, *evaluator_);
    for (const KnownSize& known : sizes) binder.bind(known);
    if (!sizes.empty()) binder.bindEqualSizes(exprs_);
  }

  ExplanationFacts run() {
    ExplanationFacts facts;
    for (const TensorView* tv : propagated_->usedTvs()) facts.tensors.push_back(factsOf(tv));
    for (const TensorView* tv : compiled_->usedTvs()) {
      if (tv->id() >= user_tensors_) facts.tensors.push_back(factsOfInserted(tv));
    }
    for (const Expr* expr : exprs_) {
      if (auto found = communication(expr)) facts.communications.push_back(std::move(*found));
    }
    return facts;
  }

 private:
  TensorFacts factsOfInserted(const TensorView* tv) const {
    TensorFacts facts = factsOf(tv);
    facts.declared = false;
    facts.line.clear();
    // Made for a communication: the one that gives it, or the one that sends it.
    const Expr* def = tv->definition();
    if (def == nullptr || !sentCommunication(def)) def = tv->uses().empty() ? def : tv->uses()[0];
    const Expr* user = def == nullptr ? nullptr : causes_->userOf(def);
    if (user != nullptr) facts.mesh_from = user->output(0)->name();
    return facts;
  }

  std::optional<CommunicationFacts> communication(const Expr* expr) {
    const auto info = sentCommunication(expr);
    if (!info) return std::nullopt;
    const TensorView *in = expr->input(0), *out = expr->output(0);
    const DeviceMesh& mesh = in->getDeviceMesh();
    const ParallelType p = info->mesh_axis;
    const Cause cause = causes_->causeFor(expr, p);
    CommunicationFacts facts{.kind = std::string(name(info->kind)),
                             .tensor = cause.tensor,
                             .op = cause.op,
                             .mesh_axis = p,
                             .mesh_axis_name = "",
                             .teams = teamsOf(mesh, out->getDeviceMesh(), p),
                             .before = shardingOver(in, p).value_or(AxisSharding{}),
                             .after = shardingOver(out, p).value_or(AxisSharding{}),
                             .sent = in->name(),
                             .bytes = 0,
                             .reason = cause.reason,
                             .lines = {}};
    if (!mesh.names().empty() && mesh.hasParallelType(p)) {
      facts.mesh_axis_name = mesh.names()[static_cast<size_t>(mesh.axisOf(p))];
    }
    facts.bytes = bytesSent(facts, in, out);
    for (const SourceLoc line : cause.lines) facts.lines.push_back(compiled_->describe(line));
    return facts;
  }

  static std::vector<std::vector<int64_t>> teamsOf(const DeviceMesh& from, const DeviceMesh& to,
                                                   ParallelType p) {
    std::vector<std::vector<int64_t>> teams;
    if (from == to && from.hasParallelType(p)) {
      for (const int64_t device : from.vector()) {
        std::vector<int64_t> slice = from.getSlice(device, p);
        if (slice.at(0) == device) teams.push_back(std::move(slice));
      }
      return teams;
    }
    std::vector<int64_t> all = from.vector();
    for (const int64_t device : to.vector()) {
      if (!from.has(device)) all.push_back(device);
    }
    return {all};
  }

  /// What is sent by one device of a team of d, by the least that a ring or a tree of messages
  /// needs. The largest number, where devices differ.
  int64_t bytesSent(const CommunicationFacts& facts, const TensorView* in,
                    const TensorView* out) const {
    const auto d = static_cast<int64_t>(facts.teams.at(0).size());
    requireSizes(in, facts);
    requireSizes(out, facts);
    const int64_t before = localBytes(in), after = localBytes(out);
    const std::string& kind = facts.kind;
    if (kind == "all-reduce") return share(2 * (d - 1), after, d);
    if (kind == "all-gather") return share(d - 1, after, d);
    if (kind == "broadcast") return after;
    if (kind == "gather" || kind == "reduce" || kind == "send-recv") return before;
    return share(d - 1, before, d);  // reduce-scatter, all-to-all, scatter
  }

  static int64_t share(int64_t parts, int64_t bytes, int64_t of) {
    return (parts * bytes + of - 1) / of;
  }

  int64_t localBytes(const TensorView* tv) const {
    auto bytes = static_cast<int64_t>(c10::elementSize(toScalarType(tv->dtype())));
    for (const int64_t n : localLayout(tv, *evaluator_).sizes) bytes *= n;
    return bytes;
  }

  void requireSizes(const TensorView* tv, const CommunicationFacts& facts) const {
    std::string open;
    for (const int32_t i : tv->domain().withoutReductions(tv->domain().logical())) {
      const Scalar extent = tv->domain().id(i)->getMaybeExpandedExtent();
      if (evaluator_->isKnown(extent)) continue;
      open += (open.empty() ? "" : ", ") + toString(*compiled_, extent);
    }
    MESHFUSE_CHECK(open.empty(), "explain: the bytes of the ", facts.kind, " for ",
                   AtTensor{facts.tensor}, " depend on sizes that the program leaves open: ", open,
                   ". Pass inputs=[...], global tensors as sim.run takes them, or "
                   "sizes={'T0': (4, 8)} or sizes={'T0.0': 4}.");
  }

  int32_t user_tensors_;
  std::unique_ptr<Fusion> compiled_, propagated_;
  std::optional<CommunicationCauses> causes_;
  std::optional<ExpressionEvaluator> evaluator_;
  std::vector<Expr*> exprs_;
};

}  // namespace

ExplanationFacts explain(const Fusion& fusion, std::span<const KnownSize> sizes) {
  return Explainer(fusion, sizes).run();
}

}  // namespace meshfuse
