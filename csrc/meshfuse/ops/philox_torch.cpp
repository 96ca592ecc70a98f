// SPDX-License-Identifier: BSD-3-Clause
// Philox by ATen operations on 64-bit integers that hold 32-bit words, for any kind of device.
#include <meshfuse/ops/philox.h>

#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace meshfuse {
namespace {

constexpr int64_t kWord = 0xFFFFFFFF;

at::Tensor left(const at::Tensor& x, int64_t bits) { return at::bitwise_left_shift(x, bits); }
at::Tensor right(const at::Tensor& x, int64_t bits) { return at::bitwise_right_shift(x, bits); }

struct Words {
  at::Tensor high, low;
};

/// Both halves of the product of words and a constant. In two steps, since 64 signed bits do not
/// hold it.
Words multiply(const at::Tensor& x, int64_t constant) {
  const at::Tensor lower = x * (constant & 0xFFFF), upper = x * (constant >> 16);
  return {right(upper + right(lower, 16), 16), (left(upper & 0xFFFF, 16) + lower) & kWord};
}

std::array<at::Tensor, 4> philoxWords(const at::Tensor& block, const RandomStream& stream) {
  const auto constant = [&](int64_t x) { return at::scalar_tensor(x, block.options()); };
  std::array<at::Tensor, 4> c = {block & kWord, right(block, 32), constant(stream.offset & kWord),
                                 constant((stream.offset >> 32) & kWord)};
  std::array<int64_t, 2> key = {stream.seed & kWord, (stream.seed >> 32) & kWord};
  for (int round = 0; round < 10; ++round) {
    const Words a = multiply(c[0], kPhiloxMultipliers[0]),
                b = multiply(c[2], kPhiloxMultipliers[1]);
    c = {b.high ^ c[1] ^ key[0], b.low, a.high ^ c[3] ^ key[1], a.low};
    for (size_t i = 0; i < 2; ++i) key[i] = (key[i] + kPhiloxWeyl[i]) & kWord;
  }
  return c;
}

at::Tensor bits53(const at::Tensor& a, const at::Tensor& b) { return left(a, 21) + right(b, 11); }

at::Tensor scaled(const at::Tensor& bits, double scale) { return bits.to(at::kDouble) * scale; }

at::Tensor uniform(const std::array<at::Tensor, 4>& w, const at::Tensor& lane, bool wide) {
  if (wide) return scaled(at::where(lane == 0, bits53(w[0], w[1]), bits53(w[2], w[3])), 0x1p-53);
  const at::Tensor word =
      at::where(lane < 2, at::where(lane == 0, w[0], w[1]), at::where(lane == 2, w[2], w[3]));
  return scaled(right(word, 8), 0x1p-24);
}

at::Tensor normal(const std::array<at::Tensor, 4>& w, const at::Tensor& lane, bool wide) {
  const double scale = wide ? 0x1p-53 : 0x1p-32;
  const at::Tensor a = wide ? bits53(w[0], w[1]) : at::where(lane < 2, w[0], w[2]);
  const at::Tensor b = wide ? bits53(w[2], w[3]) : at::where(lane < 2, w[1], w[3]);
  const at::Tensor radius = at::sqrt(at::log(scaled(a + 1, scale)) * -2);
  const at::Tensor angle = scaled(b, scale) * (2 * std::numbers::pi);
  return radius * at::where((lane & 1) == 0, at::cos(angle), at::sin(angle));
}

/// Numbers of the elements in the global tensor.
at::Tensor elementsOf(const GlobalPlaces& places, const at::Device& device) {
  at::Tensor elements = at::zeros({}, at::dtype(at::kLong).device(device));
  int64_t stride = 1;
  for (size_t axis = places.sizes.size(); axis-- > 0;) {
    std::vector<int64_t> sizes(places.sizes.size() - axis, 1);
    sizes[0] = -1;
    elements =
        elements + at::tensor(places.positions[axis], at::kLong).to(device).view(sizes) * stride;
    stride *= places.sizes[axis];
  }
  return elements;
}

}  // namespace

at::Tensor randomTensorByTorch(const RandomStream& stream, const GlobalPlaces& places,
                               const at::TensorOptions& options) {
  const at::ScalarType type = options.dtype().toScalarType();
  const bool wide = type == at::kDouble;
  const at::Tensor elements = elementsOf(places, options.device());
  if (elements.numel() == 0) return at::empty(elements.sizes(), options);
  const auto words = philoxWords(right(elements, wide ? 1 : 2), stream);
  const at::Tensor lane = elements & (wide ? 1 : 3);
  const at::Tensor x = stream.distribution == Distribution::Uniform ? uniform(words, lane, wide)
                                                                    : normal(words, lane, wide);
  const Finish finish = finishFor(type, stream);
  at::Tensor out = x * finish.scale + finish.shift;
  if (!wide) out = out.to(at::kFloat).to(type);  // as the loop rounds, Half in two steps
  return at::where(out.to(at::kDouble) >= finish.limit, at::full({}, finish.top, out.options()),
                   out);
}

}  // namespace meshfuse
