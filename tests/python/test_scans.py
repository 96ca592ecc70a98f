# SPDX-License-Identifier: BSD-3-Clause
"""cumsum, cumprod, cummax, cummin and triu: ops that need an axis whole."""

from __future__ import annotations

import pytest
import torch
from programs import block, communications, dtype_of, place, ramp, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition

OPS = ["cumsum", "cumprod", "cummax", "cummin"]
COMBINE = {
    "cumsum": torch.add,
    "cumprod": torch.mul,
    "cummax": torch.maximum,
    "cummin": torch.minimum,
}
DTYPES = [
    torch.bool,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def reference(op, x, dim, init=None):
    out = getattr(torch, op)(x, dim)
    out = out if isinstance(out, torch.Tensor) else out.values
    return out if init is None else COMBINE[op](out, torch.tensor(init).to(out.dtype))


def run(op, x, *args, **kwargs):
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1] * x.dim(), dtype=dtype_of(x))
        fd.add_output(getattr(fd.ops, op)(t, *args, **kwargs))
    return fd.execute([x])[0]


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("op", OPS)
def test_scan(op, dim):
    x = ramp(3, 4, 5)
    assert torch.equal(run(op, x, dim), reference(op, x, dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_scan_dtypes(op, dtype):
    """Sums and products of integers and Bool are Int, as in torch."""
    x = ramp(3, 4).to(dtype)
    try:
        want = reference(op, x, 1)
    except RuntimeError:
        with pytest.raises(meshfuse.Error):
            run(op, x, 1)
        return
    out = run(op, x, 1)
    assert out.dtype == want.dtype
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize("op", ["cummax", "cummin"])
def test_nan_stays(op):
    x = torch.tensor([1.0, 3.0, float("nan"), 5.0, -5.0])
    torch.testing.assert_close(run(op, x, 0), reference(op, x, 0), equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "init"),
    [
        (torch.float32, 2.5),
        (torch.float32, 2),
        (torch.float16, -1.5),
        (torch.float64, 2.5),
        (torch.int64, 3),
        (torch.int32, -1),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", OPS)
def test_init_is_what_the_scan_starts_from(op, dtype, init):
    x = ramp(3, 4).to(dtype)
    for out in (run(op, x, 1, init), run(op, x, 1, init=init)):
        want = reference(op, x, 1, init)
        assert out.dtype == want.dtype and torch.equal(out, want)


def test_init_may_be_an_input():
    x = ramp(3, 4)
    with FusionDefinition() as fd:
        t, s = fd.define_tensor([3, 4]), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.cumsum(t, 0, s))
    for init in (0.5, 8.0):
        assert torch.equal(fd.execute([x, init])[0], x.cumsum(0) + init)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_init_that_does_not_fit(dtype):
    with pytest.raises(
        meshfuse.Error, match=r"cumsum: init is double, but T0 is .*Cast the tensor"
    ):
        run("cumsum", ramp(3).to(dtype), 0, 0.5)


def test_integer_init_of_a_sum_of_bools():
    x = torch.tensor([True, False, True])
    assert torch.equal(run("cumsum", x, 0, 3), x.cumsum(0) + 3)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_scan_of_nothing(op, shape):
    assert run(op, torch.empty(shape), 0).shape == shape


@pytest.mark.parametrize("op", OPS)
def test_scan_of_a_static_one(op):
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, op)(fd.define_tensor([4, 1]), 1))
    assert torch.equal(fd.execute([ramp(4, 1)])[0], ramp(4, 1))


@pytest.mark.parametrize("dim", [2, -3])
@pytest.mark.parametrize("op", OPS)
def test_wrong_axis(op, dim):
    message = rf"{op}: Tried to access out of boundary index {dim}. total index: 2"
    with pytest.raises(meshfuse.Error, match=f"{message}.*T0"):
        with FusionDefinition() as fd:
            getattr(fd.ops, op)(fd.define_tensor([2, 3]), dim)


def test_wrong_kind_of_argument():
    with pytest.raises(TypeError, match=r"cumsum\(\): incompatible function arguments"):
        with FusionDefinition() as fd:
            fd.ops.cumsum(fd.define_tensor([2, 3]), 1.5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", OPS)
def test_divided_scan(op, axis):
    """Along a divided axis the operand is gathered; beside one nothing is sent."""
    x = ramp(4, 6)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 6])
        fd.add_output(getattr(fd.ops, op)(t, 1))
        place(DeviceMesh(range(2)), t)
        shard(t, axis, 2)
    want = reference(op, x, 1)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x])[0], want)
        if axis == 0:
            assert torch.equal(sim.local(device=1), block(want, 0, 2, 1))
    assert communications(fd) == ([] if axis == 0 else ["all-gather x"])


# ---- triu


@pytest.mark.parametrize("diagonal", [0, 1, -1, 5, -5])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 4, 4), (2, 3, 1, 4)], ids=str)
def test_triu(shape, diagonal):
    x = ramp(*shape) + 5
    assert torch.equal(run("triu", x, diagonal), torch.triu(x, diagonal))
    assert torch.equal(run("triu", x, diagonal=diagonal), torch.triu(x, diagonal))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triu_keeps_the_dtype(dtype):
    x = ramp(4, 4).to(dtype)
    out = run("triu", x)
    assert out.dtype == dtype and torch.equal(out, torch.triu(x))


@pytest.mark.parametrize("n", [0, 1])
def test_triu_needs_a_matrix(n):
    message = f"input tensor for triu must have 2 or more dims, but got {n} dims: T0"
    with pytest.raises(meshfuse.Error, match=message):
        with FusionDefinition() as fd:
            fd.ops.triu(fd.define_tensor([4] * n))


def test_triu_with_a_scalar_input_as_diagonal():
    x = ramp(4, 5) + 5
    with FusionDefinition() as fd:
        t, k = fd.define_tensor([4, 5]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.triu(t, k))
    for diagonal in (-2, 0, 3):
        assert torch.equal(fd.execute([x, diagonal])[0], torch.triu(x, diagonal))


def test_triu_with_a_diagonal_that_is_no_integer():
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 5])
        with pytest.raises(
            meshfuse.Error, match=r"triu: the diagonal of T0 is double\. Give an int"
        ):
            fd.ops.triu(t, 1.5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_divided_triu(axis):
    x = ramp(2, 4, 4) + 5
    with FusionDefinition() as fd:
        t = fd.define_tensor([2, 4, 4])
        fd.add_output(fd.ops.triu(t, 1))
        place(DeviceMesh(range(2)), t)
        shard(t, axis, 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x])[0], torch.triu(x, 1))
    assert communications(fd) == ([] if axis == 0 else ["all-gather x"])
