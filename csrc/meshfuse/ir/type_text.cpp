// SPDX-License-Identifier: BSD-3-Clause
// Scalars and types in the text form.
#include <meshfuse/ir/printer.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

namespace meshfuse {
namespace {

/// Prints scalars and types of one Fusion; `names` may be null.
class TypePrinter {
 public:
  TypePrinter(const Fusion& fusion, const TextNames* names) : fusion_(fusion), names_(names) {}

  std::string scalar(Scalar s, std::optional<DataType> plain_int) const {
    const ScalarNode& node = fusion_.scalars().node(s);
    if (node.op == ScalarOp::Const) return constant(node, plain_int);
    if (node.op == ScalarOp::Symbol) return symbol(s, node);
    // The constants inside an expression are extents as a rule, also in an argument.
    const auto inner = plain_int ? std::optional(DataType::Index) : std::nullopt;
    std::string a = scalar(node.a, inner);
    if (node.op == ScalarOp::Cast)
      return "cast(" + a + ", " + std::string(textName(node.dtype)) + ")";
    std::string text = std::string(name(node.op)) + "(";
    if (arity(node.op) == 1) return text + a + ")";
    std::string b = scalar(node.b, inner);
    if (commutes(node)) {
      // The order of handles depends on what else the program made; that of texts does not.
      const ScalarPool& pool = fusion_.scalars();
      const auto key = [&](Scalar x, const std::string& t) {
        return std::pair(pool.isConst(x), t);
      };
      if (key(node.b, b) < key(node.a, a)) std::swap(a, b);
    }
    return text + a + ", " + b + ")";
  }

  std::string operand(Scalar s, DataType plain_int) const {
    const bool atom = arity(fusion_.scalars().node(s).op) == 0;
    return atom ? scalar(s, plain_int) : "(" + scalar(s, plain_int) + ")";
  }

  std::string root(const TensorView* tv) const {
    std::string text = std::string(textName(tv->dtype())) + "[";
    for (const int32_t i : tv->domain().root()) {
      if (text.back() != '[') text += ", ";
      text += id(tv->domain(), i);
    }
    return text + "]";
  }

  std::string type(const TensorView* tv) const {
    std::string text = root(tv);
    if (tv->isCpuScalar()) text += " cpu";
    std::string list;
    for (const std::string& item : items(tv->domain())) list += (list.empty() ? "" : "; ") + item;
    if (!list.empty()) text += " { " + list + " }";
    if (!tv->getDeviceMesh().empty()) text += " " + mesh(tv->getDeviceMesh());
    return text;
  }

 private:
  static bool commutes(const ScalarNode& node) {
    return isIntegral(node.dtype) && (node.op == ScalarOp::Add || node.op == ScalarOp::Mul ||
                                      node.op == ScalarOp::Min || node.op == ScalarOp::Max);
  }

  static std::string constant(const ScalarNode& node, std::optional<DataType> plain_int) {
    std::string text;
    DataType plain = DataType::Double;
    if (const auto* d = std::get_if<double>(&node.value)) {
      text = doubleText(*d);
    } else if (const auto* c = std::get_if<std::complex<double>>(&node.value)) {
      text = "complex(" + doubleText(c->real()) + ", " + doubleText(c->imag()) + ")";
      plain = DataType::ComplexDouble;
    } else if (std::holds_alternative<bool>(node.value)) {
      text = toString(node.value);
      plain = DataType::Bool;
    } else {
      text = toString(node.value);
      plain = plain_int.value_or(node.dtype);
    }
    if (plain_int && node.dtype != plain) text += ":" + std::string(textName(node.dtype));
    return text;
  }

  std::string symbol(Scalar s, const ScalarNode& node) const {
    if (node.tensor >= 0) {
      const auto t = static_cast<size_t>(node.tensor);
      const std::string tensor = names_ != nullptr && t < names_->tensors.size()
                                     ? names_->tensors[t]
                                     : fusion_.tensor(node.tensor)->name();
      return tensor + "." + std::to_string(node.axis);
    }
    if (names_ != nullptr) {
      if (const auto it = names_->scalars.find(s.id); it != names_->scalars.end())
        return it->second;
    }
    return "s" + std::to_string(node.number);
  }

  static std::string idref(const TensorDomain& domain, int32_t i) {
    static constexpr std::array<char, 4> kLetters = {'i', 'r', 'b', 's'};
    return kLetters[static_cast<size_t>(domain.id(i)->iterType())] + std::to_string(i);
  }

  std::string id(const TensorDomain& domain, int32_t i) const {
    const IterDomain* axis = domain.id(i);
    std::string text = idref(domain, i) + "{" + operand(axis->extent(), DataType::Index);
    if (axis->expandedExtent()) text += " exp " + operand(axis->expandedExtent(), DataType::Index);
    text += '}';
    // Those that the transforms of the definition made are so by rule.
    if (axis->isRFactorProduct() && domain.definition(i) == nullptr) text += "rf";
    if (axis->isParallelized()) text += "@" + std::string(textName(axis->getParallelType()));
    if (axis->isSwizzled()) text += " swizzle " + std::string(textName(axis->swizzle()));
    return text;
  }

