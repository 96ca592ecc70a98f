// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/base/scalar.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace meshfuse {
namespace {

struct OpRow {
  ScalarOp op;
  int arity;
  std::string_view name;
};
constexpr std::array<OpRow, 17> kOps = {{
    {ScalarOp::Const, 0, "const"},
    {ScalarOp::Symbol, 0, "symbol"},
    {ScalarOp::Add, 2, "add"},
    {ScalarOp::Sub, 2, "sub"},
    {ScalarOp::Mul, 2, "mul"},
    {ScalarOp::CeilDiv, 2, "ceilDiv"},
    {ScalarOp::FloorDiv, 2, "floorDiv"},
    {ScalarOp::Mod, 2, "mod"},
    {ScalarOp::Min, 2, "min"},
    {ScalarOp::Max, 2, "max"},
    {ScalarOp::Div, 2, "div"},
    {ScalarOp::Neg, 1, "neg"},
    {ScalarOp::Cast, 1, "cast"},
    {ScalarOp::Exp, 1, "exp"},
    {ScalarOp::Tanh, 1, "tanh"},
    {ScalarOp::Sqrt, 1, "sqrt"},
    {ScalarOp::Rsqrt, 1, "rsqrt"},
}};

using Complex = std::complex<double>;

Complex toComplex(const ScalarValue& v) {
  if (const auto* c = std::get_if<Complex>(&v)) return *c;
  return {toDouble(v), 0.0};
}

int64_t checkedInt(ScalarOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case ScalarOp::Add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case ScalarOp::Sub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case ScalarOp::Mul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case ScalarOp::Min:
      return a < b ? a : b;
    case ScalarOp::Max:
      return a < b ? b : a;
    default: {
      MESHFUSE_CHECK(b != 0, name(op), ": ", a,
                     " is divided by zero. Use a divisor that is not 0.");
      if (a == std::numeric_limits<int64_t>::min() && b == -1) {
        overflow = op != ScalarOp::Mod;
        break;
      }
      const int64_t q = a / b, r = a % b;
      if (op == ScalarOp::Div) return q;  // truncates, as C does
      const bool signs_differ = (r != 0) && ((r < 0) != (b < 0));
      if (op == ScalarOp::FloorDiv) return q - (signs_differ ? 1 : 0);
      if (op == ScalarOp::Mod) return signs_differ ? r + b : r;
      return q + ((r != 0 && !signs_differ) ? 1 : 0);  // CeilDiv
    }
  }
  MESHFUSE_CHECK(!overflow, name(op), ": the result of ", a, " and ", b,
                 " does not fit in 64 bits. Use smaller sizes.");
  return result;
}

double realOp(ScalarOp op, double a, double b) {
  switch (op) {
    case ScalarOp::Add:
      return a + b;
    case ScalarOp::Sub:
      return a - b;
    case ScalarOp::Mul:
      return a * b;
    case ScalarOp::Div:
      return a / b;
    case ScalarOp::FloorDiv:
      return std::floor(a / b);
    case ScalarOp::CeilDiv:
      return std::ceil(a / b);
    case ScalarOp::Mod:
      return a - b * std::floor(a / b);
    case ScalarOp::Min:
      return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
    case ScalarOp::Max:
      return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
    case ScalarOp::Neg:
      return -a;
    case ScalarOp::Exp:
      return std::exp(a);
    case ScalarOp::Tanh:
      return std::tanh(a);
    case ScalarOp::Sqrt:
      return std::sqrt(a);
    case ScalarOp::Rsqrt:
      return 1.0 / std::sqrt(a);
    default:
      MESHFUSE_ASSERT(false, "scalar ", name(op), " has no value");
  }
}

Complex complexOp(ScalarOp op, Complex a, Complex b) {
  switch (op) {
    case ScalarOp::Add:
      return a + b;
    case ScalarOp::Sub:
      return a - b;
    case ScalarOp::Mul:
      return a * b;
    case ScalarOp::Div:
      return a / b;
    case ScalarOp::Neg:
      return -a;
    case ScalarOp::Exp:
      return std::exp(a);
    case ScalarOp::Tanh:
      return std::tanh(a);
    case ScalarOp::Sqrt:
      return std::sqrt(a);
    case ScalarOp::Rsqrt:
      return 1.0 / std::sqrt(a);
    default:
      fail("scalar ", name(op), " is not defined for complex numbers.");
  }
}

bool isFloatFunction(ScalarOp op) { return op >= ScalarOp::Exp; }

DataType resultType(ScalarOp op, DataType a, DataType b) {
  const DataType t = promoteTypes(a, b);
  if (isFloatFunction(op) && !isComplex(t) && !isFloating(t)) return DataType::Double;
  if (t == DataType::Bool) return DataType::Int;
  return t;
}

}  // namespace

