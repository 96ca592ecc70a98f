// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/eval/expression_evaluator.h>
#include <meshfuse/passes/communication.h>
#include <meshfuse/plan/agreement.h>
#include <meshfuse/text/ir_text.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <sstream>

namespace meshfuse {
namespace {

bool holds(const TensorView* tv, int64_t device) {
  return !tv->hasDeviceMesh() || tv->getDeviceMesh().has(device);
}

/// -1 where a size is not known: then no rank knows it.
std::vector<int64_t> globalSizes(const TensorView* tv, const ExpressionEvaluator& evaluator) {
  std::vector<int64_t> sizes;
  for (const int32_t axis : tv->domain().withoutReductions(tv->domain().logical()))
    sizes.push_back(evaluator.evaluate(tv->domain().id(axis)->extent()).value_or(-1));
  return sizes;
}

/// The devices that send or receive, in order; empty if no messages are needed.
Team communicatingDevices(const Fusion& fusion) {
  std::set<int64_t> devices;
  const auto add = [&](const TensorView* tv) {
    const auto& ids = tv->getDeviceMesh().vector();
    devices.insert(ids.begin(), ids.end());
  };
  for (const Expr* expr : fusion.exprs()) {
    const auto info = getCommunicationInfo(expr);
    if (!info || info->kind == CommunicationKind::LocalSlice) continue;
    add(expr->input(0));
    add(expr->output(0));
  }
  if (devices.size() < 2) return {};
  return {{devices.begin(), devices.end()}};
}

/// Axes of inputs that some members of the team don't hold, and whose sizes are not declared.
std::vector<ToldAxis> axesToTell(const Fusion& fusion, const Team& team) {
  std::vector<ToldAxis> told;
  for (size_t i = 0; i < fusion.inputs().size(); ++i) {
    const auto* tv = std::get_if<TensorView*>(&fusion.inputs()[i]);
    if (tv == nullptr ||
        std::ranges::all_of(team.devices, [&](int64_t device) { return holds(*tv, device); })) {
      continue;
    }
    const auto logical = (*tv)->domain().withoutReductions((*tv)->domain().logical());
    for (size_t axis = 0; axis < logical.size(); ++axis) {
      const IterDomain* id = (*tv)->domain().id(logical[axis]);
      const Scalar extent = id->getMaybeExpandedExtent();
      if (!fusion.scalars().constInt(extent))
        told.push_back({.input = i, .axis = static_cast<int64_t>(axis), .extent = extent});
    }
  }
  return told;
}

}  // namespace

bool ProgramAgreement::has(int64_t device) const {
  return std::ranges::find(team.devices, device) != team.devices.end();
}

ProgramAgreement makeProgramAgreement(const Fusion& fusion) {
  ProgramAgreement agreement{.team = communicatingDevices(fusion), .told = {}};
  if (agreement.team.devices.empty()) return agreement;
  agreement.told = axesToTell(fusion, agreement.team);
  for (const char c : irText(fusion))
    agreement.program = mixHash(agreement.program, static_cast<unsigned char>(c));
  return agreement;
}

std::vector<int64_t> sizesToTell(const Fusion& fusion, const ProgramAgreement& program,
                                 const ExpressionEvaluator& evaluator, int64_t device) {
  std::vector<int64_t> sizes;
  for (const ToldAxis& axis : program.told) {
    const auto* tv = std::get<TensorView*>(fusion.inputs()[axis.input]);
    sizes.push_back(holds(tv, device) ? evaluator.evaluate(axis.extent).value_or(-1) : -1);
  }
  return sizes;
}

uint64_t mixHash(uint64_t hash, uint64_t word) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ULL;  // of the golden ratio
  hash = (hash ^ word) * kPrime;
  return hash ^ std::rotl(hash, 31);
}

uint64_t mixHash(uint64_t hash, const ScalarValue& value) {
  hash = mixHash(hash, value.index());
  if (const auto* z = std::get_if<std::complex<double>>(&value)) {
    hash = mixHash(hash, std::bit_cast<uint64_t>(z->real()));
    return mixHash(hash, std::bit_cast<uint64_t>(z->imag()));
  }
  if (const auto* x = std::get_if<double>(&value))
    return mixHash(hash, std::bit_cast<uint64_t>(*x));
  if (const auto* b = std::get_if<bool>(&value)) return mixHash(hash, uint64_t{*b});
  return mixHash(hash, static_cast<uint64_t>(std::get<int64_t>(value)));
}

std::optional<PlanAgreement> makePlanAgreement(const Fusion& fusion,
                                               const ProgramAgreement& program,
                                               const ExpressionEvaluator& evaluator,
                                               int64_t device) {
  if (!program.has(device)) return std::nullopt;
  PlanAgreement agreement{.team = program.team, .fingerprints = {}};
  const auto& team = agreement.team.devices;
  agreement.fingerprints.assign(team.size(), program.program);
  for (size_t i = 0; i < fusion.inputs().size(); ++i) {
    const auto* tv = std::get_if<TensorView*>(&fusion.inputs()[i]);
    if (tv == nullptr || !holds(*tv, device)) continue;
    for (const int64_t size : globalSizes(*tv, evaluator)) {
      for (size_t m = 0; m < team.size(); ++m) {
        if (!holds(*tv, team[m])) continue;
        auto& fingerprint = agreement.fingerprints[m];
        fingerprint = mixHash(mixHash(fingerprint, i), static_cast<uint64_t>(size));
      }
    }
  }
  return agreement;
}

// --- Differences ---------------------------------------------------------------------------------

