// SPDX-License-Identifier: BSD-3-Clause
// What every communicator's collectives must do. A test program instantiates the suite
// "Collectives" with its backends and teams. All processes make the inputs of all members, so each
// can tell what its own members must get.
#pragma once
#include <gtest/gtest.h>
#include <meshfuse/comm/communicator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "expect_error.h"
#include "test_device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_empty_affine_quantized.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace meshfuse {

struct CollectivesCase {
  std::string name;
  std::function<Communicator&()> group;
  Team team;
  bool long_messages = true;  // false: skip the tests of long ones
};

inline void PrintTo(const CollectivesCase& c, std::ostream* out) { *out << c.name; }

using Tensors = std::vector<at::Tensor>;

inline void fillWithBits(const at::Tensor& t, std::mt19937& generator) {
  auto* bytes = static_cast<unsigned char*>(t.mutable_data_ptr());
  for (size_t i = 0; i < t.nbytes(); i += 4) {
    const auto word = static_cast<uint32_t>(generator());
    std::memcpy(bytes + i, &word, std::min<size_t>(4, t.nbytes() - i));
  }
}

inline at::Tensor emptyOfType(at::IntArrayRef sizes, at::ScalarType type) {
  if (c10::isQIntType(type)) return at::_empty_affine_quantized(sizes, at::dtype(type), 0.5, 3);
  return at::empty(sizes, at::dtype(type));
}

/// Tensor::clone() does not know all types, and changes the bits of a Bool.
inline at::Tensor copyOfBits(const at::Tensor& t) {
  at::Tensor copy = emptyOfType(t.sizes(), t.scalar_type());
  if (t.nbytes() > 0) std::memcpy(copy.mutable_data_ptr(), t.const_data_ptr(), t.nbytes());
  return copy;
}

inline bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() && a.is_contiguous() &&
         b.is_contiguous() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// All types whose elements have whole bytes.
inline std::vector<at::ScalarType> allTypes() {
  std::vector<at::ScalarType> types;
  for (int i = 0; i < static_cast<int>(at::ScalarType::Undefined); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (type != at::kQUInt4x2 && type != at::kQUInt2x4) types.push_back(type);
  }
  return types;
}

/// Types that can be reduced.
inline std::vector<at::ScalarType> numberTypes() {
  return {at::kByte,
          at::kChar,
          at::kShort,
          at::kInt,
          at::kLong,
          at::kUInt16,
          at::kUInt32,
          at::kUInt64,
          at::kBool,
          at::kHalf,
          at::kBFloat16,
          at::kFloat,
          at::kDouble,
          at::kFloat8_e4m3fn,
          at::kFloat8_e4m3fnuz,
          at::kFloat8_e5m2,
          at::kFloat8_e5m2fnuz,
          at::kFloat8_e8m0fnu,
          at::kComplexHalf,
          at::kComplexFloat,
          at::kComplexDouble};
}

inline constexpr ReduceKind kAllKinds[] = {ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Min,
                                           ReduceKind::Max, ReduceKind::And,  ReduceKind::Or,
                                           ReduceKind::Xor, ReduceKind::Avg};

inline bool isDefined(at::ScalarType type, ReduceKind kind) {
  const bool integral = c10::isIntegralType(type, /*includeBool=*/true);
  switch (kind) {
    case ReduceKind::And:
    case ReduceKind::Or:
    case ReduceKind::Xor:
      return integral;
    case ReduceKind::Avg:
      return !integral;
    case ReduceKind::Min:
    case ReduceKind::Max:
      return !c10::isComplexType(type);
    default:
      return true;
  }
}