int arity(ScalarOp op) { return kOps[static_cast<size_t>(op)].arity; }
std::string_view name(ScalarOp op) { return kOps[static_cast<size_t>(op)].name; }
std::optional<ScalarOp> scalarOpFromName(std::string_view text) {
  for (const OpRow& row : kOps) {
    if (row.arity > 0 && row.name == text) return row.op;
  }
  return std::nullopt;
}

double toDouble(const ScalarValue& v) {
  return std::visit(
      [](auto x) -> double {
        if constexpr (std::is_same_v<decltype(x), Complex>) {
          return x.real();
        } else {
          return static_cast<double>(x);
        }
      },
      v);
}

int64_t toInt(const ScalarValue& v) {
  if (const auto* i = std::get_if<int64_t>(&v)) return *i;
  if (const auto* b = std::get_if<bool>(&v)) return *b ? 1 : 0;
  return static_cast<int64_t>(toDouble(v));
}

DataType dtypeOf(const ScalarValue& v) {
  constexpr std::array<DataType, 4> kByIndex = {DataType::Int, DataType::Double, DataType::Bool,
                                                DataType::ComplexDouble};
  return kByIndex[v.index()];
}

std::string toString(const ScalarValue& v) {
  std::ostringstream out;
  if (const auto* b = std::get_if<bool>(&v)) {
    out << (*b ? "true" : "false");
  } else if (const auto* d = std::get_if<double>(&v)) {
    out.precision(17);
    out << *d;
  } else {
    std::visit([&](auto x) { out << x; }, v);
  }
  return out.str();
}

ScalarValue castValue(const ScalarValue& value, DataType dtype) {
  if (isComplex(dtype)) return toComplex(value);
  if (dtype == DataType::Bool) {
    if (const auto* c = std::get_if<Complex>(&value)) return *c != Complex{};
    if (const auto* d = std::get_if<double>(&value)) return *d != 0.0;
    return toInt(value) != 0;
  }
  if (isFloating(dtype)) return toDouble(value);
  return toInt(value);
}

ScalarValue exactValue(const ScalarValue& value, DataType dtype) {
  const auto* complex = std::get_if<Complex>(&value);
  const double real = toDouble(value);
  bool fits = complex == nullptr || isComplex(dtype) || dtype == DataType::Null;
  const auto inRange = [&](double low, double high) {
    return std::holds_alternative<bool>(value) || (real >= low && real <= high);
  };
  if (isIntegral(dtype)) {
    const bool whole = !std::holds_alternative<double>(value) || real == std::floor(real);
    const bool bits64 = std::holds_alternative<int64_t>(value) || std::abs(real) < 0x1p63;
    fits = fits && whole && bits64;
    if (dtype == DataType::Int32) fits = fits && inRange(-0x1p31, 0x1p31 - 1);
    if (dtype == DataType::UInt64) fits = fits && real >= 0;
  } else if (isFloating(dtype) && std::isfinite(real)) {
    const double limit = dtype == DataType::Float || dtype == DataType::BFloat16
                             ? std::numeric_limits<float>::max()
                             : std::numeric_limits<double>::max();
    fits = fits && inRange(-limit, limit);
    if (dtype == DataType::Half) fits = fits && inRange(-65504, 65504);
  }
  MESHFUSE_CHECK(fits, "Scalar value ", toString(value),
                 " is not compatible with the expected data type: ", dtype,
                 ". Give a number that the type can hold.");
  return castValue(value, dtype);
}

ScalarValue evaluateOp(ScalarOp op, DataType dtype, const ScalarValue& a, const ScalarValue& b) {
  if (op == ScalarOp::Cast) return castValue(a, dtype);
  if (isComplex(dtype)) return complexOp(op, toComplex(a), toComplex(b));
  if (isFloating(dtype)) return realOp(op, toDouble(a), toDouble(b));
  if (op == ScalarOp::Neg) return checkedInt(ScalarOp::Sub, 0, toInt(a));
  return checkedInt(op, toInt(a), toInt(b));
}

Scalar ScalarPool::intern(Key key, const ScalarNode& node) {
  const auto [it, inserted] = index_.try_emplace(key, static_cast<int32_t>(nodes_.size()));
  if (inserted) nodes_.push_back(node);
  return {it->second};
}

Scalar ScalarPool::constant(ScalarValue value, DataType dtype) {
  MESHFUSE_CHECK(dtype != DataType::Null, "define_scalar: dtype is Null. Name a data type.");
  value = castValue(value, dtype);
  ScalarNode node{.op = ScalarOp::Const, .dtype = dtype, .value = value};
  uint64_t bits = 0;
  if (const auto* c = std::get_if<Complex>(&value)) {
    // Two doubles do not fit in the key next to the type; complex constants are not shared.
    bits = 0xC000000000000000ull + nodes_.size();
    (void)c;
  } else if (const auto* d = std::get_if<double>(&value)) {
    bits = std::bit_cast<uint64_t>(*d);
  } else {
    bits = std::bit_cast<uint64_t>(toInt(value));
  }
  const uint64_t tag =
      (uint64_t{1} << 56) | (uint64_t{value.index()} << 8) | static_cast<uint64_t>(dtype);
  return intern({tag, bits}, node);
}

