# SPDX-License-Identifier: BSD-3-Clause
"""Ops that are made of others: variance, normalisation, dropout, whole and divided."""

from __future__ import annotations

import pytest
import torch
from programs import X, Y, communications, dtype_of, lay, place, shard
from torch.nn import functional

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition
from meshfuse.pytorch_utils import torch_dtype_to_meshfuse_dtype

PAIR = DeviceMesh([0, 1])
SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def define(op, tensors, *args, cuts=(), mesh=PAIR, open_sizes=False, **options):
    """Return the program of one op; cuts: of each tensor."""
    with FusionDefinition() as fd:
        tvs = [
            fd.define_tensor(
                [-1] * t.dim() if open_sizes else list(t.shape),
                dtype=torch_dtype_to_meshfuse_dtype(t.dtype),
            )
            for t in tensors
        ]
        result = getattr(fd.ops, op)(tvs[0], *args, *tvs[1:], **options)
        for tv in result if isinstance(result, tuple) else [result]:
            fd.add_output(tv)
        for tv, c in zip(tvs, cuts, strict=False):
            lay(tv, mesh, c)
    return fd


def sample(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(11)).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("dims", [[1], [0, -1], [0, 1, 2]], ids=str)
def test_var_mean(dims, correction, keepdim, dtype):
    x = sample(4, 5, 6, dtype=dtype) + 3
    fd = define("var_mean", [x], dims, correction=correction, keepdim=keepdim)
    got = fd.execute([x])
    want = torch.var_mean(x, dims, correction=correction, keepdim=keepdim)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
    (var,) = define("var", [x], dims, correction, keepdim).execute([x])
    assert torch.equal(var, got[0])


@pytest.mark.parametrize("correction", [1, 2, 0.5])
def test_var_of_few_elements(correction):
    x = sample(3, 1)
    (got,) = define("var", [x], [1], correction).execute([x])
    want = torch.var(x, [1], correction=correction)
    torch.testing.assert_close(got, want, equal_nan=True)


def test_var_of_a_small_spread():
    """The mean is taken off first: squares alone would cancel."""
    x = sample(8, 1000) + 4096
    (got,) = define("var", [x], [1]).execute([x])
    torch.testing.assert_close(got, torch.var(x.double(), 1).float(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["var", "var_mean", "welford"])
def test_var_along_divided_axes(op, axis):
    """Along a divided axis two sums over the devices; along others nothing is sent."""
    x = sample(4, 6)
    fd = define(op, [x], [1], cuts=[[(axis, X)]])
    with meshfuse.simulate(2) as sim:
        got = sim.run(fd, [x])
    assert communications(fd) == (["all-reduce x"] * 2 if axis == 1 else [])
    var, mean = torch.var_mean(x, 1)
    want = {"var": (var,), "var_mean": (var, mean), "welford": (mean, var * 5)}[op]
    for g, w in zip(got, want, strict=False):
        torch.testing.assert_close(g, w)
    if op == "welford":
        assert torch.equal(got[2], torch.full((4,), 6))
        assert sim.local(2, 0).shape == sim.local(0, 0).shape


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("parameters", [0, 1, 2], ids=["none", "weight", "bias"])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [[6], [5, 6]], ids=str)
def test_norms(op, shape, parameters, dtype):
    if op == "rms_norm" and parameters == 2:
        pytest.skip("rms_norm has no bias")
    tensors = [sample(4, 5, 6, dtype=dtype)]
    tensors += [sample(*shape, dtype=dtype) + k for k in range(parameters)]
    (got,) = define(op, tensors, shape).execute(tensors)
    want = getattr(functional, op)(tensors[0], shape, *tensors[1:])
    assert got.dtype == dtype
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_eps(op):
    x = sample(3, 4) / 100
    (got,) = define(op, [x], [4], eps=0.25).execute([x])
    torch.testing.assert_close(got, getattr(functional, op)(x, [4], eps=0.25))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("cut", [0, 1, "both"])