// One line per input (kind, name, and sizes or value; no sizes if other devices hold it), an empty
// line, and the IR text.
std::string describeExecution(const Fusion& fusion, const ExpressionEvaluator& evaluator,
                              std::span<const InputValue> inputs, int64_t device) {
  std::string text;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& declared = fusion.inputs()[i];
    if (const auto* tv = std::get_if<TensorView*>(&declared)) {
      text += concat("tensor\t", (*tv)->name());
      if (holds(*tv, device)) {
        text += '\t';
        for (const int64_t size : globalSizes(*tv, evaluator)) text += concat(' ', size);
      }
    } else {
      const auto s = std::get<Scalar>(declared);
      const auto value = exactValue(std::get<ScalarValue>(inputs[i]), fusion.scalars().dtype(s));
      text += concat("scalar\t", extentText(fusion, s), "\t", toString(value));
    }
    text += '\n';
  }
  return text + '\n' + irText(fusion);
}

namespace {

/// What a rank runs.
struct Description {
  int64_t rank = 0;
  std::vector<std::string> inputs, program;  // lines
};

Description parse(int64_t rank, const std::string& text) {
  Description out{.rank = rank, .inputs = {}, .program = {}};
  std::istringstream lines(text);
  std::vector<std::string>* part = &out.inputs;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() && part == &out.inputs) {
      part = &out.program;
    } else {
      part->push_back(line);
    }
  }
  return out;
}

/// "matmul" of "T2 = matmul(T0, T1): f32[...]"; "" of an input.
std::string operationIn(const std::string& line) {
  if (line.starts_with("return")) return "return";
  const size_t begin = line.find(" = "), end = line.find('(');
  const bool is_input = begin == std::string::npos || end == std::string::npos || end < begin;
  return is_input ? "" : line.substr(begin + 3, end - begin - 3);
}

/// The line without types.
std::string withoutTypes(const std::string& line) {
  const size_t end = line.find("): ");
  return end == std::string::npos ? line : line.substr(0, end + 1);
}

/// `key`: what to compare of a line; `shown`: what to print of it.
template <class Key, class Shown>
void compareLines(const Description& a, const Description& b, Key key, Shown shown) {
  for (size_t i = 0; i < std::max(a.program.size(), b.program.size()); ++i) {
    const bool in_a = i < a.program.size(), in_b = i < b.program.size();
    if (in_a && in_b && key(a.program[i]) == key(b.program[i])) continue;
    fail("execute: the ranks run different programs: line ", i + 1, " is \"",
         in_a ? shown(a.program[i]) : "", "\" on rank ", a.rank, ", but \"",
         in_b ? shown(b.program[i]) : "", "\" on rank ", b.rank,
         ". All ranks must execute the same programs in the same order. Nothing was "
         "communicated.");
  }
}

void compareProgram(const Description& a, const Description& b) {
  const auto whole = [](const std::string& line) { return line; };
  compareLines(a, b, operationIn, withoutTypes);
  compareLines(a, b, whole, whole);
}

struct InputLine {
  std::string kind, name, value;
  bool held = false;

  explicit InputLine(const std::string& line) {
    std::istringstream in(line);
    std::getline(in, kind, '\t');
    std::getline(in, name, '\t');
    std::getline(in, value);
    held = std::ranges::count(line, '\t') == 2;
  }
  std::vector<int64_t> sizes() const {
    std::istringstream in(value);
    return {std::istream_iterator<int64_t>(in), {}};
  }
};

std::string listText(const std::vector<int64_t>& sizes) {
  std::string list;
  for (const int64_t size : sizes) list += concat(list.empty() ? "" : ", ", size);
  return concat('[', list, ']');
}

/// Compares the sizes, or the value, that two ranks have for an input.
void compareInput(size_t position, const Description& a, const Description& b) {
  if (a.inputs[position] == b.inputs[position]) return;
  const InputLine of_a(a.inputs[position]), of_b(b.inputs[position]);
  if (!of_a.held || !of_b.held) return;
  MESHFUSE_CHECK(of_a.kind == "tensor", "execute: input ", position, " (", of_a.name, ") is ",
                 of_a.value, " on rank ", a.rank, ", but ", of_b.value, " on rank ", b.rank,
                 ". Give all ranks the same value. Nothing was communicated.");
  const auto sizes_a = of_a.sizes(), sizes_b = of_b.sizes();
  for (size_t axis = 0; axis < sizes_a.size(); ++axis) {
    MESHFUSE_CHECK(sizes_a[axis] == sizes_b[axis], "execute: axis ",
                   AtAxis{static_cast<int64_t>(axis)}, " of ", AtTensor{of_a.name}, " (input ",
                   position, ") has size ", sizes_a[axis], " on rank ", a.rank, ", but ",
                   sizes_b[axis], " on rank ", b.rank, "; its global sizes are ", listText(sizes_a),
                   " and ", listText(sizes_b),
                   ". Give all ranks parts of the same tensor. Nothing was communicated.");
  }
}

}  // namespace

void throwDisagreement(std::span<const int64_t> ranks, std::span<const std::string> texts) {
  std::vector<Description> all;
  all.reserve(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) all.push_back(parse(ranks[i], texts[i]));
  for (const Description& other : all) compareProgram(all.front(), other);
  for (size_t i = 0; i < all.front().inputs.size(); ++i) {
    for (const Description& a : all)
      for (const Description& b : all) compareInput(i, a, b);
  }
  fail("execute: the ranks are out of step: rank ", all.front().rank,
       " is in another execution of ", "the same program than rank ", all.back().rank,
       ". All ranks must execute the same programs in the same order.");
}

}  // namespace meshfuse