  static std::string idrefs(std::string_view word, const TensorDomain& domain,
                            const AxisList& list) {
    std::string text(word);
    for (const int32_t i : list) text += " " + idref(domain, i);
    return text;
  }

  std::string transform(const TensorDomain& domain, const Transform& t) const {
    std::string text = id(domain, t.out[0]);
    if (t.kind == Transform::Split) {
      text += ", " + id(domain, t.out[1]) + " = split " + idref(domain, t.in[0]);
      return text + (t.inner ? " inner " : " outer ") + operand(t.factor, DataType::Index);
    }
    return text + " = merge " + idref(domain, t.in[0]) + " " + idref(domain, t.in[1]);
  }

  std::vector<std::string> items(const TensorDomain& domain) const {
    std::vector<std::string> list;
    const size_t definition = domain.hasRoot() ? domain.definitionTransforms() : 0;
    list.reserve(definition);
    for (size_t i = 0; i < definition; ++i) {
      list.push_back(transform(domain, domain.transforms()[i]));
    }
    if (domain.hasRoot()) list.push_back(idrefs("logical", domain, domain.logical()));
    for (size_t i = definition; i < domain.transforms().size(); ++i) {
      list.push_back(transform(domain, domain.transforms()[i]));
    }
    if (domain.loop() != defaultLoop(domain)) list.push_back(idrefs("loop", domain, domain.loop()));
    if (std::string text = allocation(domain); !text.empty()) list.push_back(std::move(text));
    return list;
  }

  static std::string allocation(const TensorDomain& domain) {
    std::string text;
    if (domain.hasAllocation()) {
      text = domain.allocation() == domain.loop() ? "alloc loop"
                                                  : idrefs("alloc", domain, domain.allocation());
    }
    const Contiguity plain = domain.uniformContiguity(domain.allocation(), true);
    if (domain.contiguity() == plain) return text;
    if (text.empty()) text = "alloc";
    text += " contig";
    for (const std::optional<bool> flag : domain.contiguity()) {
      text += !flag ? " n" : *flag ? " t" : " f";
    }
    return text;
  }

  static std::string mesh(const DeviceMesh& mesh) {
    std::string text = "mesh(";
    for (size_t i = 0; i < mesh.shape().size(); ++i) {
      text += i > 0 ? ", " : "";
      text += textName(kDeviceTypes[mesh.shape().size() - 1 - i]);
      text += "=" + std::to_string(mesh.shape()[i]);
      if (!mesh.names().empty()) text += " " + quoted(mesh.names()[i]);
    }
    std::vector<int64_t> plain(mesh.vector().size());
    std::iota(plain.begin(), plain.end(), 0);
    if (mesh.vector() != plain) {
      text += ':';
      for (const int64_t device : mesh.vector()) text += " " + std::to_string(device);
    }
    return text + ")";
  }

  const Fusion& fusion_;
  const TextNames* names_;
};

}  // namespace

std::string doubleText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string scalarText(const Fusion& fusion, Scalar s, const TextNames& names, DataType plain_int) {
  return TypePrinter(fusion, &names).scalar(s, plain_int);
}

std::string scalarOperandText(const Fusion& fusion, Scalar s, const TextNames& names,
                              DataType plain_int) {
  return TypePrinter(fusion, &names).operand(s, plain_int);
}

std::string toString(const Fusion& fusion, Scalar s) {
  return TypePrinter(fusion, nullptr).scalar(s, std::nullopt);
}

std::string typeText(const TensorView* tv, const TextNames& names) {
  return TypePrinter(*tv->fusion(), &names).type(tv);
}

std::string typeText(const TensorView* tv) { return TypePrinter(*tv->fusion(), nullptr).type(tv); }

std::string rootText(const TensorView* tv, const TextNames& names) {
  return TypePrinter(*tv->fusion(), &names).root(tv);
}

AxisList defaultLoop(const TensorDomain& domain) {
  AxisList loop = domain.logical();
  const auto transforms = domain.transforms();
  for (size_t i = domain.hasRoot() ? domain.definitionTransforms() : 0; i < transforms.size();
       ++i) {
    const Transform& t = transforms[i];
    const auto first = std::ranges::find(loop, t.in[0]);
    if (first == loop.end()) continue;
    if (t.kind == Transform::Split) {
      *first = t.out[0];
      loop.insert(first + 1, t.out[1]);
      continue;
    }
    const auto second = std::ranges::find(loop, t.in[1]);
    if (second == loop.end()) continue;
    *std::min(first, second) = t.out[0];
    loop.erase(std::max(first, second));
  }
  return loop;
}

}  // namespace meshfuse