Scalar ScalarPool::extentSymbol(int32_t tensor, int32_t axis) {
  ScalarNode node{.op = ScalarOp::Symbol, .dtype = DataType::Index, .tensor = tensor, .axis = axis};
  const uint64_t bits =
      (static_cast<uint64_t>(static_cast<uint32_t>(tensor)) << 32) | static_cast<uint32_t>(axis);
  return intern({uint64_t{2} << 56, bits}, node);
}

Scalar ScalarPool::symbol(DataType dtype) {
  MESHFUSE_CHECK(dtype != DataType::Null, "define_scalar: dtype is Null. Name a data type.");
  ScalarNode node{.op = ScalarOp::Symbol, .dtype = dtype, .number = symbols_++};
  return intern({uint64_t{3} << 56, static_cast<uint64_t>(node.number)}, node);
}

std::optional<int64_t> ScalarPool::constInt(Scalar s) const {
  if (!isConst(s)) return std::nullopt;
  const auto* value = std::get_if<int64_t>(&node(s).value);
  if (value == nullptr) return std::nullopt;
  return *value;
}

Scalar ScalarPool::binary(ScalarOp op, Scalar a, Scalar b) {
  MESHFUSE_ASSERT(a && b, "scalar ", name(op), " without an operand");
  const DataType dtype = resultType(op, node(a).dtype, node(b).dtype);
  const auto ca = constInt(a), cb = constInt(b);
  const bool integers = isIntegral(dtype);
  const bool divides = op == ScalarOp::CeilDiv || op == ScalarOp::FloorDiv || op == ScalarOp::Mod ||
                       op == ScalarOp::Div;
  MESHFUSE_CHECK(!integers || !divides || cb != 0, name(op),
                 ": division by zero. Use a divisor that is not 0.");
  if (isConst(a) && isConst(b)) {
    return constant(evaluateOp(op, dtype, node(a).value, node(b).value), dtype);
  }
  // Sizes may be numbers of any integer type: 1 * x is x where that does not change the type.
  if (op == ScalarOp::Mul && integers) {
    if (ca == 1 && node(b).dtype == dtype) return b;
    if (cb == 1 && node(a).dtype == dtype) return a;
  }
  if (integers && node(a).dtype == node(b).dtype) {
    switch (op) {
      case ScalarOp::Add:
        if (ca == 0) return b;
        if (cb == 0) return a;
        break;
      case ScalarOp::Sub:
        if (cb == 0) return a;
        break;
      case ScalarOp::Mul:
        if (ca == 1 || cb == 0) return b;
        if (cb == 1 || ca == 0) return a;
        break;
      case ScalarOp::CeilDiv:
      case ScalarOp::FloorDiv:
        if (cb == 1) return a;
        // An extent over itself; an extent of zero makes this 1 as well, which only an empty
        // tensor can tell from 0.
        if (a == b) return constant(ScalarValue(int64_t{1}), dtype);
        break;
      case ScalarOp::Min:
      case ScalarOp::Max:
        if (a == b) return a;
        break;
      default:
        break;
    }
  }
  const bool commutes =
      op == ScalarOp::Add || op == ScalarOp::Mul || op == ScalarOp::Min || op == ScalarOp::Max;
  if (integers && commutes && b.id < a.id) std::swap(a, b);
  ScalarNode result{.op = op, .dtype = dtype, .a = a, .b = b};
  const uint64_t bits =
      (static_cast<uint64_t>(static_cast<uint32_t>(a.id)) << 32) | static_cast<uint32_t>(b.id);
  return intern({(uint64_t{4} << 56) | static_cast<uint64_t>(op), bits}, result);
}

Scalar ScalarPool::unary(ScalarOp op, Scalar a) {
  const DataType dtype = resultType(op, node(a).dtype, node(a).dtype);
  if (isConst(a)) return constant(evaluateOp(op, dtype, node(a).value, node(a).value), dtype);
  ScalarNode result{.op = op, .dtype = dtype, .a = a};
  return intern({(uint64_t{5} << 56) | static_cast<uint64_t>(op), static_cast<uint64_t>(a.id)},
                result);
}

Scalar ScalarPool::cast(Scalar a, DataType dtype) {
  if (node(a).dtype == dtype) return a;
  if (isConst(a)) return constant(castValue(node(a).value, dtype), dtype);
  ScalarNode result{.op = ScalarOp::Cast, .dtype = dtype, .a = a};
  const uint64_t tag = (uint64_t{6} << 56) | static_cast<uint64_t>(dtype);
  return intern({tag, static_cast<uint64_t>(a.id)}, result);
}

}  // namespace meshfuse
