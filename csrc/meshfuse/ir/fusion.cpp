// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ir/fusion.h>

#include <algorithm>
#include <functional>
#include <queue>

namespace meshfuse {
namespace {
thread_local std::vector<Fusion*> active_fusions;

size_t indexOf(const Expr* expr) { return static_cast<size_t>(expr->id()); }

/// Marks the operations that the outputs need, by id. Operations mostly come after those that they
/// read, so that one walk through memory, backwards, finds nearly all.
std::vector<uint8_t> neededExprs(const std::deque<Expr>& exprs,
                                 const std::vector<FusionOutput>& outputs) {
  std::vector<uint8_t> needed(exprs.size(), 0);
  std::vector<const Expr*> late;  // marked after the walk had passed them
  size_t place = exprs.size();
  const auto need = [&](const TensorView* tv) {
    const Expr* def = tv->definition();
    if (def == nullptr || needed[indexOf(def)] != 0) return;
    needed[indexOf(def)] = 1;
    if (indexOf(def) >= place) late.push_back(def);
  };
  for (const FusionOutput& out : outputs) {
    if (const auto* tv = std::get_if<TensorView*>(&out.value)) need(*tv);
  }
  while (place > 0 || !late.empty()) {
    const Expr* expr = nullptr;
    if (late.empty()) {
      expr = &exprs[--place];
      if (needed[place] == 0) continue;
    } else {
      expr = late.back();
      late.pop_back();
    }
    for (const TensorView* in : expr->inputs()) need(in);
  }
  return needed;
}

/// The needed operations, producers first; of several that are ready the one created first.
std::vector<Expr*> inOrder(const std::deque<Expr>& exprs, const std::vector<uint8_t>& needed) {
  std::vector<Expr*> order;
  order.reserve(exprs.size());
  std::vector<uint8_t> done(exprs.size(), 0);
  std::vector<int32_t> missing(exprs.size(), 0);  // of those passed over: producers not taken yet
  size_t blocked = 0;                             // how many were passed over
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;  // no longer blocked
  const auto countMissing = [&](const Expr& expr) {
    ExprList producers;
    for (const TensorView* in : expr.inputs()) {
      Expr* def = in->definition();
      if (def == nullptr || done[indexOf(def)] != 0) continue;
      if (std::ranges::find(producers, def) == producers.end()) producers.push_back(def);
    }
    return static_cast<int32_t>(producers.size());
  };
  const auto take = [&](size_t i) {
    Expr* expr = const_cast<Expr*>(&exprs[i]);
    order.push_back(expr);
    done[i] = 1;
    if (blocked == 0) return;
    ExprList seen;
    for (const TensorView* out : expr->outputs()) {
      for (Expr* use : out->uses()) {
        int32_t& count = missing[indexOf(use)];
        if (count == 0 || std::ranges::find(seen, use) != seen.end()) continue;
        seen.push_back(use);
        if (--count > 0) continue;
        --blocked;
        ready.push(indexOf(use));
      }
    }
  };
  for (size_t next = 0; next < exprs.size() || !ready.empty();) {
    if (!ready.empty()) {
      const size_t i = ready.top();
      ready.pop();
      take(i);
      continue;
    }
    const size_t i = next++;
    if (needed[i] == 0) continue;
    missing[i] = countMissing(exprs[i]);
    if (missing[i] == 0) {
      take(i);
    } else {
      ++blocked;
    }
  }
  MESHFUSE_ASSERT(blocked == 0, "the operations form a cycle");
  return order;
}

}  // namespace

FusionGuard::FusionGuard(Fusion* fusion) { active_fusions.push_back(fusion); }
FusionGuard::~FusionGuard() { active_fusions.pop_back(); }
Fusion* FusionGuard::getCurFusion() {
  return active_fusions.empty() ? nullptr : active_fusions.back();
}

TensorView* Fusion::newTensor(DataType dtype) {
  bumpVersion();
  TensorView& tv = tensors_.emplace_back(this, static_cast<int32_t>(tensors_.size()), dtype);
  tv.setLoc(current_loc);
  return &tv;
}

size_t FactorMap::hash() const {
  size_t hash = factors_.size();
  const auto mix = [&](size_t word) { hash = (hash ^ word) * 0x9E3779B97F4A7C15ull; };
  for (const Factor& f : factors_) {
    mix((static_cast<size_t>(f.extent.id) << 8) | static_cast<size_t>(f.kind));
  }
  for (const auto* list : {&operands_, &axes_, &flat_}) {
    for (const int32_t i : *list) mix(static_cast<size_t>(i));
  }
  return hash ^ (hash >> 32);
}

std::shared_ptr<const FactorMap> Fusion::internFactors(FactorMap factors) {
  const size_t hash = factors.hash();
  const auto [first, last] = factor_maps_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (*it->second == factors) return it->second;
  }
  return factor_maps_.emplace(hash, std::make_shared<const FactorMap>(std::move(factors)))->second;
}