/// The terms one after the other, by torch, in a wide type; rounded once.
inline at::Tensor reduceByTorch(const Tensors& terms, ReduceKind kind) {
  const at::ScalarType type = terms[0].scalar_type();
  const at::ScalarType wide = type == at::kBool                  ? at::kBool
                              : c10::isIntegralType(type, false) ? at::kLong
                              : type == at::kComplexDouble       ? at::kComplexDouble
                              : c10::isComplexType(type)         ? at::kComplexFloat
                              : type == at::kDouble              ? at::kDouble
                                                                 : at::kFloat;
  at::Tensor acc = terms[0].to(wide);
  for (size_t i = 1; i < terms.size(); ++i) {
    const at::Tensor term = terms[i].to(wide);
    switch (kind) {
      case ReduceKind::Sum:
      case ReduceKind::Avg:
        acc = type == at::kBool ? acc.logical_or(term) : acc.add(term);
        break;
      case ReduceKind::Prod:
        acc = type == at::kBool ? acc.logical_and(term) : acc.mul(term);
        break;
      case ReduceKind::Min:
        acc = at::minimum(acc, term);
        break;
      case ReduceKind::Max:
        acc = at::maximum(acc, term);
        break;
      case ReduceKind::And:
        acc = at::bitwise_and(acc, term);
        break;
      case ReduceKind::Or:
        acc = at::bitwise_or(acc, term);
        break;
      case ReduceKind::Xor:
        acc = at::bitwise_xor(acc, term);
        break;
    }
  }
  if (kind == ReduceKind::Avg) acc = acc.div(static_cast<double>(terms.size()));
  return acc.to(type);
}

class Collectives : public testing::TestWithParam<CollectivesCase> {
 protected:
  DeviceGroup group() const { return DeviceGroup(GetParam().group()); }
  const Team& team() const { return GetParam().team; }
  int64_t n() const { return team().size(); }
  bool isLocal(int64_t place) const {
    const auto ranks = group().localRanks();
    return std::ranges::find(ranks, team().devices[static_cast<size_t>(place)]) != ranks.end();
  }

  /// Copies of those of `all` (one per member) that belong to local members.
  Tensors localOf(const Tensors& all) const {
    Tensors local;
    for (int64_t i = 0; i < n(); ++i)
      if (isLocal(i)) local.push_back(copyOfBits(all[static_cast<size_t>(i)]));
    return local;
  }
  Tensors rootOf(const at::Tensor& t, int64_t root) const {
    return isLocal(root) ? Tensors{copyOfBits(t)} : Tensors{};
  }
  /// Outputs of local members, with rubbish in them.
  Tensors outputs(at::IntArrayRef sizes, at::ScalarType type) { return localOf(bits(sizes, type)); }
  /// Any bits at all: NaNs with payloads, denormals.
  Tensors bits(at::IntArrayRef sizes, at::ScalarType type) {
    Tensors all;
    for (int64_t i = 0; i < n(); ++i)
      fillWithBits(all.emplace_back(emptyOfType(sizes, type)), generator_);
    return all;
  }
  /// Numbers that can be represented, and whose sums cannot always be.
  Tensors numbers(at::IntArrayRef sizes, at::ScalarType type) {
    Tensors all;
    for (int64_t i = 0; i < n(); ++i) {
      at::Tensor t = at::empty(sizes, at::kDouble);
      auto* values = t.mutable_data_ptr<double>();
      for (int64_t e = 0; e < t.numel(); ++e)
        values[e] = static_cast<double>(generator_()) * 0x1p-30 - 2;
      const bool positive = type == at::kFloat8_e8m0fnu || c10::isIntegralType(type, false);
      if (positive) t = t.abs();
      if (c10::isIntegralType(type, true)) t = t.mul(3).floor();
      if (type == at::kBool) t = t.gt(0);
      if (c10::isComplexType(type)) t = t.to(at::kComplexDouble).mul(c10::complex<double>(1, 0.5));
      if (type == at::kComplexHalf) t = t.to(at::kComplexFloat);
      if (c10::isFloat8Type(type) || c10::isBarebonesUnsignedType(type))
        t = t.to(c10::isFloat8Type(type) ? at::kFloat : at::kLong);
      all.push_back(t.to(type));
    }
    return all;
  }

  static std::vector<Tensors> chunksOf(const Tensors& all, int64_t parts) {
    std::vector<Tensors> chunks;  // [member][chunk]
    for (const at::Tensor& t : all) {
      Tensors& of_member = chunks.emplace_back();
      const int64_t size = t.size(0) / parts;
      for (int64_t i = 0; i < parts; ++i) of_member.push_back(t.narrow(0, i * size, size));
    }
    return chunks;
  }
  /// By bytes: at::cat does not know all types.
  static at::Tensor join(const Tensors& parts) {
    std::vector<int64_t> sizes = parts[0].sizes().vec();
    sizes[0] *= static_cast<int64_t>(parts.size());
    at::Tensor all = emptyOfType(sizes, parts[0].scalar_type());
    auto* at = static_cast<std::byte*>(all.mutable_data_ptr());
    for (const at::Tensor& p : parts) {
      EXPECT_TRUE(p.is_contiguous());
      if (p.nbytes() > 0) std::memcpy(at, p.const_data_ptr(), p.nbytes());
      at += p.nbytes();
    }
    return all;
  }

