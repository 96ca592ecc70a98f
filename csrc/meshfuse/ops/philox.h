// SPDX-License-Identifier: BSD-3-Clause
// Random numbers as a function of a seed, an offset and the place of an element in the global
// tensor: Philox-4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (2011). Nothing is drawn in sequence, so every device computes its elements alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshfuse {

inline constexpr std::array<uint32_t, 2> kPhiloxMultipliers = {0xD2511F53, 0xCD9E8D57};
inline constexpr std::array<uint32_t, 2> kPhiloxWeyl = {0x9E3779B9, 0xBB67AE85};

/// Four words of 32 bits for a counter of four words and a key of two.
using PhiloxBlock = std::array<uint32_t, 4>;
PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key);

enum class Distribution : uint8_t { Uniform, Normal };

struct RandomStream {
  Distribution distribution = Distribution::Uniform;
  int64_t seed = 0;
  int64_t offset = 0;  // streams of one seed with different offsets are independent
  double low = 0;      // Uniform: least value; Normal: mean
  double high = 1;     // Uniform: above all values; Normal: standard deviation
};

/// From standard values x to those of a stream: shift + scale * x; what is `limit` or more becomes
/// `top`. Rounding makes that necessary at the open end of Uniform.
struct Finish {
  double shift, scale, limit, top;
};
Finish finishFor(at::ScalarType type, const RandomStream& stream);

/// Places of the elements of a local tensor in the global one: for each axis the positions that the
/// device holds, and the global size.
struct GlobalPlaces {
  std::vector<std::vector<int64_t>> positions;
  std::vector<int64_t> sizes;
};

/// The elements at these places, row-major in the order of the axes; `options` names Double, Float,
/// Half or BFloat16. Element values depend on the stream, the type and the place alone. Uniform
/// values lie in [low, high), both ends rounded to the type, and have the same bits on all kinds of
/// devices; normal values are equal up to rounding there.
at::Tensor randomTensor(const RandomStream& stream, const GlobalPlaces& places,
                        const at::TensorOptions& options);

/// The same by ATen operations on integers, for devices other than the CPU.
at::Tensor randomTensorByTorch(const RandomStream& stream, const GlobalPlaces& places,
                               const at::TensorOptions& options);

}  // namespace meshfuse
