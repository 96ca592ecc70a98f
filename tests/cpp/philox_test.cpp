// SPDX-License-Identifier: BSD-3-Clause
// The generator's known answers, and that the loop for CPUs and the ATen operations for other
// devices agree.
#include <gtest/gtest.h>
#include <meshfuse/ops/philox.h>

#include <numeric>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

namespace meshfuse {
namespace {

// From the authors' table of known answers.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

GlobalPlaces wholeOf(std::vector<int64_t> sizes) {
  GlobalPlaces places{.positions = {}, .sizes = std::move(sizes)};
  for (const int64_t size : places.sizes) {
    std::vector<int64_t>& line = places.positions.emplace_back(static_cast<size_t>(size));
    std::iota(line.begin(), line.end(), 0);
  }
  return places;
}

// Whole, of no axes, empty, scattered, and with numbers beyond 32 bits.
std::vector<GlobalPlaces> manyPlaces() {
  return {wholeOf({7, 5, 3}),
          wholeOf({}),
          wholeOf({0, 4}),
          {.positions = {{1, 4, 2}, {0, 2, 4, 6, 8}}, .sizes = {6, 9}},
          {.positions = {{0, (int64_t{1} << 33) + 5}, {3, 4, 5}}, .sizes = {int64_t{1} << 34, 7}}};
}

class PhiloxOnTorchTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(PhiloxOnTorchTest, UniformHasTheSameBits) {
  const at::TensorOptions options = at::dtype(GetParam());
  for (const int64_t seed : {int64_t{0}, int64_t{2722423872872113}, int64_t{-1}}) {
    for (const double high : {1.0, 0.001, 1000.0}) {
      const RandomStream stream{.seed = seed, .offset = seed / 3, .low = 0, .high = high};
      for (const GlobalPlaces& places : manyPlaces()) {
        const at::Tensor loop = randomTensor(stream, places, options);
        const at::Tensor torch = randomTensorByTorch(stream, places, options);
        EXPECT_EQ(loop.scalar_type(), GetParam());
        EXPECT_EQ(torch.scalar_type(), GetParam());
        EXPECT_TRUE(at::equal(loop, torch)) << loop << torch;
      }
    }
  }
}

TEST_P(PhiloxOnTorchTest, NormalIsEqualUpToRounding) {
  const RandomStream stream{
      .distribution = Distribution::Normal, .seed = 5, .offset = 9, .low = -1, .high = 3};
  const bool narrow = GetParam() == at::kHalf || GetParam() == at::kBFloat16;
  for (const GlobalPlaces& places : manyPlaces()) {
    const at::Tensor loop = randomTensor(stream, places, at::dtype(GetParam()));
    const at::Tensor torch = randomTensorByTorch(stream, places, at::dtype(GetParam()));
    EXPECT_TRUE(at::allclose(loop, torch, narrow ? 1e-2 : 1e-6, narrow ? 1e-2 : 1e-6));
  }
}

// Rounding reaches the upper bound for about one value in 4096 here; the loop must not show it.
TEST_P(PhiloxOnTorchTest, UniformStaysBelowItsBound) {
  const RandomStream stream{.seed = 1, .offset = 2, .low = 0.5, .high = 0.75};
  for (const auto& make : {randomTensor, randomTensorByTorch}) {
    const at::Tensor x = make(stream, wholeOf({20000}), at::dtype(GetParam()));
    EXPECT_LT(x.max().item<double>(), 0.75);
    EXPECT_GE(x.min().item<double>(), 0.5);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PhiloxOnTorchTest,
                         testing::Values(at::kDouble, at::kFloat, at::kHalf, at::kBFloat16));

}  // namespace
}  // namespace meshfuse