  /// Checks the tensors of the local members against those wanted of all.
  void expectBits(const Tensors& local, const Tensors& wanted) const {
    size_t next = 0;
    for (int64_t i = 0; i < n(); ++i) {
      if (!isLocal(i)) continue;
      ASSERT_LT(next, local.size());
      const at::Tensor &have = local[next++], &want = wanted[static_cast<size_t>(i)];
      EXPECT_TRUE(sameBits(have, want)) << "member " << i << ", " << want.scalar_type();
    }
  }
  void expectValues(const at::Tensor& have, const at::Tensor& want) const {
    if (!c10::isComplexType(want.scalar_type())) {
      EXPECT_TRUE(sameBits(have, want)) << want.scalar_type();
      return;
    }
    // Products of complex numbers: torch's vector code may fuse a multiplication and an addition.
    const double tolerance = want.scalar_type() == at::kComplexHalf ? 2e-3 : 1e-5;
    EXPECT_TRUE(
        at::allclose(have.to(at::kComplexFloat), want.to(at::kComplexFloat), tolerance, tolerance))
        << want.scalar_type();
  }

  std::mt19937 generator_{42};
};

// --- Moves ---------------------------------------------------------------------------------------

TEST_P(Collectives, AllGatherKeepsEveryBitOfAllTypes) {
  for (const at::ScalarType type : allTypes()) {
    const Tensors in = bits({5, 7}, type);
    Tensors mine = localOf(in), out = outputs({5 * n(), 7}, type);
    group().allGather(out, mine, team());
    expectBits(out, Tensors(static_cast<size_t>(n()), join(in)));
  }
}

TEST_P(Collectives, AllToAllKeepsEveryBitOfAllTypes) {
  for (const at::ScalarType type : allTypes()) {
    const Tensors in = bits({3 * n(), 5}, type);
    const auto chunks = chunksOf(in, n());
    Tensors wanted;
    for (size_t to = 0; to < in.size(); ++to) {
      Tensors parts;
      for (const Tensors& of_member : chunks) parts.push_back(of_member[to]);
      wanted.push_back(join(parts));
    }
    Tensors mine = localOf(in), out = outputs({3 * n(), 5}, type);
    group().allToAll(out, mine, team());
    expectBits(out, wanted);
  }
}

TEST_P(Collectives, BroadcastGatherScatterFromEveryRoot) {
  for (const at::ScalarType type : {at::kByte, at::kBFloat16, at::kComplexDouble})
    for (int64_t root = 0; root < n(); ++root) {
      const Tensors in = bits({5, 7}, type);
      const at::Tensor& of_root = in[static_cast<size_t>(root)];
      Tensors in_out = localOf(in);
      group().broadcast(in_out, root, team());
      expectBits(in_out, Tensors(in.size(), of_root));

      Tensors mine = localOf(in), all = rootOf(join(bits({5, 7}, type)), root);
      group().gather(all, mine, root, team());
      if (isLocal(root)) {
        EXPECT_TRUE(sameBits(all[0], join(in)));
      }

      const at::Tensor whole = join(bits({5, 7}, type));
      Tensors of_one = rootOf(whole, root), part = outputs({5, 7}, type);
      group().scatter(part, of_one, root, team());
      expectBits(part, chunksOf({whole}, n())[0]);
    }
}

TEST_P(Collectives, BroadcastKeepsEveryBitOfAllTypes) {
  for (const at::ScalarType type : allTypes()) {
    const Tensors in = bits({5, 7}, type);
    Tensors in_out = localOf(in);
    group().broadcast(in_out, n() - 1, team());
    expectBits(in_out, Tensors(in.size(), in.back()));
  }
}

