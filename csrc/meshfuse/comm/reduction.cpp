// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/reduction.h>

#include <type_traits>

#include <c10/core/ScalarType.h>

namespace meshfuse {
namespace {

// The last operand is the later term, so that -0 and NaN come out alike everywhere.
struct Add {
  template <class A>
  A operator()(A a, A b) const {
    return a + b;
  }
};
struct Multiply {
  template <class A>
  A operator()(A a, A b) const {
    return a * b;
  }
};
struct Smaller {
  template <class A>
  A operator()(A a, A b) const {
    return (a < b || a != a) ? a : b;  // a NaN on either side stays
  }
};
struct Larger {
  template <class A>
  A operator()(A a, A b) const {
    return (a > b || a != a) ? a : b;
  }
};
struct BitAnd {
  template <class A>
  A operator()(A a, A b) const {
    return static_cast<A>(a & b);
  }
};
struct BitOr {
  template <class A>
  A operator()(A a, A b) const {
    return static_cast<A>(a | b);
  }
};
struct BitXor {
  template <class A>
  A operator()(A a, A b) const {
    return static_cast<A>(a ^ b);
  }
};

template <class T>
inline constexpr bool kIsComplex = c10::is_complex<T>::value;

template <class A>
using RealOf = typename c10::scalar_value_type<A>::type;

template <class T>
struct Accumulator {
  // Sums of integers run unsigned: they wrap around, where signed overflow is undefined.
  using Type = std::conditional_t<std::is_integral_v<T>, uint64_t, float>;
};
template <>
struct Accumulator<double> {
  using Type = double;
};
template <>
struct Accumulator<c10::complex<c10::Half>> {
  using Type = c10::complex<float>;
};
template <>
struct Accumulator<c10::complex<float>> {
  using Type = c10::complex<float>;
};
template <>
struct Accumulator<c10::complex<double>> {
  using Type = c10::complex<double>;
};

struct Job {
  std::byte* out;
  std::span<const std::byte* const> terms;
  int64_t count;
  bool average;
};

constexpr int64_t kBlock = 256;

// `n` is a constant in all blocks but the last: then compilers turn the loops into vector code.
template <class T, class Acc, class Op, class Count>
void foldBlock(const Job& job, int64_t begin, Count n) {
  const auto term = [&](size_t t) { return reinterpret_cast<const T*>(job.terms[t]) + begin; };
  Acc acc[kBlock];
  const T* first = term(0);
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): Char is a number of 8 bits
  for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<Acc>(first[i]);
  for (size_t t = 1; t < job.terms.size(); ++t) {
    const T* next = term(t);
    for (int64_t i = 0; i < n; ++i) acc[i] = Op{}(acc[i], static_cast<Acc>(next[i]));
  }
  if constexpr (!std::is_integral_v<Acc>) {
    if (job.average) {
      const auto terms = static_cast<RealOf<Acc>>(job.terms.size());
      for (int64_t i = 0; i < n; ++i) acc[i] = acc[i] / terms;
    }
  }
  T* out = reinterpret_cast<T*>(job.out) + begin;
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(acc[i]);
}

template <class T, class Acc, class Op>
void fold(const Job& job) {
  int64_t begin = 0;
  for (; begin + kBlock <= job.count; begin += kBlock)
    foldBlock<T, Acc, Op>(job, begin, std::integral_constant<int64_t, kBlock>{});
  if (begin < job.count) foldBlock<T, Acc, Op>(job, begin, job.count - begin);
}

template <class T>
void foldKind(const Job& job, ReduceKind kind) {
  using Acc = typename Accumulator<T>::Type;
  constexpr bool kInteger = std::is_integral_v<T>;
  using Compared = std::conditional_t<kInteger, T, Acc>;
  switch (kind) {
    case ReduceKind::Sum:
      return fold<T, Acc, Add>(job);
    case ReduceKind::Prod:
      return fold<T, Acc, Multiply>(job);
    case ReduceKind::Avg:
      if constexpr (!kInteger) return fold<T, Acc, Add>(job);
      break;
    case ReduceKind::Min:
      if constexpr (!kIsComplex<T>) return fold<T, Compared, Smaller>(job);
      break;
    case ReduceKind::Max:
      if constexpr (!kIsComplex<T>) return fold<T, Compared, Larger>(job);
      break;
    case ReduceKind::And:
      if constexpr (kInteger) return fold<T, T, BitAnd>(job);
      break;
    case ReduceKind::Or:
      if constexpr (kInteger) return fold<T, T, BitOr>(job);
      break;
    case ReduceKind::Xor:
      if constexpr (kInteger) return fold<T, T, BitXor>(job);
      break;
  }
  MESHFUSE_ASSERT(false, "reduction ", name(kind), " was not refused");
}

// Bytes 0 and 1, which the operators of the other integers would leave.
void foldBool(const Job& job, ReduceKind kind) {
  switch (kind) {
    case ReduceKind::Sum:
    case ReduceKind::Max:
    case ReduceKind::Or:
      return fold<uint8_t, uint8_t, BitOr>(job);
    case ReduceKind::Prod:
    case ReduceKind::Min:
    case ReduceKind::And:
      return fold<uint8_t, uint8_t, BitAnd>(job);
    default:
      return foldKind<uint8_t>(job, kind);
  }
}

bool isBitwise(ReduceKind kind) {
  return kind == ReduceKind::And || kind == ReduceKind::Or || kind == ReduceKind::Xor;
}

}  // namespace

