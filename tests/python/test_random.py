# SPDX-License-Identifier: BSD-3-Clause
"""Random tensors: their bits, their distribution, and that no sharding changes them."""

from __future__ import annotations

import math

import pytest
import torch
from programs import X, Y, assert_part, lay, part_of

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition
from meshfuse.pytorch_utils import torch_dtype_to_meshfuse_dtype

TORCH_TYPES = {
    torch_dtype_to_meshfuse_dtype(t): t
    for t in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
SEED, OFFSET = 2_722_423_872_872_113, 5
MESHES = {
    "1": DeviceMesh([0]),
    "2": DeviceMesh([0, 1]),
    "4": DeviceMesh(range(4)),
    "2x2": DeviceMesh(torch.arange(4).reshape(2, 2)),
}
DTYPES, FLOATS = list(TORCH_TYPES), list(TORCH_TYPES.values())


def philox(counter, key):
    """Ten rounds, as the paper states them."""
    for _ in range(10):
        p0, p1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (p1 >> 32) ^ counter[1] ^ key[0],
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ counter[3] ^ key[1],
            p0 & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def words(seed, offset, block):
    def halves(x):
        return [x & 0xFFFFFFFF, (x >> 32) & 0xFFFFFFFF]

    return philox(halves(block) + halves(offset), halves(seed))


def made(op, *args, seed=SEED, offset=OFFSET, **options):
    """Return what one device makes of a random op without operands."""
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, op)(*args, rng_seed=seed, rng_offset=offset, **options))
    (out,) = fd.execute([])
    return out


