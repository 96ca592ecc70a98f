# SPDX-License-Identifier: BSD-3-Clause
"""Matrix products of every combination of ranks, whole and divided over devices."""

from __future__ import annotations

import re

import pytest
import torch
from programs import (
    DEVICES,
    assert_layout,
    block,
    communications,
    dtype_of,
    matmul_cut,
    poison,
    ramp,
    sharded_matmul,
)

import meshfuse
from meshfuse import DataType, FusionDefinition


def product(a, b, *, symbolic=False, **kwargs):
    """Return the program a @ b for tensors like these."""
    with FusionDefinition() as fd:
        tvs = [
            fd.define_tensor(
                [-1 if symbolic and n != 1 else n for n in t.shape], dtype=dtype_of(t), **kwargs
            )
            for t in (a, b)
        ]
        fd.add_output(fd.ops.matmul(*tvs))
    return fd


# Shapes of both operands, and the logical axes of the result with its reduction.
RANKS = [
    ((5,), (5,), "r5"),
    ((3, 5), (5,), "3 r5"),
    ((5,), (5, 4), "4 r5"),
    ((3, 5), (5, 4), "3 4 r5"),
    ((2, 3, 5), (5,), "2 3 r5"),
    ((5,), (2, 5, 4), "2 4 r5"),
    ((2, 3, 5), (5, 4), "2 3 4 r5"),
    ((3, 5), (2, 5, 4), "2 3 4 r5"),
    ((2, 3, 5), (2, 5, 4), "2 3 4 r5"),
    ((6, 1, 3, 5), (2, 5, 4), "6 2 3 4 r5"),
    ((2, 3, 5), (6, 1, 5, 4), "6 2 3 4 r5"),
    ((6, 1, 3, 5), (1, 2, 5, 4), "6 2 3 4 r5"),
    ((1, 3, 5), (2, 5, 4), "2 3 4 r5"),
    ((2, 3, 5), (1, 5, 4), "2 3 4 r5"),
    ((5,), (6, 2, 5, 4), "6 2 4 r5"),
    ((6, 2, 3, 5), (5,), "6 2 3 r5"),
    ((2, 2, 2, 3, 5), (2, 5, 4), "2 2 2 3 4 r5"),
    ((1, 5), (5, 4), "1 4 r5"),
    ((3, 5), (5, 1), "3 1 r5"),
    ((1, 5), (5, 1), "1 1 r5"),
    ((3, 1), (1, 4), "3 4"),
    ((2, 3, 1), (1, 4), "2 3 4"),
    ((1,), (1, 4), "4"),
    ((3, 1), (1,), "3"),
    ((1,), (1,), ""),
    ((1, 1), (1, 1), "1 1"),
]


def axes_text(tv):
    return " ".join(
        ("r" if axis.is_reduction() else "") + str(axis.extent())
        for axis in tv.get_logical_domain()
    )


@pytest.mark.parametrize(("a", "b", "axes"), RANKS)
def test_axes_of_the_result(a, b, axes):
    fd = product(torch.empty(a), torch.empty(b))
    (out,) = fd.fusion.outputs()
    assert axes_text(out) == axes
    assert out.ndim == torch.matmul(torch.empty(a), torch.empty(b)).dim()


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize(("a", "b", "axes"), RANKS)
def test_values(a, b, axes, symbolic):
    x, y = ramp(*a), ramp(*b)
    (out,) = product(x, y, symbolic=symbolic).execute([x, y])
    assert torch.equal(out, torch.matmul(x, y))
    assert out.is_contiguous()


@pytest.mark.parametrize("shape", [((5, 1), (1, 4)), ((1,), (1, 4)), ((2, 3, 1), (1,))], ids=str)
def test_symbolic_inner_size_that_is_one(shape):
    """A size declared -1 stays a reduction also when it is 1; the rank is the same."""
    x, y = ramp(*shape[0]), ramp(*shape[1])
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1] * x.dim())
        b = fd.define_tensor([-1] * y.dim())
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
    assert axes_text(out).count("r") == 1
    assert torch.equal(fd.execute([x, y])[0], torch.matmul(x, y))


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((5,), (5,))], ids=str)
def test_dtypes(dtype, shape):
    x, y = ramp(*shape[0], dtype=dtype), ramp(*shape[1], dtype=dtype)
    if dtype.is_complex:
        x, y = x + 1j * ramp(*shape[0]).flip(0), y - 2j * ramp(*shape[1]).flip(0)
        x, y = x.to(dtype), y.to(dtype)
    (out,) = product(x, y).execute([x, y])
    assert out.dtype == dtype
    assert torch.equal(out, torch.matmul(x, y))


def test_large_integers_are_exact():
    x, y = torch.tensor([[2**53 + 1, 1]]), torch.tensor([[1], [2]])
    (out,) = product(x, y).execute([x, y])
    assert out.tolist() == [[2**53 + 3]]


