// SPDX-License-Identifier: BSD-3-Clause
// Factor maps from formulas such as "...mk,...kn->...mn".
#include <meshfuse/base/error.h>
#include <meshfuse/ops/op_def.h>

#include <algorithm>

namespace meshfuse {
namespace {

constexpr int kEllipsis = 256;  // label of the innermost axis of "..."; the next ones count up

using Labels = SmallVector<int, 6>;

struct Term {
  Labels letters;  // kEllipsis stands for the whole "..."
  bool has_ellipsis = false;
};

struct Formula {
  std::vector<Term> operands;
  std::vector<Term> results;
  Labels blocking;
};

Formula parse(std::string_view text) {
  Formula formula;
  Term term;
  const auto arrow = text.find("->");
  MESHFUSE_ASSERT(arrow != std::string_view::npos, "formula '", text, "' has no arrow");
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      term.letters.push_back(kEllipsis);
      term.has_ellipsis = true;
      i += 2;
    } else if (text[i] == '!') {
      formula.blocking.push_back(term.letters.back());
    } else if (text[i] == ',' || i == arrow) {
      (i <= arrow ? formula.operands : formula.results).push_back(std::exchange(term, {}));
      if (i == arrow) ++i;
    } else {
      term.letters.push_back(text[i]);
    }
  }
  formula.results.push_back(std::move(term));
  return formula;
}

/// Labels of all axes of an operand of `ndim` axes.
Labels expand(const OpCall& call, const Term& term, size_t operand, int64_t ndim) {
  const auto named = static_cast<int64_t>(term.letters.size()) - (term.has_ellipsis ? 1 : 0);
  MESHFUSE_CHECK(term.has_ellipsis ? ndim >= named : ndim == named, call.op().name(), ": ",
                 at(call.tensors()[operand]), " has ", ndim, " axes, but ",
                 term.has_ellipsis ? "at least " : "", named,
                 " are needed. Give a tensor with that many axes.");
  Labels labels;
  for (const int letter : term.letters) {
    if (letter != kEllipsis) {
      labels.push_back(letter);
      continue;
    }
    for (int64_t i = ndim - named; i-- > 0;) labels.push_back(kEllipsis + static_cast<int>(i));
  }
  return labels;
}

/// Labels of all axes of a result whose "..." has `widest` axes.
Labels expandResult(const Term& term, int widest) {
  Labels labels;
  for (const int letter : term.letters) {
    if (letter != kEllipsis) {
      labels.push_back(letter);
      continue;
    }
    for (int i = widest; i-- > 0;) labels.push_back(kEllipsis + i);
  }
  return labels;
}

/// Name of a factor in messages: its letter, or the axis counted from the end. `named` is the
/// number of axes of the result after "...".
std::string labelText(int label, int named) {
  if (label < kEllipsis) return {static_cast<char>(label)};
  return "axis " + std::to_string(-1 - named - (label - kEllipsis));
}

}  // namespace

FactorMap einsum(const OpCall& call, std::string_view text) {
  const Formula formula = parse(text);
  MESHFUSE_ASSERT(formula.operands.size() == call.tensors().size(), "formula '", text, "' has ",
                  formula.operands.size(), " operands, the call ", call.tensors().size());
  std::vector<Labels> labels;
  Labels order;    // every label once, in order of appearance
  int widest = 0;  // axes of the widest "..."
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    labels.push_back(expand(call, formula.operands[i], i, call.tensors()[i]->ndim()));
    for (const int label : labels.back()) {
      if (std::ranges::find(order, label) == order.end()) order.push_back(label);
      if (label >= kEllipsis) widest = std::max(widest, label - kEllipsis + 1);
    }
  }
  std::vector<Labels> results;
  int named = 0;  // axes of a result after its "..."
  for (const Term& term : formula.results) {
    results.push_back(expandResult(term, widest));
    const auto dots = std::ranges::find(term.letters, kEllipsis);
    if (dots == term.letters.end()) continue;
    named = std::max(named, static_cast<int>(term.letters.end() - dots) - 1);
  }
  const auto isBlocking = [&](int label) {
    return std::ranges::find(formula.blocking, label) != formula.blocking.end();
  };
  const auto inResult = [&](int label) {
    return std::ranges::any_of(results, [&](const Labels& result) {
      return std::ranges::find(result, label) != result.end();
    });
  };
  FactorBuilder builder(call);
  SmallVector<std::optional<int32_t>, 6> factor_of(order.size());
  for (size_t l = 0; l < order.size(); ++l) {
    SmallVector<int64_t, 4> axes;
    for (const auto& operand : labels) {
      const auto it = std::ranges::find(operand, order[l]);
      axes.push_back(it == operand.end() ? -1 : it - operand.begin());
    }
    FactorKind kind = inResult(order[l]) ? FactorKind::Parallel : FactorKind::Reduction;
    if (isBlocking(order[l])) kind = FactorKind::Blocking;
    factor_of[l] = builder.factor(kind, axes, labelText(order[l], named));
  }
  for (size_t r = 0; r < results.size(); ++r) {
    if (r > 0) builder.nextResult();
    for (const int label : results[r]) {
      const auto it = std::ranges::find(order, label);
      MESHFUSE_ASSERT(it != order.end(), "result letter '", labelText(label, named),
                      "' is in no operand");
      builder.resultAxis(factor_of[static_cast<size_t>(it - order.begin())]);
    }
  }
  for (size_t l = 0; l < order.size(); ++l) {
    if (!inResult(order[l]) && !isBlocking(order[l]) && factor_of[l]) {
      builder.resultAxis(factor_of[l]);
    }
  }
  return builder.build();
}

}  // namespace meshfuse