def test_norms_of_a_divided_tensor(op, cut):
    """Rows alone need nothing; a divided normalised axis sums its moments over the devices."""
    tensors = [sample(4, 6), sample(6), sample(6)][: 3 if op == "layer_norm" else 2]
    cuts = {0: [[(0, X)]], 1: [[(1, X)], [(0, X)], [(0, X)]], "both": [[(0, Y), (1, X)]]}[cut]
    mesh = SQUARE if cut == "both" else PAIR
    fd = define(op, tensors, [6], cuts=cuts, mesh=mesh)
    sums = 2 if op == "layer_norm" else 1
    with meshfuse.simulate(mesh.size) as sim:
        (got,) = sim.run(fd, tensors)
        assert sim.local(0, 0).shape == (
            (2, 6) if cut == 0 else (2, 3) if cut == "both" else (4, 3)
        )
    assert communications(fd) == ([] if cut == 0 else ["all-reduce x"] * sums)
    torch.testing.assert_close(got, getattr(functional, op)(tensors[0], [6], *tensors[1:]))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_of_open_sizes(op):
    """The number of elements is known at execution."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(getattr(fd.ops, op)(x, [x.size(1)]))
        lay(x, PAIR, [(1, X)])
    for shape in [(4, 6), (2, 10)]:
        t = sample(*shape)
        with meshfuse.simulate(2) as sim:
            (got,) = sim.run(fd, [t])
        torch.testing.assert_close(got, getattr(functional, op)(t, [shape[1]]))


@pytest.mark.parametrize("p", [0, 0.0, 0.25, 0.9, 1, 1.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout(p, dtype):
    x = sample(100, 100, dtype=dtype).abs() + 1
    fd = define("dropout", [x], p, rng_seed=1, rng_offset=2)
    (got,) = fd.execute([x])
    assert got.dtype == dtype
    kept = got != 0
    if p < 1:
        want = torch.where(kept, x.double() / (1 - p), 0).to(dtype)
        torch.testing.assert_close(got, want)
    assert abs(kept.double().mean() - (1 - p)) < 5 * (p * (1 - p) / 10_000) ** 0.5 + 1e-9
    assert torch.equal(fd.execute([x])[0], got)


def test_dropout_does_not_depend_on_the_mesh():
    x = sample(8, 12)
    (want,) = define("dropout", [x], rng_seed=1, rng_offset=2).execute([x])
    for mesh, cuts in [(PAIR, [(0, X)]), (PAIR, [(1, X)]), (SQUARE, [(1, Y), (0, X)])]:
        fd = define("dropout", [x], rng_seed=1, rng_offset=2, cuts=[cuts], mesh=mesh)
        with meshfuse.simulate(mesh.size) as sim:
            assert torch.equal(sim.run(fd, [x])[0], want)
        assert communications(fd) == []


def test_dropout_follows_torch_s_seed():
    x = torch.ones(1000)
    fd = define("dropout", [x])
    torch.manual_seed(0)
    first, second = fd.execute([x])[0], fd.execute([x])[0]
    torch.manual_seed(0)
    assert torch.equal(fd.execute([x])[0], first)
    assert not torch.equal(first, second)


ERRORS = [
    (lambda ops, x: ops.var(x, []), r"var: No reduction axis specified for T0"),
    (lambda ops, x: ops.var(x, [2]), r"var: Reduction on invalid axis 2 of T0"),
    (lambda ops, x: ops.var_mean(x, [1, -1]), r"var_mean: Reduction axes are not unique"),
    (lambda ops, x: ops.layer_norm(x, []), r"layer_norm: normalized_shape has 0 sizes, and T0"),
    (lambda ops, x: ops.layer_norm(x, [5]), r"normalized_shape says 5 for axis 1 of T0.* is 6"),
    (lambda ops, x: ops.rms_norm(x, [6], x), r"rms_norm: weight T0.* has 2 axes"),
    (lambda ops, x: ops.dropout(x, 1.5), r"dropout: p is 1\.5 for T0"),
    (lambda ops, x: ops.dropout(x, rng_seed=1), r"dropout: rng_seed and rng_offset must be provi"),
    (lambda ops, x: ops.dropout(x, 0.5, 1.5, 0), r"dropout: rng_seed is double\. Give an integer"),
    (
        lambda ops, x: ops.welford(ops.cast(x, DataType.Int), [0]),
        r"welford: T1.* is int.*Cast it to a floating point type",
    ),
]


@pytest.mark.parametrize(("program", "message"), ERRORS, ids=[m for _, m in ERRORS])
def test_errors(program, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        with pytest.raises(meshfuse.Error, match=message):
            program(fd.ops, x)


def test_var_without_axes_in_the_call():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        with pytest.raises(TypeError, match=r"var_mean\(\): incompatible function arguments"):
            fd.ops.var_mean(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_divided_along_and_across_its_axis(axis, dtype):
    """Along: a maximum and a sum over the devices. Across: nothing."""
    x = (torch.randn(8, 12) * 20).to(dtype)
    with FusionDefinition() as fd:
        tv = fd.define_tensor([8, 12], dtype=dtype_of(x))
        fd.add_output(fd.ops.softmax(tv, -1))
    place(DeviceMesh(range(4)), tv)
    shard(tv, axis, 4)
    kinds = [c.kind for c in fd.explain().communications]
    assert kinds == (["all-reduce"] * 2 if axis == 1 else [])
    with meshfuse.simulate(4) as sim:
        (got,) = sim.run(fd, [x])
    assert got.dtype == dtype
    torch.testing.assert_close(got, x.softmax(-1))


@pytest.mark.parametrize("divided", [None, 0, 1, 2])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("last", [False, True])
def test_batch_norm(divided, training, last):
    """Result, statistics, and the running ones, which training updates in place."""
    x = torch.randn(4, 6, 8) * 3 + 1
    channels = 8 if last else 6
    weight, bias, mean = torch.randn(channels), torch.randn(channels), torch.randn(channels)
    variance = torch.rand(channels) + 0.5
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor([-1, 6, 8]), *(fd.define_tensor([channels]) for _ in range(4))]
        for result in fd.ops.batch_norm(*tensors, 0.1, 1e-5, training, last):
            fd.add_output(result)
    if divided is not None:
        place(PAIR, *tensors)
        shard(tensors[0], divided, 2)
    running = [mean.clone(), variance.clone()]
    moved = x.movedim(-1, 1) if last else x
    want = functional.batch_norm(moved, *running, weight, bias, training, 0.1, 1e-5)
    want = want.movedim(1, -1) if last else want
    axes = [0, 2]
    used = (moved.mean(axes), moved.var(axes, correction=0)) if training else (mean, variance)
    with meshfuse.simulate(1 if divided is None else 2) as sim:
        parts = [
            list(map(torch.clone, p)) for p in sim.shard(fd, [x, weight, bias, mean, variance])
        ]
        sim.execute(fd, parts)
        got = sim.run(fd, [x, weight, bias, mean.clone(), variance.clone()])
    torch.testing.assert_close(got[0], want)
    torch.testing.assert_close(got[1], used[0])
    torch.testing.assert_close(got[2], (used[1] + 1e-5).rsqrt())
    for device in parts:
        torch.testing.assert_close(list(device[3:]), running)


def test_batch_norm_errors():
    with FusionDefinition() as fd:
        x, one, two = fd.define_tensor([4, 6]), fd.define_tensor([6]), fd.define_tensor([6, 1])
        for args, text in [
            ((x, one, one, one, None), "not both given"),
            ((x, None, None, None, None), None),
            ((x, two, None, None, None), "one element per channel"),
            ((x, None, None, fd.ops.neg(one), one), "is updated in place, but is no input"),
            ((one, None, None, None, None), "at least a batch and channels"),
        ]:
            if text is None:
                fd.ops.batch_norm(*args, 0.1, 1e-5, True)
                continue
            with pytest.raises(meshfuse.Error, match=text):
                fd.ops.batch_norm(*args, 0.1, 1e-5, True)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_normalized_shape_is_compared_with_sizes_that_are_not_declared(op):
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, op)(fd.define_tensor([-1, -1]), [5]))
    fd.execute([torch.randn(4, 5)])
    with pytest.raises(RuntimeError, match=r"normalized_shape says \[5\], but T0 has sizes"):
        fd.execute([torch.randn(4, 6)])