def test_complex_numbers_are_not_conjugated():
    x = torch.tensor([[1 + 2j, 3 - 1j]])
    y = torch.tensor([[2 - 1j], [1j]])
    (out,) = product(x, y).execute([x, y])
    assert out.dtype == torch.complex64 and out.tolist() == [[5 + 6j]]


EMPTY = [
    ((4, 0), (0, 6)),
    ((0, 4), (4, 6)),
    ((3, 4), (4, 0)),
    ((0, 0), (0, 0)),
    ((2, 4, 0), (0, 6)),
    ((0, 4, 5), (5, 6)),
    ((0, 4, 5), (0, 5, 6)),
    ((0,), (0,)),
    ((0,), (0, 6)),
    ((4, 0), (0,)),
]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_sizes(shape, symbolic):
    """An empty sum is exactly zero, whatever the memory held."""
    x, y = torch.empty(shape[0]), torch.empty(shape[1])
    want = torch.matmul(x, y)
    fd = product(x, y, symbolic=symbolic)
    for _ in range(2):
        poison(*want.shape)
        (out,) = fd.execute([x, y])
        assert out.shape == want.shape and torch.equal(out, torch.zeros(want.shape))


@pytest.mark.parametrize("k", [0, 4], ids=["k0", "k4"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_empty_sizes_in_either_order(order, k):
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, k]), fd.define_tensor([k, 6])
        fd.add_output(fd.ops.matmul(a, b), stride_order=order)
    poison(4, 6)
    (out,) = fd.execute([torch.ones(4, k), torch.ones(k, 6)])
    assert torch.equal(out, torch.full((4, 6), float(k)))


STRIDED = [
    ("transposed b", lambda: (ramp(4, 6), ramp(8, 6).t())),
    ("transposed a", lambda: (ramp(6, 4).t(), ramp(6, 8))),
    ("both transposed", lambda: (ramp(6, 4).t(), ramp(8, 6).t())),
    ("permuted batch", lambda: (ramp(4, 2, 6).transpose(0, 1), ramp(2, 6, 8))),
    ("batch innermost", lambda: (ramp(4, 6, 2).permute(2, 0, 1), ramp(2, 6, 8))),
    ("every second row", lambda: (ramp(8, 6)[::2], ramp(6, 8))),
    ("every second column", lambda: (ramp(4, 12)[:, ::2], ramp(6, 16)[:, ::2])),
    ("columns of a wider one", lambda: (ramp(4, 9)[:, 2:8], ramp(6, 10)[:, 1:9])),
    ("expanded rows", lambda: (ramp(1, 6).expand(4, 6), ramp(6, 8))),
    ("expanded columns", lambda: (ramp(4, 6), ramp(6, 1).expand(6, 8))),
    ("expanded batch", lambda: (ramp(4, 6).expand(3, 4, 6), ramp(3, 6, 8))),
    ("expanded both", lambda: (ramp(1, 1, 6).expand(3, 4, 6), ramp(1, 6, 1).expand(3, 6, 8))),
    ("one number", lambda: (torch.tensor(2.0).expand(4, 6), torch.tensor(3.0).expand(6, 8))),
    ("offset in storage", lambda: (ramp(30)[5:29].view(4, 6), ramp(50)[2:].view(6, 8))),
]


@pytest.mark.parametrize("make", [m for _, m in STRIDED], ids=[n for n, _ in STRIDED])
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_strided_inputs(make, symbolic):
    x, y = make()
    (out,) = product(x, y, symbolic=symbolic).execute([x, y])
    assert torch.equal(out, torch.matmul(x, y))
    assert_layout(out, out.shape, out.contiguous().stride())


def test_from_pytorch_takes_the_layout_of_the_samples():
    x, y = ramp(4, 2, 6).transpose(0, 1), ramp(8, 6).t()
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(fd.from_pytorch(x), fd.from_pytorch(y)))
    assert torch.equal(fd.execute([x, y])[0], x @ y)


def test_declared_expanded_axis():
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 6], contiguity=[None, True])
        b = fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(a, b))
    x, y = ramp(1, 6).expand(4, 6), ramp(6, 8)
    assert torch.equal(fd.execute([x, y])[0], x @ y)
    with pytest.raises(meshfuse.Error, match="expanded broadcast"):
        fd.execute([ramp(4, 6), y])