Expr* Fusion::newExpr(const OpDef* op, std::vector<Arg> args, TensorViews inputs,
                      TensorViews outputs, FactorMap factors, std::vector<Constraint> constraints) {
  bumpVersion();
  Expr& expr = exprs_.emplace_back(static_cast<int32_t>(exprs_.size()), op);
  expr.args_ = std::move(args);
  expr.inputs_ = std::move(inputs);
  expr.factors_ = internFactors(std::move(factors));
  expr.constraints_ = std::move(constraints);
  expr.loc_ = current_loc;
  for (TensorView* in : expr.inputs_) {
    if (in->uses_.empty() || in->uses_.back() != &expr) in->uses_.push_back(&expr);
  }
  replaceOutputs(&expr, std::move(outputs));
  return &expr;
}

void Fusion::replaceOutputs(Expr* expr, TensorViews outputs) {
  bumpVersion();
  for (TensorView* old : expr->outputs_) old->definition_ = nullptr;
  expr->outputs_ = std::move(outputs);
  for (TensorView* out : expr->outputs_) out->definition_ = expr;
}

void Fusion::replaceInput(Expr* expr, TensorView* before, TensorView* now) {
  bumpVersion();
  for (Arg& arg : expr->args_) {
    if (auto* tv = std::get_if<TensorView*>(&arg); tv != nullptr && *tv == before) *tv = now;
    if (auto* list = std::get_if<std::vector<TensorView*>>(&arg)) {
      std::ranges::replace(*list, before, now);
    }
  }
  std::ranges::replace(expr->inputs_, before, now);
  if (const auto use = std::ranges::find(before->uses_, expr); use != before->uses_.end()) {
    before->uses_.erase(use);
  }
  if (std::ranges::find(now->uses_, expr) == now->uses_.end()) now->uses_.push_back(expr);
}

void Fusion::checkOwn(const TensorView* tv, const char* what) const {
  MESHFUSE_CHECK(tv != nullptr && tv->fusion() == this, what, ": ",
                 tv == nullptr ? AtTensor{"no tensor"} : at(tv),
                 " belongs to another definition. Use tensors of this one.");
}

void Fusion::addInput(Val value) {
  bumpVersion();
  if (auto* tv = std::get_if<TensorView*>(&value)) {
    checkOwn(*tv, "add_input");
    MESHFUSE_CHECK(!(*tv)->isFusionInput(), "add_input: ", at(*tv),
                   " is an input already. Add each tensor once.");
    MESHFUSE_CHECK((*tv)->definition() == nullptr, "addInput: ", at(*tv),
                   " is the result of an operation. Only tensors made by define_tensor can be "
                   "inputs.");
    (*tv)->input_ = true;
  }
  inputs_.push_back(value);
}

void Fusion::addOutput(Val value) {
  bumpVersion();
  if (auto* tv = std::get_if<TensorView*>(&value)) {
    checkOwn(*tv, "add_output");
    (*tv)->output_ = true;
  }
  outputs_.push_back({value, nullptr});
}

void Fusion::aliasOutputToInput(TensorView* output, TensorView* input) {
  bumpVersion();
  checkOwn(output, "add_output");
  checkOwn(input, "add_output");
  MESHFUSE_CHECK(input->isFusionInput(), "add_output: ", at(input),
                 " is not an input of the fusion, so ", output->name(),
                 " cannot be written into it. Alias an input.");
  for (const FusionOutput& other : outputs_) {
    MESHFUSE_CHECK(other.alias != input, "add_output: ", at(input),
                   " takes another result already, so ", output->name(),
                   " cannot be written into it as well. Alias each input once.");
  }
  output->output_ = true;
  outputs_.push_back({output, input});
}

void Fusion::replaceOutput(TensorView* before, TensorView* now) {
  bumpVersion();
  for (FusionOutput& out : outputs_) {
    if (out.value == Val(before)) out.value = now;
  }
  before->output_ = false;
  now->output_ = true;
}

std::vector<Expr*> Fusion::exprs() const {
  const std::vector<uint8_t> needed = neededExprs(exprs_, outputs_);
  return inOrder(exprs_, needed);
}

std::vector<TensorView*> Fusion::allTvs() {
  std::vector<TensorView*> out;
  out.reserve(tensors_.size());
  for (TensorView& tv : tensors_) out.push_back(&tv);
  return out;
}

