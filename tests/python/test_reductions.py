# SPDX-License-Identifier: BSD-3-Clause
"""sum, prod, max and min against torch: whole, and over axes that are divided."""

from __future__ import annotations

import functools

import pytest
import torch
from programs import X, Y, block, communications, dtype_of, lay, part_of, place, ramp, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition

OPS = ["sum", "prod", "max", "min"]
DIMS = [[0], [1], [2], [-1], [-3], [0, 2], [2, 0], [-1, 0], [0, 1, 2], None]


def reference(op, x, dims=None, keepdim=False, dtype=None):
    """Torch's result; prod axis by axis, the last first."""
    if dtype is not None:
        x = x.to(dtype)
    axes = sorted(d % x.dim() for d in (range(x.dim()) if dims is None else dims))
    if op == "sum":
        return torch.sum(x, axes, keepdim=keepdim, dtype=dtype)
    if op == "prod":
        return functools.reduce(
            lambda t, d: torch.prod(t, d, keepdim=keepdim, dtype=dtype), reversed(axes), x
        )
    return {"max": torch.amax, "min": torch.amin}[op](x, axes, keepdim=keepdim)


def factors(*shape, dtype=torch.float32):
    """Numbers whose products are exact: few are not 1 or -1."""
    x = torch.ones(shape)
    flat = x.view(-1)
    flat[::5] = -1
    flat[3::17] = 2
    flat[4::19] = 0.5
    return x.to(dtype)


def operand(op, *shape):
    return factors(*shape) if op == "prod" else ramp(*shape)


def run(op, x, *args, **kwargs):
    with FusionDefinition() as fd:
        t = fd.define_tensor(list(x.shape), dtype=dtype_of(x))
        fd.add_output(getattr(fd.ops, op)(t, *args, **kwargs))
    return fd.execute([x])[0]