def test_the_paper_s_generator():
    """Known answers of the authors' test vectors."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("seed", [0, SEED, -1])
@pytest.mark.parametrize("offset", [0, 1 << 40])
def test_uniform_has_the_words_of_the_generator(seed, offset):
    blocks = [words(seed, offset, b) for b in range(5)]
    want = [(w >> 8) / 2**24 for block in blocks for w in block][:18]
    got = made("uniform", 0.0, 1.0, [3, 6], seed=seed, offset=offset)
    assert got.flatten().tolist() == want


def test_uniform_double_has_two_words_each():
    want = []
    for b in range(3):
        w = words(SEED, OFFSET, b)
        want += [((w[i] << 32 | w[i + 1]) >> 11) / 2**53 for i in (0, 2)]
    got = made("uniform", 0.0, 1.0, [5], dtype=DataType.Double)
    assert got.tolist() == want[:5]


def test_normal_is_the_transform_of_box_and_muller():
    want = []
    for b in range(3):
        w = words(SEED, OFFSET, b)
        for i in (0, 2):
            radius = math.sqrt(-2 * math.log((w[i] + 1) / 2**32))
            angle = 2 * math.pi * w[i + 1] / 2**32
            want += [radius * math.cos(angle), radius * math.sin(angle)]
    got = made("normal", 1.0, 2.0, [11])
    torch.testing.assert_close(got, 1 + 2 * torch.tensor(want[:11]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_uniform_moments(dtype):
    x = made("uniform", -1.0, 3.0, [100, 1000], dtype=dtype)
    assert x.dtype == TORCH_TYPES[dtype]
    x = x.double().flatten()
    n = x.numel()
    assert x.min() >= -1 and x.max() < 3
    # Five standard errors of the mean and of the variance.
    assert abs(x.mean() - 1) < 5 * math.sqrt(16 / 12 / n)
    assert abs(x.var() - 16 / 12) < 5 * math.sqrt(16**2 / 180 / n) + 1e-3
    below = (x.sort().values + 1) / 4
    steps = torch.arange(1, n + 1) / n
    rounding = 2.0**-8 if dtype == DataType.BFloat16 else 2.0**-11 if dtype == DataType.Half else 0
    assert (below - steps).abs().max() < 2 / math.sqrt(n) + rounding  # Kolmogorov and Smirnov


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_normal_moments(dtype):
    x = made("normal", 0.5, 2.0, [100, 1000], dtype=dtype)
    assert x.dtype == TORCH_TYPES[dtype]
    z = (x.double().flatten() - 0.5) / 2
    n = z.numel()
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / n) + 1e-3
    assert abs((z**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / n) + 1e-2
    below = (1 + torch.erf(z.sort().values / math.sqrt(2))) / 2
    rounding = 2.0**-8 if dtype == DataType.BFloat16 else 2.0**-11 if dtype == DataType.Half else 0
    assert (below - torch.arange(1, n + 1) / n).abs().max() < 2 / math.sqrt(n) + rounding


def test_neighbours_are_independent():
    """Correlation of each element with the ones next to it, which share a block."""
    for op in ("uniform", "normal"):
        x = made(op, 0.0, 1.0, [200_000]).double()
        x = (x - x.mean()) / x.std()
        for lag in (1, 2, 3, 4):
            assert abs((x[lag:] * x[:-lag]).mean()) < 5 / math.sqrt(x.numel())


def test_seeds_and_offsets_are_streams_apart():
    a = made("uniform", 0.0, 1.0, [1000])
    for seed, offset in [(SEED + 1, OFFSET), (SEED, OFFSET + 1), (OFFSET, SEED)]:
        b = made("uniform", 0.0, 1.0, [1000], seed=seed, offset=offset)
        assert (a == b).sum() < 5
    assert torch.equal(a, made("uniform", 0.0, 1.0, [1000]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 1.01), (-0.01, 0.0), (0.3, 0.30001)])
def test_uniform_is_below_its_upper_bound_after_rounding(dtype, low, high):
    kind = TORCH_TYPES[dtype]
    x = made("uniform", low, high, [100_000], dtype=dtype)
    low, high = (torch.tensor(v, dtype=torch.double).to(kind) for v in (low, high))
    assert (x >= low).all()
    assert (x < high).all() if low < high else (x == low).all()


def test_uniform_without_width():
    assert torch.equal(made("uniform", 2.0, 2.0, [7]), torch.full((7,), 2.0))


@pytest.mark.parametrize("op", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mesh", MESHES)
def test_bits_do_not_depend_on_the_mesh(op, dtype, mesh):
    whole = made(op, -1.0, 2.0, [8, 12], dtype=dtype)
    ways = [[], [(0, X)], [(1, X)]]
    if mesh == "2x2":
        ways += [[(0, Y), (1, X)], [(1, Y), (0, X)], [(1, Y), (1, X)], [(0, X), (0, Y)]]
    for cuts in ways:
        with FusionDefinition() as fd:
            out = getattr(fd.ops, op)(
                -1.0, 2.0, [8, 12], rng_seed=SEED, rng_offset=OFFSET, dtype=dtype
            )
            fd.add_output(out)
            lay(out, MESHES[mesh], cuts)
        assert fd.explain().communications == []
        with meshfuse.simulate(MESHES[mesh].size) as sim:
            sim.run(fd, [])
            for device in range(sim.size):
                assert_part(sim.local(device=device), part_of(whole, MESHES[mesh], cuts, device))


@pytest.mark.cpu_only("programs without inputs compute on the CPU, with other last bits")
@pytest.mark.parametrize("op", ["rand_like", "randn_like"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_like_a_divided_tensor(op, dtype):
    """The result is divided as the operand is, in its type and memory order."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, -1, 6], dtype=torch_dtype_to_meshfuse_dtype(dtype))
        out = getattr(fd.ops, op)(x, SEED, OFFSET)
        fd.add_output(out)
        lay(x, MESHES["2x2"], [(2, Y), (0, X)])
    t = torch.zeros(8, 5, 6, dtype=dtype)
    kind = "uniform" if op == "rand_like" else "normal"
    whole = made(kind, 0.0, 1.0, [8, 5, 6], dtype=torch_dtype_to_meshfuse_dtype(dtype))
    assert fd.explain(sizes={x: [8, 5, 6]}).communications == []
    with meshfuse.simulate(4) as sim:
        assert torch.equal(sim.run(fd, [t])[0], whole)
        for device in range(4):
            part = part_of(whole, MESHES["2x2"], [(2, Y), (0, X)], device)
            assert_part(sim.local(device=device), part)