void checkReducible(std::string_view what, c10::ScalarType type, ReduceKind kind) {
  using c10::ScalarType;
  const bool integral = c10::isIntegralType(type, /*includeBool=*/true);
  const bool complex = c10::isComplexType(type);
  const bool floating = c10::isFloatingType(type) && type != ScalarType::Float4_e2m1fn_x2;
  MESHFUSE_CHECK(integral || complex || floating, what, ": tensors of type ", c10::toString(type),
                 " cannot be reduced, only moved. Cast them first, to Float for example.");
  const bool ordering = kind == ReduceKind::Min || kind == ReduceKind::Max;
  const bool defined = isBitwise(kind)           ? integral
                       : kind == ReduceKind::Avg ? !integral
                                                 : !(ordering && complex);
  MESHFUSE_CHECK(defined, what, ": reduction ", name(kind), " is not defined for type ",
                 c10::toString(type), ". ",
                 isBitwise(kind) ? "Use a tensor of integers or Bool."
                 : kind == ReduceKind::Avg
                     ? "Cast the tensor to a floating type first."
                     : "Complex numbers have no order; reduce by sum or prod.");
}

void reduceInOrder(std::byte* out, std::span<const std::byte* const> terms, int64_t count,
                   c10::ScalarType type, ReduceKind kind) {
  using c10::ScalarType;
  const Job job{out, terms, count, kind == ReduceKind::Avg};
  switch (type) {
    case ScalarType::Byte:
      return foldKind<uint8_t>(job, kind);
    case ScalarType::Char:
      return foldKind<int8_t>(job, kind);
    case ScalarType::Short:
      return foldKind<int16_t>(job, kind);
    case ScalarType::Int:
      return foldKind<int32_t>(job, kind);
    case ScalarType::Long:
      return foldKind<int64_t>(job, kind);
    case ScalarType::UInt16:
      return foldKind<uint16_t>(job, kind);
    case ScalarType::UInt32:
      return foldKind<uint32_t>(job, kind);
    case ScalarType::UInt64:
      return foldKind<uint64_t>(job, kind);
    case ScalarType::Half:
      return foldKind<c10::Half>(job, kind);
    case ScalarType::BFloat16:
      return foldKind<c10::BFloat16>(job, kind);
    case ScalarType::Float:
      return foldKind<float>(job, kind);
    case ScalarType::Double:
      return foldKind<double>(job, kind);
    case ScalarType::Float8_e4m3fn:
      return foldKind<c10::Float8_e4m3fn>(job, kind);
    case ScalarType::Float8_e4m3fnuz:
      return foldKind<c10::Float8_e4m3fnuz>(job, kind);
    case ScalarType::Float8_e5m2:
      return foldKind<c10::Float8_e5m2>(job, kind);
    case ScalarType::Float8_e5m2fnuz:
      return foldKind<c10::Float8_e5m2fnuz>(job, kind);
    case ScalarType::Float8_e8m0fnu:
      return foldKind<c10::Float8_e8m0fnu>(job, kind);
    case ScalarType::ComplexHalf:
      return foldKind<c10::complex<c10::Half>>(job, kind);
    case ScalarType::ComplexFloat:
      return foldKind<c10::complex<float>>(job, kind);
    case ScalarType::ComplexDouble:
      return foldKind<c10::complex<double>>(job, kind);
    case ScalarType::Bool:
      return foldBool(job, kind);
    default:
      MESHFUSE_ASSERT(false, "reduction of type ", c10::toString(type), " was not refused");
  }
}

}  // namespace meshfuse
