// SPDX-License-Identifier: BSD-3-Clause
// One block of four words serves the elements whose numbers differ in the last bits only: four of
// 32 bits, or two of 64 (Double). Box-Muller makes two normal values of two uniform ones, and these
// belong to neighbours too.
#include <meshfuse/base/error.h>
#include <meshfuse/ops/philox.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

namespace meshfuse {
namespace {

constexpr double kScale24 = 0x1p-24, kScale32 = 0x1p-32, kScale53 = 0x1p-53;
constexpr int64_t kGrain = 8192;  // elements that are worth a task

uint32_t lowWord(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t highWord(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

/// The first 53 bits of two words.
uint64_t bits53(uint32_t a, uint32_t b) { return (static_cast<uint64_t>(a) << 32 | b) >> 11; }

void boxMuller(double u, double v, double* out) {
  const double radius = std::sqrt(-2 * std::log(u));
  const double angle = 2 * std::numbers::pi * v;
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

/// Standard values of all elements of one block.
template <Distribution distribution, bool wide>
void standardValues(const PhiloxBlock& w, double* out) {
  if constexpr (distribution == Distribution::Uniform) {
    if constexpr (wide) {
      for (size_t i = 0; i < 2; ++i) {
        out[i] = static_cast<double>(bits53(w[2 * i], w[2 * i + 1])) * kScale53;
      }
    } else {
      for (size_t i = 0; i < 4; ++i) out[i] = static_cast<double>(w[i] >> 8) * kScale24;
    }
  } else if constexpr (wide) {
    boxMuller(static_cast<double>(bits53(w[0], w[1]) + 1) * kScale53,
              static_cast<double>(bits53(w[2], w[3])) * kScale53, out);
  } else {
    for (size_t i = 0; i < 4; i += 2) {
      boxMuller((static_cast<double>(w[i]) + 1) * kScale32,
                static_cast<double>(w[i + 1]) * kScale32, out + i);
    }
  }
}

/// The greatest value of the type below x.
template <class T>
T below(T x) {
  if constexpr (sizeof(T) == 2) {
    const bool zero = (x.x & 0x7FFF) == 0;
    if (zero) return T(0x8001, T::from_bits());
    const int step = (x.x & 0x8000) != 0 ? 1 : -1;
    return T(static_cast<uint16_t>(x.x + step), T::from_bits());
  } else {
    return std::nextafter(x, -std::numeric_limits<T>::infinity());
  }
}

template <class T>
T narrow(double x) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
Finish finishOf(const RandomStream& stream) {
  if (stream.distribution == Distribution::Normal) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    return {stream.low, stream.high, kNone, kNone};
  }
  const T low = narrow<T>(stream.low), high = narrow<T>(stream.high);
  const T top = high > low ? below(high) : low;
  return {static_cast<double>(low), static_cast<double>(high) - static_cast<double>(low),
          static_cast<double>(high), static_cast<double>(top)};
}

/// Numbers of elements along the last axis, and of the first element of every local row.
struct Rows {
  std::vector<uint64_t> first{0};
  std::vector<uint64_t> along{0};
};

Rows rowsOf(const GlobalPlaces& places) {
  Rows rows;
  uint64_t stride = 1;
  for (size_t axis = places.sizes.size(); axis-- > 0;) {
    std::vector<uint64_t> numbers;
    const bool last = axis + 1 == places.sizes.size();
    const std::vector<uint64_t> inner = last ? std::vector<uint64_t>{0} : std::move(rows.first);
    numbers.reserve(places.positions[axis].size() * inner.size());
    for (const int64_t position : places.positions[axis]) {
      for (const uint64_t n : inner)
        numbers.push_back(static_cast<uint64_t>(position) * stride + n);
    }
    if (last) {
      rows.along = std::move(numbers);
      rows.first = {0};
    } else {
      rows.first = std::move(numbers);
    }
    stride *= static_cast<uint64_t>(places.sizes[axis]);
  }
  return rows;
}

template <class T, Distribution distribution>
void fill(T* out, const RandomStream& stream, const Rows& rows) {
  constexpr bool kWide = sizeof(T) == 8;
  constexpr uint64_t kPerBlock = kWide ? 2 : 4;
  const auto seed = static_cast<uint64_t>(stream.seed),
             offset = static_cast<uint64_t>(stream.offset);
  const std::array<uint32_t, 2> key = {lowWord(seed), highWord(seed)};
  const Finish finish = finishOf<T>(stream);
  const T top = narrow<T>(finish.top);
  const auto columns = static_cast<int64_t>(rows.along.size());
  const auto count = static_cast<int64_t>(rows.first.size()) * columns;
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    double values[kPerBlock];
    uint64_t have = ~uint64_t{0};
    int64_t i = begin;
    while (i < end) {
      const uint64_t row = rows.first[static_cast<size_t>(i / columns)];
      const int64_t start = i / columns * columns, stop = std::min(end, start + columns);
      for (; i < stop; ++i) {
        const uint64_t element = row + rows.along[static_cast<size_t>(i - start)];
        const uint64_t block = element / kPerBlock;
        if (block != have) {
          standardValues<distribution, kWide>(
              philox({lowWord(block), highWord(block), lowWord(offset), highWord(offset)}, key),
              values);
          have = block;
        }
        const T value = narrow<T>(finish.shift + finish.scale * values[element % kPerBlock]);
        out[i] = static_cast<double>(value) >= finish.limit ? top : value;
      }
    }
  });
}

std::vector<int64_t> localSizes(const GlobalPlaces& places) {
  std::vector<int64_t> sizes;
  sizes.reserve(places.positions.size());
  for (const auto& positions : places.positions) {
    sizes.push_back(static_cast<int64_t>(positions.size()));
  }
  return sizes;
}

template <class T>
at::Tensor randomOnCpu(const RandomStream& stream, const GlobalPlaces& places,
                       const at::TensorOptions& options) {
  at::Tensor out = at::empty(localSizes(places), options);
  if (out.numel() == 0) return out;
  const Rows rows = rowsOf(places);
  T* const data = out.mutable_data_ptr<T>();
  if (stream.distribution == Distribution::Uniform) {
    fill<T, Distribution::Uniform>(data, stream, rows);
  } else {
    fill<T, Distribution::Normal>(data, stream, rows);
  }
  return out;
}

}  // namespace

Finish finishFor(at::ScalarType type, const RandomStream& stream) {
  switch (type) {
    case at::kDouble:
      return finishOf<double>(stream);
    case at::kFloat:
      return finishOf<float>(stream);
    case at::kHalf:
      return finishOf<at::Half>(stream);
    default:
      MESHFUSE_ASSERT(type == at::kBFloat16, "random numbers of type ", toString(type));
      return finishOf<at::BFloat16>(stream);
  }
}

PhiloxBlock philox(PhiloxBlock c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMultipliers[0]} * c[0],
                   p1 = uint64_t{kPhiloxMultipliers[1]} * c[2];
    c = {highWord(p1) ^ c[1] ^ key[0], lowWord(p1), highWord(p0) ^ c[3] ^ key[1], lowWord(p0)};
    key[0] += kPhiloxWeyl[0];
    key[1] += kPhiloxWeyl[1];
  }
  return c;
}

at::Tensor randomTensor(const RandomStream& stream, const GlobalPlaces& places,
                        const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return randomTensorByTorch(stream, places, options);
  switch (options.dtype().toScalarType()) {
    case at::kDouble:
      return randomOnCpu<double>(stream, places, options);
    case at::kFloat:
      return randomOnCpu<float>(stream, places, options);
    case at::kHalf:
      return randomOnCpu<at::Half>(stream, places, options);
    default:
      return randomOnCpu<at::BFloat16>(stream, places, options);
  }
}

}  // namespace meshfuse
