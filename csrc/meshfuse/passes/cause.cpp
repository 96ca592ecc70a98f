// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>
#include <meshfuse/passes/cause.h>
#include <meshfuse/passes/factor_path.h>
#include <meshfuse/passes/projection.h>

#include <algorithm>

namespace meshfuse {
namespace {

struct Disagreement {
  std::string text;
  std::vector<const TensorView*> tensors;
};

/// The user's tensor that a copy inserted by a pass stands for.
const TensorView* userTensor(const TensorView* tv) {
  while (tv->definition() != nullptr && tv->definition()->cause() &&
         tv->definition()->op().isIdentity()) {
    tv = tv->definition()->input(0);
  }
  return tv;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

bool divides(const OperandProjection& row, int32_t factor) {
  return row.split && std::ranges::find(row.split->factors, factor) != row.split->factors.end();
}

class Reader {
 public:
  Reader(const Expr* expr, ParallelType p)
      : expr_(expr), p_(p), axis_(pythonName(p)), rows_(project(expr, p)) {}

  Disagreement read() const {
    if (auto found = meshes()) return *found;
    if (auto found = sum()) return *found;
    if (auto found = unmapped()) return *found;
    if (auto found = split()) return *found;
    return {whyNotLocal(expr_, p_).value_or("its operands are divided in different ways"), {}};
  }

  /// Why the operand `tv` is resharded where the disagreement of others is not about it: another
  /// operand that is divided differently; nullopt where there is none.
  std::optional<Disagreement> readOperand(const TensorView* tv) const {
    const auto own = std::ranges::find_if(
        rows_, [&](const OperandProjection& row) { return !row.is_output && tensorOf(row) == tv; });
    if (own == rows_.end() || !own->split) return std::nullopt;
    for (const OperandProjection& other : rows_) {
      if (!other.split || other.split->key == own->split->key) continue;
      std::string text =
          concat(tensorOf(other)->name(), " splits ", quoted(other.split->factors[0]), " over ",
                 axis_, ", ", tv->name(), " splits ", quoted(own->split->factors[0]), " over it");
      return Disagreement{std::move(text), {tensorOf(other), tv}};
    }
    return std::nullopt;
  }

  /// Why the result of `local`, which computes this operation of operands that were resharded for
  /// it, is communicated over the mesh axis; nullopt where that cannot be told.
  std::optional<Disagreement> readResult(const Expr* local) const {
    const OperandProjection& out = rows_[expr_->inputs().size()];
    const std::vector<OperandProjection> local_rows = project(local, p_);
    std::vector<std::string> names;
    std::vector<const TensorView*> parts;
    int32_t summed = -1;
    for (size_t o = 0; o < local->inputs().size(); ++o) {
      const OperandProjection& row = local_rows[o];
      if (!row.split) continue;
      const int32_t f = row.split->factors[0];
      if (local->factors().factor(f).kind == FactorKind::Reduction) summed = f;
      const TensorView* tv = tensorOf(row);
      parts.push_back(tv);
      names.push_back(tv == row.tensor ? tv->name() : "the resharded " + tv->name());
    }
    parts.push_back(out.tensor);
    if (summed >= 0) return Disagreement{sumText(names, summed, out), std::move(parts)};
    const OperandProjection& made = local_rows[local->inputs().size()];
    if (names.empty() || !made.split) return std::nullopt;
    std::string text =
        concat(listed(names), names.size() > 1 ? " split " : " splits ",
               quoted(made.split->factors[0]), " over ", axis_, ", ", out.tensor->name(), " ");
    text += out.split ? concat("splits ", quoted(out.split->factors[0]), " over it")
                      : std::string("holds it whole");
    return Disagreement{std::move(text), std::move(parts)};
  }

 private:
  const FactorMap& map() const { return expr_->factors(); }
  std::string quoted(int32_t f) const { return "'" + factorName(expr_, f) + "'"; }
  static const TensorView* tensorOf(const OperandProjection& row) {
    return row.is_output ? row.tensor : userTensor(row.tensor);
  }

  std::optional<Disagreement> meshes() const {
    const TensorView* first = nullptr;
    for (const OperandProjection& row : rows_) {
      if (!row.tensor->hasDeviceMesh()) continue;
      const TensorView* tv = tensorOf(row);
      if (first == nullptr) first = tv;
      if (tv->getDeviceMesh() == first->getDeviceMesh()) continue;
      return Disagreement{concat(first->name(), " is on ", first->getDeviceMesh().toString(), ", ",
                                 tv->name(), " on ", tv->getDeviceMesh().toString()),
                          {first, tv}};
    }
    return std::nullopt;
  }

  /// All operands divide the factor that is summed.
  std::optional<Disagreement> sum() const {
    for (size_t f = 0; f < map().factors().size(); ++f) {
      const auto factor = static_cast<int32_t>(f);
      if (map().factor(factor).kind != FactorKind::Reduction) continue;
      std::vector<const TensorView*> parts = allThatDivide(factor);
      if (parts.empty()) continue;
      const OperandProjection& out = rows_[expr_->inputs().size()];
      std::vector<std::string> names;
      names.reserve(parts.size());
      for (const TensorView* tv : parts) names.push_back(tv->name());
      const std::string text = sumText(names, factor, out);
      parts.push_back(out.tensor);
      return Disagreement{text, std::move(parts)};
    }
    return std::nullopt;
  }

  /// The inputs that hold `factor`, if each divides it.
  std::vector<const TensorView*> allThatDivide(int32_t factor) const {
    std::vector<const TensorView*> parts;
    for (size_t o = 0; o < expr_->inputs().size(); ++o) {
      if (!holdsFactor(expr_, o, factor)) continue;
      if (!divides(rows_[o], factor)) return {};
      if (std::ranges::find(parts, tensorOf(rows_[o])) == parts.end()) {
        parts.push_back(tensorOf(rows_[o]));
      }
    }
    return parts;
  }

  std::string sumText(const std::vector<std::string>& names, int32_t factor,
                      const OperandProjection& out) const {
    std::string text =
        concat(listed(names), names.size() > 1 ? " split " : " splits ", quoted(factor), " over ",
               axis_, ", so ", out.tensor->name(), " is a sum over these devices");
    if (out.split) {
      text += concat(", and it splits ", quoted(out.split->factors[0]), " over them");
    }
    return text;
  }

  std::optional<Disagreement> unmapped() const {
    for (const OperandProjection& row : rows_) {
      if (!row.divides_unmapped) continue;
      return Disagreement{concat(tensorOf(row)->name(), " splits an axis over ", axis_,
                                 " that the other tensors do not have"),
                          {tensorOf(row)}};
    }
    return std::nullopt;
  }

  /// A tensor that divides a factor which another holds whole or divides otherwise.
  std::optional<Disagreement> split() const {
    for (const OperandProjection& row : rows_) {
      if (!row.split) continue;
      for (const int32_t f : row.split->factors) {
        const std::string first =
            concat(tensorOf(row)->name(), " splits ", quoted(f), " over ", axis_);
        if (map().factor(f).kind == FactorKind::Blocking) {
          return Disagreement{concat(first, ", which ", expr_->op().name(), " needs whole"),
                              {tensorOf(row)}};
        }
        for (size_t o = 0; o < rows_.size(); ++o) {
          const OperandProjection& other = rows_[o];
          const bool same = other.split && other.split->key == row.split->key;
          if (same || !holdsFactor(expr_, o, f)) continue;
          // The result of a sum does not hold the factor as an axis of its own.
          if (other.is_output && map().factor(f).kind == FactorKind::Reduction) continue;
          const TensorView* tv = tensorOf(other);
          std::string second = ", " + tv->name() + " ";
          if (divides(other, f)) {
            second += "splits it in another way";
          } else if (other.split) {
            second += concat("splits ", quoted(other.split->factors[0]), " over it");
          } else {
            second += "holds it whole";
          }
          return Disagreement{first + second, {tensorOf(row), tv}};
        }
      }
    }
    return std::nullopt;
  }

  const Expr* expr_;
  ParallelType p_;
  std::string_view axis_;
  std::vector<OperandProjection> rows_;
};

/// The recorded cause of an operation that a pass inserted, or that a pass has cut in two: the
/// first half makes partial results, which the inserted second half sums.
std::shared_ptr<const Cause> causeOfUser(const Expr* expr) {
  if (expr->cause()) return expr->cause();
  const TensorView* out = expr->output(0);
  const bool partial = std::ranges::any_of(out->getLogicalDomain(), &IterDomain::isRFactorProduct);
  if (partial && out->uses().size() == 1) return out->uses()[0]->cause();
  return nullptr;
}

/// The operation that computes what `communication` sends, where that is one of its own: what a
/// communication gives was resharded as an operand.
const Expr* computed(const Expr* communication) {
  const Expr* local = communication->input(0)->definition();
  const bool own = local != nullptr && !local->op().isIdentity() && local->inputs().size() > 0;
  return own ? local : nullptr;
}

Cause causeFrom(Disagreement found, const Expr* expr, ParallelType p, const Fusion& fusion) {
  Cause cause{expr->op().name(), expr->output(0)->name(), std::move(found.text), {}};
  if (const auto known = causeOfUser(expr)) {
    cause.op = known->op;
    cause.tensor = known->tensor;
  }
  const auto add = [&](SourceLoc loc) {
    const std::string text = fusion.describe(loc);
    const bool known = std::ranges::any_of(
        cause.lines, [&](SourceLoc other) { return fusion.describe(other) == text; });
    if (!text.empty() && !known) cause.lines.push_back(loc);
  };
  for (const TensorView* tv : found.tensors) add(annotationOf(tv, p));
  add(expr->loc());
  return cause;
}

}  // namespace

std::optional<CommunicationInfo> sentCommunication(const Expr* expr) {
  auto info = getCommunicationInfo(expr);
  if (info && info->kind == CommunicationKind::LocalSlice) info.reset();
  return info;
}

SourceLoc annotationOf(const TensorView* tv, ParallelType p) {
  const Fusion& fusion = *tv->fusion();
  for (size_t steps = 0; steps <= fusion.tensors().size(); ++steps) {
    if (tv->meshIsDeclared()) return tv->annotationLoc();
    int32_t from = tv->splitOrigin(p).tensor;
    if (from < 0) from = tv->meshOrigin().tensor;
    if (from < 0) break;
    tv = fusion.tensor(from);
  }
  return {};
}

Cause causeOf(const Expr* expr, ParallelType p, const Fusion& fusion) {
  return causeFrom(Reader(expr, p).read(), expr, p, fusion);
}

CommunicationCauses::CommunicationCauses(const Fusion& before) : before_(before) {
  for (const TensorView& tv : before.tensors()) by_name_.try_emplace(tv.name(), tv.definition());
}

const Expr* CommunicationCauses::definitionOf(const TensorView* tv) const {
  const auto id = static_cast<size_t>(tv->id());
  if (id < before_.tensors().size()) return before_.tensor(tv->id())->definition();
  const auto it = by_name_.find(tv->name());  // a new tensor that took the place of an old one
  return it == by_name_.end() ? nullptr : it->second;
}

const Expr* CommunicationCauses::userOf(const Expr* communication) const {
  if (communication->cause()) {
    const auto it = by_name_.find(communication->cause()->tensor);
    if (it != by_name_.end() && it->second != nullptr) return it->second;
  }
  // What was inserted leads to the user's operation that reads it.
  const TensorView* tv = communication->output(0);
  const Expr* user = definitionOf(tv);
  while (user == nullptr && !tv->uses().empty()) {
    tv = tv->uses()[0]->output(0);
    user = definitionOf(tv);
  }
  return user;
}

const TensorView* CommunicationCauses::inProgramBefore(const TensorView* tv) const {
  const auto id = static_cast<size_t>(tv->id());
  return id < before_.tensors().size() ? before_.tensor(tv->id()) : nullptr;
}

Cause CommunicationCauses::causeFor(const Expr* communication, ParallelType p) const {
  if (const Expr* user = userOf(communication)) {
    const Reader reader(user, p);
    Disagreement found = reader.read();
    const Expr* local = computed(communication);
    const TensorView* about = user->output(0);
    if (local == nullptr) about = inProgramBefore(userTensor(communication->input(0)));
    if (about != nullptr && std::ranges::find(found.tensors, about) == found.tensors.end()) {
      std::optional<Disagreement> other;
      if (local == nullptr) {
        other = reader.readOperand(about);
      } else if (&local->op() == &user->op() && local->inputs().size() == user->inputs().size()) {
        other = reader.readResult(local);
      }
      if (other) found = std::move(*other);
    }
    return causeFrom(std::move(found), user, p, before_);
  }
  if (communication->cause()) return *communication->cause();
  return causeOf(communication, p, *communication->output(0)->fusion());
}

}  // namespace meshfuse