std::vector<TensorView*> Fusion::usedTvs() {
  std::vector<uint8_t> used(tensors_.size(), 0);
  const auto mark = [&](const Val& v) {
    if (const auto* tv = std::get_if<TensorView*>(&v)) used[static_cast<size_t>((*tv)->id())] = 1;
  };
  for (const Val& in : inputs_) mark(in);
  for (const FusionOutput& out : outputs_) mark(out.value);
  const std::vector<uint8_t> needed = neededExprs(exprs_, outputs_);
  for (const Expr& expr : exprs_) {
    if (needed[indexOf(&expr)] == 0) continue;
    for (TensorView* tv : expr.inputs()) mark(tv);
    for (TensorView* tv : expr.outputs()) mark(tv);
  }
  std::vector<TensorView*> list;
  for (TensorView& tv : tensors_) {
    if (used[static_cast<size_t>(tv.id())] != 0) list.push_back(&tv);
  }
  return list;
}

const DeviceMesh* Fusion::internMesh(const DeviceMesh& mesh) {
  for (const DeviceMesh& known : meshes_) {
    if (known == mesh && known.names() == mesh.names()) return &known;
  }
  return &meshes_.emplace_back(mesh);
}

std::unique_ptr<Fusion> Fusion::clone() const {
  auto copy = std::make_unique<Fusion>();
  copy->scalars_ = scalars_;
  copy->files_ = files_;
  copy->strict = strict;
  copy->uneven = uneven;
  copy->reduce_dtype = reduce_dtype;
  std::unordered_map<const DeviceMesh*, const DeviceMesh*> meshes;
  for (const TensorView& tv : tensors_) {
    TensorView& now = copy->tensors_.emplace_back(copy.get(), tv.id_, tv.dtype_);
    now.input_ = tv.input_;
    now.output_ = tv.output_;
    now.cpu_scalar_ = tv.cpu_scalar_;
    now.mesh_declared_ = tv.mesh_declared_;
    now.name_ = tv.name_;
    now.loc_ = tv.loc_;
    now.annotation_loc_ = tv.annotation_loc_;
    if (tv.origins_) now.origins_ = std::make_unique<TensorView::Origins>(*tv.origins_);
    now.domain_.copyFrom(*copy, &now, tv.domain_);
    if (tv.mesh_ != nullptr) {
      const DeviceMesh*& mesh = meshes[tv.mesh_];
      if (mesh == nullptr) mesh = copy->internMesh(*tv.mesh_);
      now.mesh_ = mesh;
    }
  }
  const auto map = [&](const TensorView* tv) { return copy->tensor(tv->id()); };
  const auto mapAll = [&](auto& list) {
    for (TensorView*& tv : list) tv = map(tv);
  };
  for (const Expr& expr : exprs_) {
    Expr& now = copy->exprs_.emplace_back(expr.id_, expr.op_);
    now.args_ = expr.args_;
    for (Arg& arg : now.args_) {
      if (auto* tv = std::get_if<TensorView*>(&arg)) *tv = map(*tv);
      if (auto* list = std::get_if<std::vector<TensorView*>>(&arg)) mapAll(*list);
    }
    now.inputs_ = expr.inputs_;
    now.outputs_ = expr.outputs_;
    mapAll(now.inputs_);
    mapAll(now.outputs_);
    now.factors_ = expr.factors_;
    now.constraints_ = expr.constraints_;
    now.loc_ = expr.loc_;
    now.cause_ = expr.cause_;
    for (size_t i = 0; i < now.outputs_.size(); ++i) {
      if (expr.outputs_[i]->definition_ == &expr) now.outputs_[i]->definition_ = &now;
    }
  }
  for (const TensorView& tv : tensors_) {
    for (const Expr* use : tv.uses_) {
      map(&tv)->uses_.push_back(&copy->exprs_[static_cast<size_t>(use->id())]);
    }
  }
  const auto mapVal = [&](const Val& v) -> Val {
    const auto* tv = std::get_if<TensorView*>(&v);
    return tv == nullptr ? v : Val(map(*tv));
  };
  copy->inputs_.reserve(inputs_.size());
  for (const Val& in : inputs_) copy->inputs_.push_back(mapVal(in));
  for (const FusionOutput& out : outputs_) {
    copy->outputs_.push_back({mapVal(out.value), out.alias == nullptr ? nullptr : map(out.alias)});
  }
  copy->version_ = version_;
  return copy;
}

int32_t Fusion::internFile(const std::string& file) {
  // Calls come mostly from the file seen last.
  for (size_t i = files_.size(); i-- > 0;) {
    if (files_[i] == file) return static_cast<int32_t>(i);
  }
  files_.push_back(file);
  return static_cast<int32_t>(files_.size()) - 1;
}

std::string Fusion::describe(SourceLoc loc) const {
  if (loc.file < 0) return "";
  return files_[static_cast<size_t>(loc.file)] + ":" + std::to_string(loc.line);
}

}  // namespace meshfuse