def test_transposed_weight_is_used_in_place():
    """Local columns of a transposed weight, as views: the product of a copy, without copying."""
    x, w = torch.randn(4, 6), torch.randn(8, 6).t()
    fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, "n"), 2)
    views = [[x, w[:, 4 * r : 4 * r + 4]] for r in range(2)]
    with meshfuse.simulate(2) as sim:
        sim.execute(fd, views)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            from_views = sim.execute(fd, views)
        from_copies = sim.execute(fd, [[t.contiguous() for t in part] for part in views])
    events = {event.key for event in profile.key_averages()}
    assert "aten::mm" in events
    assert not events & {"aten::copy_", "aten::clone", "aten::contiguous"}
    for r in range(2):
        torch.testing.assert_close(from_views[r][0], from_copies[r][0])
        torch.testing.assert_close(from_views[r][0], (x @ w)[:, 4 * r : 4 * r + 4])


WRONG = [
    ([4, 6], [5, 3], {}, ["matmul", "6", "5", "T0", "T1"]),
    ([-1, 6], [5, -1], {}, ["6", "5"]),
    ([0, 4], [5, 6], {}, ["4", "5"]),
    ([5], [6], {}, ["5", "6"]),
    ([2, 3, 5], [4, 5, 6], {}, ["2", "4", "T0", "T1"]),
    ([2, 3, 5], [2, 2, 5, 6], {"a": [3, 3, 5]}, ["3", "2"]),
    ([3, 1], [5, 4], {}, ["K should be broadcast in both A and B, or neither."]),
    ([3, 5], [1, 4], {}, ["K should be broadcast in both A and B, or neither."]),
    ([3, 1], [-1, 4], {}, ["K should be broadcast in both A and B, or neither."]),
    ([], [4], {}, ["Expected inputs to be atleast 1D", "T0"]),
    ([4, 3], [], {}, ["Expected inputs to be atleast 1D", "T1"]),
    ([], [], {}, ["Expected inputs to be atleast 1D", "T0"]),
]


@pytest.mark.parametrize(("a", "b", "other", "fragments"), WRONG)
def test_wrong_shapes(a, b, other, fragments):
    with pytest.raises(meshfuse.Error) as caught:
        with FusionDefinition() as fd:
            fd.ops.matmul(fd.define_tensor(other.get("a", a)), fd.define_tensor(b))
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("left", "right", "names"),
    [
        (DataType.Float, DataType.Half, ("float", "__half")),
        (DataType.Half, DataType.BFloat16, ("__half", "__bfloat")),
        (DataType.Float, DataType.Double, ("float", "double")),
        (DataType.Int, DataType.Float, ("int64_t", "float")),
        (DataType.Int, DataType.Int32, ("int64_t", "int")),
        (DataType.ComplexFloat, DataType.Float, ("std::complex<float>", "float")),
    ],
    ids=str,
)
def test_unequal_dtypes(left, right, names):
    with pytest.raises(
        meshfuse.Error, match="Expected A and B dtypes to have the same dtype"
    ) as caught:
        with FusionDefinition() as fd:
            fd.ops.matmul(
                fd.define_tensor([4, 6], dtype=left), fd.define_tensor([6, 8], dtype=right)
            )
    for name in (*names, "T0", "T1"):
        assert re.search(rf"\b{re.escape(name)}(?!\w)", str(caught.value))


# ---- divided over devices

LOOPS = ["m", "n", "batch0", "batch1"]
SHARDED = [
    ((24, 5), (5, 24)),
    ((24, 5), (5,)),
    ((5,), (5, 24)),
    ((24, 24, 5), (5,)),
    ((5,), (24, 5, 24)),
    ((24, 3, 5), (5, 24)),
    ((24, 5), (24, 5, 3)),
    ((24, 2, 5), (24, 5, 2)),
    ((1, 2, 5), (24, 5, 2)),
    ((24, 2, 5), (1, 5, 2)),
    ((24, 1, 2, 5), (24, 5, 2)),
    ((2, 5), (24, 24, 5, 2)),
    ((24, 1), (1, 24)),
    ((1, 5), (5, 24)),
    ((24, 5), (5, 1)),
]
CASES = [
    (a, b, loop)
    for a, b in SHARDED
    for loop in LOOPS
    if (cut := matmul_cut(a, b, loop))
    and {1, *[s[c] % 24 for s, c in ((a, cut.a), (b, cut.b)) if c is not None]} == {0, 1}
]


@pytest.mark.parametrize("d", DEVICES)
@pytest.mark.parametrize(("a", "b", "loop"), CASES)
def test_sharded(a, b, loop, d):
    """Each device has its block of the result, and the blocks make up torch's result."""
    x, y = ramp(*a), ramp(*b)
    want = torch.matmul(x, y)
    cut = matmul_cut(a, b, loop)
    for symbolic in (False, True):
        fd = sharded_matmul(x, y, cut, d, symbolic=symbolic)
        with meshfuse.simulate(d) as sim:
            (out,) = sim.run(fd, [x, y])
            assert torch.equal(out, want)
            for r in range(d):
                part = block(want, cut.out, d, r)
                local = sim.local(output=0, device=r)
                assert torch.equal(local, part)
                assert_layout(local, part.shape, part.contiguous().stride())


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize(("a", "b", "loop"), CASES)
def test_sharding_of_the_result_is_found(a, b, loop, d):
    """With operands divided and the result left open, the result is divided alike."""
    x, y = ramp(*a), ramp(*b)
    cut = matmul_cut(a, b, loop)
    fd = sharded_matmul(x, y, cut, d, declare_output=False)
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [x, y])
        assert torch.equal(out, torch.matmul(x, y))
        assert sim.local(device=d - 1).shape == block(out, cut.out, d, d - 1).shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("loop", ["m", "n"])