TEST_P(Collectives, LongBroadcast) {
  if (!GetParam().long_messages) GTEST_SKIP() << "would take long";
  const Tensors in = bits({20'011, 7}, at::kByte);
  for (const int64_t root : {int64_t{0}, n() - 1}) {
    Tensors in_out = localOf(in);
    group().broadcast(in_out, root, team());
    expectBits(in_out, Tensors(in.size(), in[static_cast<size_t>(root)]));
  }
}

TEST_P(Collectives, SendRecvRing) {
  for (const at::ScalarType type : allTypes()) {
    const Tensors in = bits({5, 7}, type);
    std::vector<SendRecvPair> pairs;
    Tensors mine, out, wanted;
    for (int64_t i = 0; i < n(); ++i) {
      const int64_t next = (i + 1) % n();
      pairs.push_back(
          {team().devices[static_cast<size_t>(i)], team().devices[static_cast<size_t>(next)]});
      if (isLocal(i)) mine.push_back(copyOfBits(in[static_cast<size_t>(i)]));
      if (!isLocal(next)) continue;
      fillWithBits(out.emplace_back(emptyOfType({5, 7}, type)), generator_);
      wanted.push_back(in[static_cast<size_t>(i)]);
    }
    group().sendRecv(out, mine, pairs);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(sameBits(out[i], wanted[i])) << type;
  }
}

TEST_P(Collectives, SendRecvOfSeveralSizesToOne) {
  const int64_t first = team().devices[0];
  std::vector<SendRecvPair> pairs;
  Tensors mine, out, wanted;
  for (int64_t i = n() - 1; i >= 0; --i) {
    pairs.push_back({team().devices[static_cast<size_t>(i)], first});
    const at::Tensor sent = at::full({i, 3}, static_cast<double>(i), at::kFloat);
    if (isLocal(i)) mine.push_back(sent.clone());
    if (!isLocal(0)) continue;
    out.push_back(at::zeros({i, 3}, at::kFloat));
    wanted.push_back(sent);
  }
  group().sendRecv(out, mine, pairs);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(sameBits(out[i], wanted[i])) << i;
}

// --- Reductions ----------------------------------------------------------------------------------

TEST_P(Collectives, AllReduceOfAllTypesAndKinds) {
  for (const at::ScalarType type : numberTypes())
    for (const ReduceKind kind : kAllKinds) {
      if (!isDefined(type, kind)) continue;
      SCOPED_TRACE(std::string(name(kind)));
      const Tensors in = numbers({5, 7}, type);
      Tensors in_out = localOf(in);
      group().allReduce(in_out, team(), kind);
      for (const at::Tensor& t : in_out) expectValues(t, reduceByTorch(in, kind));
      Tensors mine = localOf(in), out = outputs({5, 7}, type);
      group().allReduce(out, mine, team(), kind);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(sameBits(out[i], in_out[i])) << i;
      expectBits(mine, in);  // inputs are left alone
    }
}

TEST_P(Collectives, ReduceScatterAndReduceOfAllTypesAndKinds) {
  for (const at::ScalarType type : numberTypes())
    for (const ReduceKind kind : kAllKinds) {
      if (!isDefined(type, kind)) continue;
      SCOPED_TRACE(std::string(name(kind)));
      const Tensors in = numbers({3 * n(), 7}, type);
      const at::Tensor whole = reduceByTorch(in, kind);
      Tensors mine = localOf(in), out = outputs({3, 7}, type);
      group().reduceScatter(out, mine, team(), kind);
      size_t next = 0;
      for (int64_t i = 0; i < n(); ++i)
        if (isLocal(i)) expectValues(out[next++], whole.narrow(0, 3 * i, 3));
      const int64_t root = n() / 2;
      Tensors at_root = rootOf(bits({3 * n(), 7}, type)[0], root);
      group().reduce(at_root, mine, root, team(), kind);
      if (isLocal(root)) expectValues(at_root[0], whole);
      expectBits(mine, in);  // inputs are left alone
    }
}

TEST_P(Collectives, LongReductionsInRounds) {
  if (!GetParam().long_messages) GTEST_SKIP() << "would take long";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensors in = numbers({23'003 * n(), 3}, type);
    const at::Tensor whole = reduceByTorch(in, ReduceKind::Sum);
    Tensors in_out = localOf(in), mine = localOf(in), out = outputs({23'003, 3}, type);
    group().allReduce(in_out, team(), ReduceKind::Sum);
    expectBits(in_out, Tensors(in.size(), whole));
    Tensors apart = outputs({23'003 * n(), 3}, type);
    group().allReduce(apart, mine, team(), ReduceKind::Sum);
    expectBits(apart, Tensors(in.size(), whole));
    group().reduceScatter(out, mine, team(), ReduceKind::Sum);
    expectBits(out, chunksOf({whole}, n())[0]);
    Tensors at_root = rootOf(at::zeros(whole.sizes(), whole.scalar_type()), 0);
    group().reduce(at_root, mine, 0, team(), ReduceKind::Sum);
    if (isLocal(0)) {
      EXPECT_TRUE(sameBits(at_root[0], whole));
    }
  }
}

TEST_P(Collectives, PostedCallsEndWithTheLast) {
  // Whole numbers of a member, different in every call.
  const auto term = [](int64_t member, int64_t size, int64_t call) {
    return at::arange(size, at::kFloat).add(static_cast<double>(member * 7 + call));
  };
  struct Results {
    int64_t size;
    Tensors reduced, gathered, scattered, given;
  };
  std::vector<Results> all;
  Posted last;
  const auto keepLast = [&](Posted posted) {
    if (posted) last = std::move(posted);
  };
  for (const int64_t size : {int64_t{1}, int64_t{1000}, int64_t{300'000}}) {
    if (size > 1000 && !GetParam().long_messages) continue;
    const auto call = static_cast<int64_t>(all.size());
    Tensors terms, wide, sums, wholes, parts, given;
    for (int64_t i = 0; i < n(); ++i) {
      terms.push_back(term(i, size, call));
      wide.push_back(term(i, size * n(), call));
      sums.push_back(at::empty({size}));
      wholes.push_back(at::empty({size * n()}));
      parts.push_back(at::empty({size}));
      given.push_back(i == n() - 1 ? terms.back() : at::empty({size}));
    }
    Results& r = all.emplace_back(
        Results{size, localOf(sums), localOf(wholes), localOf(parts), localOf(given)});
    Tensors in = localOf(terms), wide_in = localOf(wide);
    Posted reduced, gathered, scattered, broadcast;
    group().allReduce(r.reduced, in, team(), ReduceKind::Sum, &reduced);
    group().allGather(r.gathered, in, team(), &gathered);
    group().reduceScatter(r.scattered, wide_in, team(), ReduceKind::Max, &scattered);
    group().broadcast(r.given, n() - 1, team(), &broadcast);
    for (Posted* posted : {&reduced, &gathered, &scattered, &broadcast})
      keepLast(std::move(*posted));
  }
  if (last) last->wait();
  for (size_t call = 0; call < all.size(); ++call) {
    const Results& r = all[call];
    Tensors terms, wide;
    for (int64_t i = 0; i < n(); ++i) {
      terms.push_back(term(i, r.size, static_cast<int64_t>(call)));
      wide.push_back(term(i, r.size * n(), static_cast<int64_t>(call)));
    }
    size_t local = 0;
    for (int64_t i = 0; i < n(); ++i) {
      if (!isLocal(i)) continue;
      EXPECT_TRUE(sameBits(r.reduced[local], reduceByTorch(terms, ReduceKind::Sum)));
      EXPECT_TRUE(sameBits(r.gathered[local], at::cat(terms)));
      EXPECT_TRUE(sameBits(
          r.scattered[local],
          reduceByTorch(wide, ReduceKind::Max).narrow(0, i * r.size, r.size).contiguous()));
      EXPECT_TRUE(sameBits(r.given[local], terms.back()));
      ++local;
    }
  }
}

TEST_P(Collectives, SumsRoundOnceInFloat32) {
  if (n() < 2) GTEST_SKIP() << "needs two terms";
  const double inf = std::numeric_limits<double>::infinity();
  const auto sum = [&](double first, double others, at::ScalarType type) {
    Tensors all(static_cast<size_t>(n()),
                at::full({1}, others / static_cast<double>(n() - 1), type));
    all[0] = at::full({1}, first, type);
    Tensors in_out = localOf(all);
    group().allReduce(in_out, team(), ReduceKind::Sum);
    return in_out.empty() ? std::nan("") : in_out[0].item().toDouble();
  };
  const auto expectSum = [&](double first, double others, double want, at::ScalarType type) {
    const double have = sum(first, others, type);
    if (!std::isnan(have)) {
      EXPECT_EQ(have, want) << type;
    }
  };
  if (n() == 2) {
    expectSum(1, 0.0078125, 1.0078125, at::kBFloat16);
    expectSum(256, 1, 256, at::kBFloat16);  // not representable: to even
  } else {
    expectSum(256, static_cast<double>(n() - 1), static_cast<double>(256 + n() / 2 * 2),
              at::kBFloat16);
  }
  expectSum(inf, 1, inf, at::kBFloat16);
  expectSum(inf, 1, inf, at::kHalf);
  expectSum(65504, static_cast<double>(n() - 1) * 65504, inf, at::kHalf);
}

TEST_P(Collectives, MinAndMaxKeepNaN) {
  const double nan = std::nan("");
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    for (const ReduceKind kind : {ReduceKind::Min, ReduceKind::Max})
      for (int64_t who = 0; who < n(); ++who) {
        Tensors all;
        for (int64_t i = 0; i < n(); ++i) {
          const auto value = static_cast<double>(i);
          all.push_back(at::tensor({i == who ? nan : value, value, -value}, at::kDouble).to(type));
        }
        Tensors in_out = localOf(all);
        group().allReduce(in_out, team(), kind);
        for (const at::Tensor& t : in_out) {
          EXPECT_TRUE(std::isnan(t[0].item().toDouble())) << type << " " << who;
          EXPECT_FALSE(std::isnan(t[1].item().toDouble())) << type;
        }
      }
}

TEST_P(Collectives, SameBitsOnAllMembersAndInEveryRepetition) {
  for (const int64_t size : {int64_t{35}, int64_t{140'001}}) {
    if (size > 100 && !GetParam().long_messages) continue;
    Tensors all = numbers({size}, at::kFloat);
    const float scales[] = {1e8F, 1.0F, -1e8F, 1.0F};
    for (size_t i = 0; i < all.size(); ++i) all[i].mul_(scales[i % 4]);
    const at::Tensor want = reduceByTorch(all, ReduceKind::Sum);
    for (int repetition = 0; repetition < (size < 100 ? 50 : 3); ++repetition) {
      Tensors in_out = localOf(all), gathered = outputs({n() * size}, at::kFloat);
      group().allReduce(in_out, team(), ReduceKind::Sum);
      group().allGather(gathered, in_out, team());
      for (const at::Tensor& t : gathered)
        for (const at::Tensor& of_member : t.chunk(n())) ASSERT_TRUE(sameBits(of_member, want));
    }
  }
}

// --- Sizes and errors ----------------------------------------------------------------------------

TEST_P(Collectives, ZeroElementsAndZeroDims) {
  Tensors empty = localOf(bits({0, 3}, at::kFloat)), out = localOf(bits({0, 3}, at::kFloat));
  group().allReduce(empty, team(), ReduceKind::Sum);
  group().allGather(out, empty, team());
  group().reduceScatter(out, empty, team(), ReduceKind::Sum);
  group().allToAll(out, empty, team());
  group().broadcast(empty, 0, team());

  Tensors scalars, gathered = outputs({n()}, at::kFloat);
  std::vector<float> wanted;
  for (int64_t i = 0; i < n(); ++i) {
    scalars.push_back(at::full({}, static_cast<double>(i + 1), at::kFloat));
    wanted.push_back(static_cast<float>(i + 1));
  }
  Tensors mine = localOf(scalars);
  group().allGather(gathered, mine, team());
  for (const at::Tensor& t : gathered) EXPECT_TRUE(sameBits(t, at::tensor(wanted)));
  group().allReduce(mine, team(), ReduceKind::Sum);
  for (const at::Tensor& t : mine)
    EXPECT_EQ(t.item().toDouble(), static_cast<double>(n() * (n() + 1)) / 2);
}

TEST_P(Collectives, BadTeamsAndRootsAreErrors) {
  Tensors none;
  const int64_t world = group().size();
  const auto allReduce = [&](const Team& t) {
    return [this, &none, t] { group().allReduce(none, t, ReduceKind::Sum); };
  };
  expectError(allReduce({}), "allReduce: the team has no members. Name at least one device.");
  expectError(allReduce({{0, world}}),
              {"allReduce: device ", " of the team {0, ", "} does not exist; the group has ",
               "Start more ranks or use a smaller mesh."});
  expectError(allReduce({{0, -1}}), "device -1 of the team {0, -1} does not exist");
  expectError(allReduce({{0, 0}}), "device 0 comes more than once in the team {0, 0}. Name each");
  expectError([&] { group().broadcast(none, n(), team()); },
              {"broadcast: root ", " is not a place in the team {", "It counts within the team"});
  expectError([&] { group().reduce(none, none, -1, team(), ReduceKind::Sum); },
              "reduce: root -1 is not a place in the team");
  const SendRecvPair pair{0, world};
  expectError([&] { group().sendRecv(none, none, {&pair, 1}); }, "sendRecv: device ");
}

TEST_P(Collectives, BadTensorsAreErrorsBeforeAnyMessage) {
  Tensors in = localOf(numbers({2 * n(), 3}, at::kFloat));
  if (in.empty()) return;  // what others pass is ignored
  const auto sized = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return outputs(sizes, type);
  };
  Tensors none, good = sized({2, 3}, at::kFloat), ints = sized({2, 3}, at::kInt),
                long_out = sized({3, 3}, at::kFloat);
  const auto scatter = [&](Tensors& out, Tensors& from) {
    return [this, &out, &from] { group().reduceScatter(out, from, team(), ReduceKind::Sum); };
  };
  expectError(scatter(none, in), {"reduceScatter: 0 tensors as out", "Pass one per local rank"});
  expectError(scatter(good, none), "reduceScatter: 0 tensors as in");
  expectError(scatter(ints, in), "out has type Int and in has type Float. Give both the same");
  expectError(scatter(long_out, in), {"out of size [3, 3] does not fit in of size [",
                                      "Check the sizes against the team."});
  Tensors strided, undefined(in.size()), shared, away;
  for (const at::Tensor& t : in) {
    strided.push_back(t.t().contiguous().t());
    shared.push_back(t.narrow(0, 0, 2));
    away.push_back(at::empty({2, 3}, at::dtype(at::kFloat).device(at::kMeta)));
  }
  expectError(scatter(good, strided), {"in of size [", "is not contiguous"});
  expectError(scatter(undefined, in), "out is an undefined tensor. Allocate it first.");
  if (!testsUseCuda())  // copies do not share
    expectError(scatter(shared, in), "out and in share memory. Allocate out separately");
  expectError(scatter(away, in), {"out is on device meta", "CPU and CUDA tensors only"});
  expectError([&] { group().allReduce(away, team(), ReduceKind::Sum); }, "is on device meta");
  if (n() > 1) {
    Tensors odd = sized({3, 2 * n()}, at::kFloat), odd_out = sized({3, 2 * n()}, at::kFloat);
    if (3 % n() != 0)
      expectError([&] { group().allToAll(odd_out, odd, team()); },
                  {"allToAll: in of size [3, ", "] cannot be cut into ",
                   "chunks: its outermost "
                   "axis has 3 elements."});
  }
  const auto refused = [&](at::ScalarType type, ReduceKind kind, std::string_view text) {
    Tensors t = sized({2}, type);
    expectError([&] { group().allReduce(t, team(), kind); }, text);
  };
  refused(at::kInt, ReduceKind::Avg,
          "reduction avg is not defined for type Int. Cast the tensor to a floating type first.");
  refused(at::kFloat, ReduceKind::And, "reduction and is not defined for type Float. Use a tensor");
  refused(at::kComplexFloat, ReduceKind::Max, "Complex numbers have no order");
  refused(at::kFloat4_e2m1fn_x2, ReduceKind::Sum, "cannot be reduced, only moved");
  refused(at::kBits8, ReduceKind::Or, "cannot be reduced, only moved");
}

TEST_P(Collectives, LocalMembersMustAgree) {
  Tensors mixed = localOf(numbers({2}, at::kFloat));
  if (mixed.size() < 2) GTEST_SKIP() << "one local member";
  mixed[1] = at::zeros({3});
  expectError([&] { group().allReduce(mixed, team(), ReduceKind::Sum); },
              {"in_out differs between ranks: Float [2] and Float [3]", "All ranks need the same"});
}

TEST_P(Collectives, InvalidBoolIsNotMade) {
  Tensors all = numbers({35}, at::kBool);
  for (const ReduceKind kind : {ReduceKind::Sum, ReduceKind::Prod}) {
    Tensors in_out = localOf(all);
    group().allReduce(in_out, team(), kind);
    for (const at::Tensor& t : in_out)
      for (int64_t i = 0; i < t.numel(); ++i)
        EXPECT_LE(static_cast<const unsigned char*>(t.const_data_ptr())[i], 1);
  }
}

}  // namespace meshfuse