# ---- whole tensors


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_axes(op, dims, keepdim):
    x = operand(op, 2, 3, 4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([2, -1, 4])
        reduce = getattr(fd.ops, op)
        s = reduce(t) if dims is None else reduce(t, dims, keepdim)
        fd.add_output(s)
        fd.add_output(fd.ops.add(s, 1))
    want = reference(op, x, dims, keepdim and dims is not None)
    out, more = fd.execute([x])
    assert s.ndim == want.dim()
    assert out.shape == want.shape and torch.equal(out, want) and torch.equal(more, want + 1)


@pytest.mark.parametrize("op", OPS)
def test_over_one_dim_given_as_a_number(op):
    x = operand(op, 2, 3)
    assert torch.equal(run(op, x, -1), reference(op, x, [-1]))
    assert torch.equal(run(op, x, dim=0, keepdim=True), reference(op, x, [0], True))


DTYPES = [
    torch.bool,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dims", [[0], [0, 1]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_dtypes(op, dtype, dims):
    """Sums and products of integers and Bool are Int; all else keeps its type."""
    x = (ramp(3, 4) + 4).to(dtype)
    if dtype.is_complex and op in ("max", "min"):
        with pytest.raises(meshfuse.Error, match=rf"{op}: T0 .*complex numbers have no order"):
            run(op, x, dims)
        return
    out, want = run(op, x, dims), reference(op, x, dims)
    assert out.dtype == want.dtype
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize(
    ("dtype", "to"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.int64, torch.float32),
        (torch.int64, torch.int32),
        (torch.float32, torch.int64),
        (torch.float32, torch.float16),
        (torch.bool, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", OPS)
def test_dtype_converts_first(op, dtype, to):
    x = torch.tensor([1.5, -2.25, 1.0, 3.0]).to(dtype)
    out = run(op, x, [0], dtype=dtype_of(torch.empty(0, dtype=to)))
    assert out.dtype == to and torch.equal(out, reference(op, x, [0], dtype=to))


def test_product_of_16_bit_numbers_is_rounded_once():
    x = torch.full((4, 4), 1.01, dtype=torch.bfloat16)
    assert torch.equal(run("prod", x, [0, 1]), x.float().prod().bfloat16())
    assert torch.equal(
        run("prod", x, [0, 1], keepdim=True).flatten()[0], x.float().prod().bfloat16()
    )


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_stays(op):
    x = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 4.0, float("-inf")]])
    for dims in ([0], [1], [0, 1]):
        torch.testing.assert_close(run(op, x, dims), reference(op, x, dims), equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_of_nothing(op, shape):
    x = torch.empty(shape)
    assert torch.equal(run(op, x, [0]), reference(op, x, [0]))
    assert run(op, x).item() == {"sum": 0, "prod": 1}[op]


@pytest.mark.parametrize("op", ["max", "min"])
def test_nothing_has_no_extreme(op):
    """Also where the size is known only at run time."""
    for declared in ([4, 0], [-1, -1]):
        with FusionDefinition() as fd:
            fd.add_output(getattr(fd.ops, op)(fd.define_tensor(declared), [1]))
        message = (
            rf"{op}: Expected reduction dim 1 to have non-zero size, but axis 1 of T0 is empty"
        )
        with pytest.raises(meshfuse.Error, match=message):
            fd.execute([torch.empty(4, 0)])
    assert run(op, torch.empty(0, 4), [1]).shape == (0,)


@pytest.mark.parametrize("op", OPS)
def test_counts_an_expansion(op):
    with FusionDefinition() as fd:
        t = fd.define_tensor([5, 4], contiguity=[None, True])
        fd.add_output(getattr(fd.ops, op)(t, [0]))
    x = ramp(4).expand(5, 4)
    assert torch.equal(fd.execute([x])[0], reference(op, x, [0]))


@pytest.mark.parametrize("op", OPS)
def test_over_a_static_one_is_a_squeeze(op):
    with FusionDefinition() as fd:
        s = getattr(fd.ops, op)(fd.define_tensor([4, 1]), [1])
        fd.add_output(s)
    assert s.ndim == 1
    assert torch.equal(fd.execute([ramp(4, 1)])[0], ramp(4))


@pytest.mark.parametrize(
    ("shape", "dims", "message"),
    [
        ([2, 3], [2], "Reduction on invalid axis"),
        ([2, 3], [-3], "Reduction on invalid axis"),
        ([2, 3], [0, 0], "Reduction axes are not unique"),
        ([2, 3], [1, -1], "Reduction axes are not unique"),
        ([2, 3], [], "No reduction axis specified"),
        ([], [0], "Tried to reduce a 0-dim tensor"),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_wrong_axes(op, shape, dims, message):
    with pytest.raises(meshfuse.Error, match=f"{op}: {message}.*T0"):
        with FusionDefinition() as fd:
            getattr(fd.ops, op)(fd.define_tensor(shape), dims)


# ---- divided over devices


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("dims", "axis"), [([1], 0), ([0], 1), ([0, 1], 2), ([2], 1)])
@pytest.mark.parametrize("op", OPS)
def test_beside_a_divided_axis(op, dims, axis, keepdim, d):
    x = operand(op, 4, 8, 4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, -1, 4])
        fd.add_output(getattr(fd.ops, op)(t, dims, keepdim))
        place(DeviceMesh(range(d)), t)
        shard(t, axis, d)
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [x])
        assert torch.equal(out, reference(op, x, dims, keepdim))
        assert sim.local(device=0).numel() == out.numel() // d
    assert communications(fd) == []


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("dims", "axis"), [([1], 1), ([0], 0), ([0, 1], 0), ([0, 2], 2)])
@pytest.mark.parametrize("op", OPS)
def test_over_a_divided_axis(op, dims, axis, keepdim, d):
    """Every device reduces its part, and one all-reduce the results; also of further axes."""
    x = operand(op, 4, 8, 12)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 8, -1])
        fd.add_output(getattr(fd.ops, op)(t, dims, keepdim))
        place(DeviceMesh(range(d)), t)
        shard(t, axis, d)
    want = reference(op, x, dims, keepdim)
    with meshfuse.simulate(d) as sim:
        assert torch.equal(sim.run(fd, [x])[0], want)
        for r in range(d):
            assert torch.equal(sim.local(device=r), want)
    assert communications(fd) == ["all-reduce x"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_divided_result(op, dtype):
    """A result that is divided on the mesh axis of the operand is a reduce-scatter."""
    x = operand(op, 8, 4).to(dtype)
    with FusionDefinition() as fd:
        t = fd.define_tensor([8, 4], dtype=dtype_of(x))
        out = getattr(fd.ops, op)(t, [0])
        fd.add_output(out)
        place(DeviceMesh(range(2)), t, out)
        shard(t, 0, 2)
        shard(out, 1, 2)  # the loop is [r8, i4]
    want = reference(op, x, [0])
    with meshfuse.simulate(2) as sim:
        (got,) = sim.run(fd, [x])
        assert got.dtype == want.dtype and torch.equal(got, want)
        assert torch.equal(sim.local(device=1), block(want, 0, 2, 1))
    assert communications(fd) == ["reduce-scatter x"]


@pytest.mark.parametrize("op", OPS)
def test_two_mesh_axes(op):
    x = operand(op, 4, 6, 8)
    mesh = DeviceMesh(torch.arange(4).reshape(2, 2))
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 6, 8])
        fd.add_output(getattr(fd.ops, op)(t, [0, 2]))
        lay(t, mesh, [(0, Y), (2, X)])
    with meshfuse.simulate(4) as sim:
        want = reference(op, x, [0, 2])
        assert torch.equal(sim.run(fd, [x])[0], want)
        for r in range(4):
            assert torch.equal(sim.local(device=r), part_of(want, mesh, (), r))
    assert sorted(communications(fd)) == ["all-reduce x", "all-reduce y"]