def test_sharded_dtypes(loop, dtype):
    x, y = ramp(6, 5, dtype=dtype), ramp(5, 4, dtype=dtype)
    fd = sharded_matmul(x, y, matmul_cut(x.shape, y.shape, loop), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, y])
    assert out.dtype == dtype and torch.equal(out, x @ y)


@pytest.mark.parametrize("make", [m for _, m in STRIDED], ids=[n for n, _ in STRIDED])
@pytest.mark.parametrize("loop", ["m", "n"])
def test_sharded_strided_inputs(make, loop):
    x, y = make()
    fd = sharded_matmul(x, y, matmul_cut(x.shape, y.shape, loop), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, y])
    assert torch.equal(out, torch.matmul(x, y))


@pytest.mark.parametrize(
    "shape", [((4, 0), (0, 6)), ((0, 4), (4, 6)), ((3, 0, 4), (4, 6))], ids=str
)
def test_sharded_empty_sizes(shape):
    x, y = torch.empty(shape[0]), torch.empty(shape[1])
    want = torch.matmul(x, y)
    fd = sharded_matmul(x, y, matmul_cut(*shape, "n"), 2)
    poison(*want.shape[:-1], want.shape[-1] // 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, y])
        assert sim.local(device=1).shape == (*want.shape[:-1], want.shape[-1] // 2)
    assert torch.equal(out, torch.zeros(want.shape))


@pytest.mark.parametrize(
    ("a", "b", "loop"),
    [((3, 4), (4, 0), "n"), ((0, 4), (4, 3), "m"), ((0, 2, 3), (3, 2), "batch0")],
)
def test_sharded_axis_without_elements(a, b, loop):
    x, y = torch.empty(a), torch.empty(b)
    fd = sharded_matmul(x, y, matmul_cut(a, b, loop), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, y])
        assert sim.local(device=0).shape == torch.matmul(x, y).shape
    assert out.shape == torch.matmul(x, y).shape


# Where a, b and the result are divided, the communications, and the part of a device of two.
COMMUNICATION = [
    ("both on k", {"a": 1, "b": 0}, ["all-reduce x"], None),
    ("a on k", {"a": 1}, ["all-reduce x"], None),
    ("b on k", {"b": 0}, ["all-reduce x"], None),
    ("m and n", {"a": 0, "b": 1}, ["all-gather x"], 1),
    ("m and n, result on m", {"a": 0, "b": 1, "out": 0}, ["all-gather x"], 0),
    ("m and n, result on n", {"a": 0, "b": 1, "out": 1}, ["all-gather x"], 1),
    ("m and k", {"a": 0, "b": 0, "out": 0}, ["all-gather x"], 0),
    ("n, result whole", {"b": 1, "out": None}, ["all-gather x"], None),
    ("m, result on n", {"a": 0, "out": 1}, ["all-gather x"], 1),
    ("both on k, result on m", {"a": 1, "b": 0, "out": 0}, ["reduce-scatter x"], 0),
    ("both on k, result on n", {"a": 1, "b": 0, "out": 1}, ["reduce-scatter x"], 1),
    ("result on k", {"out": 2}, ["all-reduce x"], None),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("cuts", "expected", "axis"), [c for _, *c in COMMUNICATION], ids=[c[0] for c in COMMUNICATION]
)
def test_communication(cuts, expected, axis, dtype):
    """Divided in any way, the values are torch's, and every device has its part of them."""
    x, y = ramp(4, 6, dtype=dtype), ramp(6, 8, dtype=dtype)
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 6], dtype=dtype_of(x))
        b = fd.define_tensor([6, 8], dtype=dtype_of(y))
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        mesh = meshfuse.DeviceMesh(range(2))
        for name, tv in (("a", a), ("b", b), ("out", out)):
            if name != "out" or "out" in cuts:
                tv.set_device_mesh(mesh)
            if cuts.get(name) is not None:
                tv.outer_split(cuts[name], 2)
                tv.axis(cuts[name]).parallelize(meshfuse.ParallelType.mesh_x)
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [x, y])
        assert result.dtype == dtype and torch.equal(result, x @ y)
        for r in range(2):
            part = x @ y if axis is None else block(x @ y, axis, 2, r)
            assert torch.equal(sim.local(device=r), part)
    assert communications(fd) == expected
