// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/text/type_reader.h>

#include <numeric>

namespace meshfuse {
namespace {

/// Number of an axis name such as "i12", or nullopt.
std::optional<int32_t> axisNumber(const std::string& name) {
  constexpr size_t kMaxDigits = 9;
  if (name.size() < 2 || name.size() > 1 + kMaxDigits) return std::nullopt;
  if (std::string_view("irbs").find(name[0]) == std::string_view::npos) return std::nullopt;
  int32_t number = 0;
  for (const char c : name.substr(1)) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + (c - '0');
  }
  return number;
}

class TypeReader {
 public:
  TypeReader(TokenReader& in, ScalarReader& scalars) : in_(in), scalars_(scalars) {}

  void rest(TypeText& type) {
    type.is_tensor = in_.accept("[");
    if (!type.is_tensor) return;
    while (!in_.isSymbol("]")) {
      if (!type.root.empty()) in_.expect(",");
      type.root.push_back(axis());
    }
    in_.expect("]");
    type.cpu = in_.acceptWord("cpu");
    if (in_.accept("{")) {
      do type.items.push_back(item());
      while (in_.accept(";"));
      in_.expect("}");
    }
    if (in_.isWord("mesh") && in_.peek(1).text == "(") type.mesh = mesh();
  }

 private:
  bool atAxis() const { return in_.is(TokenKind::Name) && axisNumber(in_.peek().text).has_value(); }

  AxisRef axisRef() {
    if (!atAxis()) in_.expected("an axis such as i0, r1 or b2");
    const Token token = in_.next();
    return {token, token.text[0], *axisNumber(token.text)};
  }

  AxisText axis() {
    AxisText text;
    text.ref = axisRef();
    in_.expect("{");
    text.extent = scalars_.extent();
    if (in_.acceptWord("exp")) text.expanded = scalars_.extent();
    in_.expect("}");
    text.rfactor = in_.acceptWord("rf");
    if (in_.accept("@")) text.parallel = parallelType();
    if (in_.acceptWord("swizzle")) text.swizzle = meshAxis();
    return text;
  }

  ParallelType parallelType() {
    for (int i = 0; i < kNumParallelTypes; ++i) {
      const auto p = static_cast<ParallelType>(i);
      if (p != ParallelType::Serial && in_.acceptWord(textName(p))) return p;
    }
    in_.expected("a parallel type such as x, y, z or stream");
  }

  ParallelType meshAxis() {
    for (const ParallelType p : kDeviceTypes) {
      if (in_.acceptWord(textName(p))) return p;
    }
    in_.expected("a mesh axis (z, y or x)");
  }

  ItemText item() {
    ItemText item;
    item.at = in_.peek();
    if (in_.acceptWord("logical")) {
      item.kind = ItemText::Logical;
      item.axes = axisList();
    } else if (in_.acceptWord("loop")) {
      item.kind = ItemText::Loop;
      item.axes = axisList();
    } else if (in_.acceptWord("alloc")) {
      allocation(item);
    } else if (atAxis()) {
      transform(item);
    } else {
      in_.expected("a transform, 'logical', 'loop' or 'alloc'");
    }
    return item;
  }

  std::vector<AxisRef> axisList() {
    std::vector<AxisRef> list;
    while (atAxis()) list.push_back(axisRef());
    return list;
  }

  void allocation(ItemText& item) {
    item.kind = ItemText::Alloc;
    item.as_loop = in_.acceptWord("loop");
    if (!item.as_loop) item.axes = axisList();
    item.has_flags = in_.acceptWord("contig");
    while (item.has_flags && (in_.isWord("t") || in_.isWord("f") || in_.isWord("n"))) {
      item.flags.push_back(in_.next());
    }
    if (!item.as_loop && item.axes.empty() && !item.has_flags) {
      in_.expected("'loop', axes or 'contig'");
    }
  }

  void transform(ItemText& item) {
    item.out.push_back(axis());
    const bool two = in_.accept(",");
    if (two) item.out.push_back(axis());
    in_.expect("=");
    if (two) {
      if (!in_.acceptWord("split")) in_.expected("'split'");
      item.axes.push_back(axisRef());
      item.inner = in_.acceptWord("inner");
      if (!item.inner && !in_.acceptWord("outer")) in_.expected("'outer' or 'inner'");
      item.factor = scalars_.extent(1);
      return;
    }
    item.kind = ItemText::Merge;
    if (!in_.acceptWord("merge")) in_.expected("'merge'");
    item.axes.push_back(axisRef());
    item.axes.push_back(axisRef());
  }

  DeviceMesh mesh() {
    const Token at = in_.next();
    in_.expect("(");
    std::vector<int64_t> shape, devices;
    std::vector<std::string> axes, names;
    int64_t count = 1;
    do {
      axes.push_back(in_.expectName("a mesh axis (z, y or x)").text);
      in_.expect("=");
      const Token size = in_.peek();
      shape.push_back(in_.expectInt("a number of devices"));
      const bool fits = shape.back() > 0 && shape.back() <= kMaxDevices;
      count = fits ? count * shape.back() : kMaxDevices + 1;
      if (count > kMaxDevices) {
        in_.fault(size, "a mesh has from 1 to " + std::to_string(kMaxDevices) +
                            " devices. Use another number");
      }
      if (in_.is(TokenKind::String)) names.push_back(in_.next().text);
    } while (in_.accept(","));
    checkAxes(at, axes);
    if (in_.accept(":")) {
      while (in_.is(TokenKind::Int)) devices.push_back(in_.expectInt("a device"));
    } else {
      devices.resize(static_cast<size_t>(count));
      std::iota(devices.begin(), devices.end(), 0);
    }
    in_.expect(")");
    try {
      return DeviceMesh(devices, shape, names);
    } catch (const Error& error) {
      throw Error(concat("parseIr: line ", at.line, ", column ", at.column, ": ", error.what()));
    }
  }

  static void checkAxes(const Token& at, const std::vector<std::string>& axes) {
    std::string expected;
    for (size_t i = 0; i < axes.size() && i < kDeviceTypes.size(); ++i) {
      expected.insert(0, std::string(textName(kDeviceTypes[i])) + (i > 0 ? ", " : ""));
    }
    std::string found;
    for (const std::string& axis : axes) found += (found.empty() ? "" : ", ") + axis;
    if (found == expected) return;
    TokenReader::fault(at, "a mesh has the axes " + found + ". Name " +
                               (axes.size() > kDeviceTypes.size() ? "at most z, y, x" : expected) +
                               ", the outermost first");
  }

  TokenReader& in_;
  ScalarReader& scalars_;
};

}  // namespace

void readTypeRest(TokenReader& in, ScalarReader& scalars, TypeText& type) {
  TypeReader(in, scalars).rest(type);
}

TypeText readType(TokenReader& in, ScalarReader& scalars) {
  TypeText type;
  type.at = in.peek();
  type.dtype = scalars.dataType();
  readTypeRest(in, scalars, type);
  return type;
}

}  // namespace meshfuse