def test_residual_and_random_of_its_sizes():
    """A source without annotation takes the sharding of its reader (semantics 5.6)."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 6])
        noise = fd.ops.uniform(0.0, 1.0, x.shape(), rng_seed=SEED, rng_offset=OFFSET)
        fd.add_output(fd.ops.add(x, noise))
        lay(x, MESHES["2"], [(0, X)])
    t = torch.randn(8, 6)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [t])
    assert torch.equal(out, t + made("uniform", 0.0, 1.0, [8, 6]))


@pytest.mark.parametrize("op", ["uniform", "rand_like"])
def test_without_seed_torch_s_generator_decides(op):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        make = fd.ops.rand_like if op == "rand_like" else lambda x: fd.ops.uniform(0.0, 1.0, [4, 8])
        a, b = make(x), make(x)
        for tv in (a, b):
            fd.add_output(tv)
        lay(x, MESHES["4"], [(0, X)])
        lay(a, MESHES["4"], [(0, X)])
        lay(b, MESHES["4"], [(1, X)])
    t = torch.zeros(4, 8)

    def run():
        torch.manual_seed(3)
        with meshfuse.simulate(4) as sim:
            return [*sim.run(fd, [t]), *sim.run(fd, [t])]

    first, again = run(), run()
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one, two)
    for i in range(4):  # two ops, two executions
        for k in range(i):
            assert (first[i] == first[k]).sum() < 4
    alone = FusionDefinition()
    with alone as fd:
        x = fd.define_tensor([4, 8])
        make = fd.ops.rand_like if op == "rand_like" else lambda x: fd.ops.uniform(0.0, 1.0, [4, 8])
        for tv in (make(x), make(x)):
            fd.add_output(tv)
    torch.manual_seed(3)
    for got, want in zip(alone.execute([t]), first, strict=False):
        assert torch.equal(got, want)


def test_seed_of_scalar_inputs():
    with FusionDefinition() as fd:
        seed, offset = (fd.define_scalar(dtype=DataType.Int) for _ in range(2))
        fd.add_output(
            fd.ops.uniform(0.0, 1.0, [4], rng_seed=seed, rng_offset=offset, dtype=DataType.BFloat16)
        )
    for seed in (SEED, SEED + 1):
        want = made("uniform", 0.0, 1.0, [4], seed=seed, dtype=DataType.BFloat16)
        assert torch.equal(fd.execute([seed, OFFSET])[0], want)


def test_no_elements():
    assert made("normal", 0.0, 1.0, [0, 3]).shape == (0, 3)
    assert made("uniform", 0.0, 1.0, []).shape == ()


ERRORS = [
    (
        lambda ops: ops.uniform(0.0, 1.0, [2], rng_seed=1),
        r"rng_seed and rng_offset must be provided together! Only rng_seed",
    ),
    (
        lambda ops: ops.normal(0.0, 1.0, [2], rng_offset=1),
        r"rng_seed and rng_offset must be provided together! Only rng_offset",
    ),
    (
        lambda ops: ops.uniform(0.0, 1.0, [2], dtype=DataType.Int),
        r"uniform: Random distributions only create floating point types",
    ),
    (
        lambda ops: ops.normal(0.0, 1.0, [2], dtype=DataType.ComplexFloat),
        r"normal: Random distributions only create floating point types",
    ),
    (lambda ops: ops.uniform(0.0, 1.0, [2], rng_seed=0.5, rng_offset=1), r"rng_seed is .*integer"),
    (lambda ops: ops.uniform(2.0, 1.0, [2]), r"uniform: minval 2 is greater than maxval 1"),
    (lambda ops: ops.uniform(0.0, math.inf, [2]), r"uniform: minval is 0 and maxval inf"),
    (lambda ops: ops.normal(1j, 1.0, [2]), r"normal: mean is .*Give a real number"),
    (lambda ops: ops.uniform(0.0, 1.0, [-1]), r"uniform: the size at index 0 is -1"),
]


@pytest.mark.parametrize(("program", "message"), ERRORS, ids=[m for _, m in ERRORS])
def test_errors(program, message):
    with FusionDefinition() as fd, pytest.raises(meshfuse.Error, match=message):
        program(fd.ops)


def test_like_an_integer_tensor():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4], dtype=DataType.Int)
        with pytest.raises(meshfuse.Error, match=r"only create floating point types, and int"):
            fd.ops.rand_like(x)