@pytest.mark.parametrize("op", OPS)
def test_result_on_another_mesh(op):
    """Partial results meet at a device of the other mesh."""
    x = operand(op, 4, 6)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 6])
        out = getattr(fd.ops, op)(t, [0])
        fd.add_output(out)
        place(DeviceMesh([0, 1]), t)
        shard(t, 0, 2)
        place(DeviceMesh([2]), out)
    with meshfuse.simulate(3) as sim:
        sim.run(fd, [x])
        assert torch.equal(sim.local(device=2), reference(op, x, [0]))


@pytest.mark.parametrize("op", OPS)
def test_rfactor_by_hand(op):
    """A user's rfactor gives a local reduction and one of the same kind over devices."""
    x = operand(op, 4, 6)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 6])
        out = getattr(fd.ops, op)(t, [0])
        fd.add_output(out)
        place(DeviceMesh(range(2)), t, out)
        shard(t, 0, 2)
        out.outer_split(0, 2)
        local = out.rfactor([1])
        local.axis(0).parallelize(X)
    assert op in str(local.definition()) and op in str(out.definition())
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x])[0], reference(op, x, [0]))
    assert communications(fd) == ["all-reduce x"]


@pytest.mark.parametrize("op", OPS)
def test_nan_and_infinity_cross_devices(op):
    x = torch.tensor([[1.0, float("inf"), -1.0], [float("nan"), -2.0, float("-inf")]])
    with FusionDefinition() as fd:
        t = fd.define_tensor([2, 3])
        fd.add_output(getattr(fd.ops, op)(t, [0]))
        place(DeviceMesh(range(2)), t)
        shard(t, 0, 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x])
    torch.testing.assert_close(out, reference(op, x, [0]), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("op", OPS)
def test_uneven_parts(op, d, sign, dtype):
    """Of 5 rows the fourth device has none: it contributes what changes nothing."""
    x = (sign * (operand(op, 5, 3).abs() + 1)).to(dtype)
    with FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([5, 3], dtype=dtype_of(x))
        fd.add_output(getattr(fd.ops, op)(t, [0]))
        fd.add_output(getattr(fd.ops, op)(t, [0, 1], keepdim=True))
        place(DeviceMesh(range(d)), t)
        shard(t, 0, d)
    with meshfuse.simulate(d) as sim:
        rows, everything = sim.run(fd, [x])
    assert torch.equal(rows, reference(op, x, [0]))
    torch.testing.assert_close(everything, reference(op, x, [0, 1], True))


@pytest.mark.parametrize("op", ["max", "min"])
def test_nothing_has_no_extreme_on_devices(op):
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, 3])
        fd.add_output(getattr(fd.ops, op)(t, [0]))
        place(DeviceMesh(range(2)), t)
        shard(t, 0, 2)
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=f"{op}: Expected reduction dim 0 .*axis 0 of T0"):
            sim.run(fd, [torch.empty(0, 3)])
        assert torch.equal(sim.run(fd, [ramp(4, 3)])[0], reference(op, ramp(4, 3), [0]))


@pytest.mark.parametrize("op", ["max", "prod", "sum"])
def test_wider_partial_results_only_where_they_round(op):
    """An extreme is exact in 16 bits, so nothing is widened for it."""
    x = operand(op, 4, 6).bfloat16()
    with FusionDefinition(reduce_dtype=DataType.Float) as fd:
        t = fd.define_tensor([4, 6], dtype=DataType.BFloat16)
        fd.add_output(getattr(fd.ops, op)(t, [0]))
        place(DeviceMesh(range(2)), t)
        shard(t, 0, 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x])
    assert out.dtype == torch.bfloat16 and torch.equal(out, reference(op, x, [0]))
    assert ("cast" in str(fd.plan())) == (op != "max")


@pytest.mark.parametrize("operand_axis", [None, 1])
@pytest.mark.parametrize(("of_operand", "of_result"), [(X, Y), (Y, X)], ids=["xy", "yx"])
@pytest.mark.parametrize("dims", [[0], [0, 1]], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_result_asks_for_a_reduction_that_the_devices_do_not_divide(
    op, dims, of_operand, of_result, operand_axis
):
    """5 elements are no equal parts for 2 devices: the operand stays whole on that mesh axis."""
    value = operand(op, 5, 6)
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 6])
        y = getattr(fd.ops, op)(x, dims)
        fd.add_output(y)
        place(DeviceMesh(torch.arange(4).reshape(2, 2)), x, y)
        if operand_axis is not None:
            shard(x, operand_axis, 2, of_operand)
        shard(y, [axis.is_reduction() for axis in y.get_loop_domain()].index(True), 2, of_result)
    with meshfuse.simulate(4) as sim:
        (out,) = sim.run(fd, [value])
    torch.testing.assert_close(out, reference(op, value, dims))
