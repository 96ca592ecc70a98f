// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ir/printer.h>

namespace meshfuse {
namespace {

/// Symbols count from 0 in order of creation, extents and others together.
std::string symbolName(const Fusion& fusion, Scalar s) {
  const ScalarPool& pool = fusion.scalars();
  int number = 0;
  for (int32_t id = 0; id < s.id; ++id) {
    if (pool.node(Scalar{id}).op == ScalarOp::Symbol) ++number;
  }
  const DataType type = pool.dtype(s);
  const char letter = isIntegral(type)           ? 'i'
                      : type == DataType::Bool   ? 'b'
                      : isComplex(type)          ? 'c'
                      : type == DataType::Double ? 'd'
                                                 : 'f';
  return letter + std::to_string(number);
}

std::string_view infix(ScalarOp op) {
  switch (op) {
    case ScalarOp::Add:
      return "+";
    case ScalarOp::Sub:
      return "-";
    case ScalarOp::Mul:
      return "*";
    case ScalarOp::Div:
    case ScalarOp::FloorDiv:
      return "/";
    case ScalarOp::Mod:
      return "%";
    default:
      return "";
  }
}

std::string constantText(const ScalarNode& node) {
  std::string value = toString(node.value);
  if (isIntegral(node.dtype) || node.dtype == DataType::Bool) return value;
  return std::string(cName(node.dtype)) + "(" + value + ")";
}

char typeLetter(IterType type) {
  switch (type) {
    case IterType::Reduction:
      return 'r';
    case IterType::Broadcast:
      return 'b';
    case IterType::Symbolic:
      return '?';
    default:
      return 'i';
  }
}

}  // namespace

std::string extentText(const Fusion& fusion, Scalar s) {
  const ScalarNode& node = fusion.scalars().node(s);
  if (node.op == ScalarOp::Const) return constantText(node);
  if (node.op == ScalarOp::Symbol) return symbolName(fusion, s);
  const std::string a = extentText(fusion, node.a);
  if (node.op == ScalarOp::Cast) return "( (" + std::string(cName(node.dtype)) + ") " + a + " )";
  if (arity(node.op) == 1) return "( " + std::string(name(node.op)) + "(" + a + ") )";
  const std::string b = extentText(fusion, node.b);
  if (const std::string_view op = infix(node.op); !op.empty()) {
    return "( " + a + " " + std::string(op) + " " + b + " )";
  }
  return "( " + std::string(name(node.op)) + "(" + a + ", " + b + ") )";
}

std::string toString(const IterDomain* id) {
  const Fusion& fusion = *id->tensor()->fusion();
  std::string text(1, typeLetter(id->iterType()));
  text += cName(id->getParallelType());
  text += std::to_string(id->number()) + "{" + extentText(fusion, id->extent());
  if (id->expandedExtent()) text += " ex " + extentText(fusion, id->expandedExtent());
  return text + (id->isRFactorProduct() ? "}rf" : "}");
}

std::string domainText(const TensorView* tv) {
  std::string text = "[";
  for (const IterDomain* id : tv->getLoopDomain()) {
    if (text.size() > 1) text += ", ";
    text += toString(id);
  }
  return text + "]";
}

std::string toString(const TensorView* tv) {
  const bool global = tv->isFusionInput() || tv->isFusionOutput();
  std::string text = tv->name() + (global ? "_g_" : "_l_") + std::string(cName(tv->dtype()));
  text += domainText(tv);
  if (tv->hasDeviceMesh()) text += " (" + tv->getDeviceMesh().toString() + ")";
  return text;
}

}  // namespace meshfuse
