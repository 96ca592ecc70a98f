# SPDX-License-Identifier: BSD-3-Clause
"""linear: ranks, bias, device axes in front of the weight, memory orders, and messages."""

from __future__ import annotations

import pytest
import torch
from programs import (
    DEVICES,
    X,
    assert_layout,
    block,
    communications,
    dense_strides,
    dtype_of,
    place,
    poison,
    ramp,
    shard,
    stride_orders,
)
from torch.nn.functional import linear

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition


def program(x, w, bias=None, *, symbolic=False, stride_order=None):
    with FusionDefinition() as fd:
        tvs = [
            fd.define_tensor([-1 if symbolic and n != 1 else n for n in t.shape], dtype=dtype_of(t))
            for t in (x, w, bias)
            if t is not None
        ]
        fd.add_output(fd.ops.linear(*tvs), stride_order=stride_order)
    return fd


def inputs(*tensors):
    return [t for t in tensors if t is not None]


SHAPES = [
    ((5,), (4, 5), "4 r5"),
    ((3, 5), (4, 5), "3 4 r5"),
    ((2, 3, 5), (4, 5), "2 3 4 r5"),
    ((2, 1, 3, 5), (4, 5), "2 1 3 4 r5"),
    ((1, 1, 5), (4, 5), "1 1 4 r5"),
    ((3, 5), (1, 5), "3 1 r5"),
    ((3, 1), (4, 1), "3 4"),
    ((1,), (1, 1), "1"),
]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("x", "w", "axes"), SHAPES)
def test_values(x, w, axes, with_bias, symbolic):
    x, w = ramp(*x), ramp(*w)
    bias = 100 * ramp(w.size(0)) if with_bias else None
    fd = program(x, w, bias, symbolic=symbolic)
    (out,) = fd.execute(inputs(x, w, bias))
    assert torch.equal(out, linear(x, w, bias))
    (tv,) = fd.fusion.outputs()
    text = " ".join(
        ("r" if axis.is_reduction() else "") + str(axis.extent())
        for axis in tv.get_logical_domain()
    )
    assert symbolic or text == axes


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("x", [(5,), (3, 5), (2, 3, 5)], ids=str)
def test_one_dimensional_weight(x, with_bias):
    x, w = ramp(*x), ramp(5)
    bias = torch.tensor(7.0) if with_bias else None
    (out,) = program(x, w, bias).execute(inputs(x, w, bias))
    # torch's own linear refuses some of these.
    assert torch.equal(out, x @ w + (7 if with_bias else 0))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_dtypes(dtype, with_bias):
    x, w = ramp(3, 5, dtype=dtype), ramp(4, 5, dtype=dtype)
    bias = ramp(4, dtype=dtype) if with_bias else None
    (out,) = program(x, w, bias).execute(inputs(x, w, bias))
    assert out.dtype == dtype and torch.equal(out, linear(x, w, bias))


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    ("x", "w"),
    [((2, 0), (3, 0)), ((0, 4), (3, 4)), ((2, 4), (0, 4)), ((0,), (3, 0)), ((2, 0, 4), (3, 4))],
)
def test_empty_sizes(x, w, with_bias):
    x, w = torch.empty(x), torch.empty(w)
    bias = torch.tensor([100.0, 200.0, 300.0])[: w.size(0)] if with_bias else None
    want = linear(x, w, bias)
    poison(*want.shape)
    (out,) = program(x, w, bias).execute(inputs(x, w, bias))
    assert out.shape == want.shape
    rows = torch.zeros(want.shape) if bias is None else bias.expand(want.shape)
    assert torch.equal(out, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [((3, 5), o) for o in stride_orders(2)]
    + [((2, 3, 5), o) for o in stride_orders(3)]
    + [((2, 2, 3, 5), o) for o in [(0, 1, 2, 3), (2, 3, 0, 1), (1, 3, 0, 2), (3, 0, 2, 1)]],
)
def test_stride_orders(shape, order, with_bias, dtype):
    torch.manual_seed(0)
    x, w = torch.randn(shape, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    bias = torch.randn(4, dtype=dtype) if with_bias else None
    (out,) = program(x, w, bias, stride_order=order).execute(inputs(x, w, bias))
    torch.testing.assert_close(out, linear(x, w, bias))
    assert_layout(out, out.shape, dense_strides(out.shape, order))


@pytest.mark.parametrize(
    "make",
    [
        lambda: (ramp(5, 3).t(), ramp(4, 5)),
        lambda: (ramp(3, 5), ramp(5, 4).t()),
        lambda: (ramp(3, 2, 5).transpose(0, 1), ramp(4, 5)),
        lambda: (ramp(1, 5).expand(3, 5), ramp(4, 5)),
        lambda: (ramp(6, 10)[::2, ::2], ramp(8, 10)[1::2, 1::2]),
    ],
    ids=["x transposed", "w transposed", "x permuted", "x expanded", "slices"],
)
def test_strided_inputs(make):
    x, w = make()
    bias = ramp(8)[::2]
    (out,) = program(x, w, bias).execute([x, w, bias])
    assert torch.equal(out, linear(x, w, bias))


# ---- divided over devices


@pytest.mark.parametrize("d", DEVICES)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "found"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("loop", "axis"), [("n", -1), ("rows", 0), ("batch", 1)])
def test_sharded(loop, axis, with_bias, declared, d):
    """Column-parallel, or a leading axis of x divided; both without communication."""
    x, w = ramp(24, 24, 5) if loop == "batch" else ramp(24, 2, 5), ramp(24, 5)
    bias = 100 * ramp(24) if with_bias else None
    with FusionDefinition() as fd:
        tx, tw = fd.define_tensor([-1, -1, 5]), fd.define_tensor([24, 5])
        tb = [fd.define_tensor([24])] if with_bias else []
        out = fd.ops.linear(tx, tw, *tb)
        fd.add_output(out)
        place(DeviceMesh(range(d)), tx, tw, *tb)
        for tv in [tw, *tb] if loop == "n" else [tx]:
            shard(tv, 0 if loop == "n" else axis, d)
        if declared:
            place(DeviceMesh(range(d)), out)
            shard(out, 2 if loop == "n" else axis, d)
    want = linear(x, w, bias)
    with meshfuse.simulate(d) as sim:
        (result,) = sim.run(fd, inputs(x, w, bias))
        assert torch.equal(result, want)
        for r in range(d):
            local = sim.local(device=r)
            assert torch.equal(local, block(want, axis, d, r))
            assert local.is_contiguous()


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("bias", [None, "own", "shared"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "found"])
def test_device_axis_in_front_of_the_weight(declared, bias, d):
    """A logical axis of extent d on the mesh: local size 1, and the result has it in front."""
    b, s, e, n = 2, 3, 5, 4
    x, w = ramp(b, s, e), ramp(d, n, e)
    shapes = {None: [], "own": [(d, n)], "shared": [(n,)]}[bias]
    biases = [100 * ramp(*shape) for shape in shapes]
    with FusionDefinition() as fd:
        tx = fd.define_tensor([-1, -1, e])
        tw = fd.define_tensor([d, n, e])
        tb = [fd.define_tensor(list(shape)) for shape in shapes]
        out = fd.ops.linear(tx, tw, *tb)
        fd.add_output(out)
        place(DeviceMesh(range(d)), tx, tw, *tb)
        for tv in [tw, *(t for t in tb if t.ndim == 2)]:
            tv.axis(0).parallelize(X)
        if declared:
            place(DeviceMesh(range(d)), out)
            out.axis(0).parallelize(X)
    want = torch.stack(
        [
            linear(
                x, w[r], (biases[0][r] if biases[0].dim() == 2 else biases[0]) if biases else None
            )
            for r in range(d)
        ]
    )
    with meshfuse.simulate(d) as sim:
        (result,) = sim.run(fd, [x, w, *biases])
        assert torch.equal(result, want)
        for r in range(d):
            assert sim.local(device=r).shape == (1, b, s, n)
            assert torch.equal(sim.local(device=r), want[r : r + 1])


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("order", stride_orders(3))
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_sharded_stride_orders(with_bias, order, d):
    x, w = ramp(2, 3, 5), ramp(8, 5)
    bias = 10 * ramp(8) if with_bias else None
    with FusionDefinition() as fd:
        tx, tw = fd.define_tensor([2, 3, 5]), fd.define_tensor([8, 5])
        tb = [fd.define_tensor([8])] if with_bias else []
        out = fd.ops.linear(tx, tw, *tb)
        fd.add_output(out, stride_order=order)
        place(DeviceMesh(range(d)), tx, tw, out, *tb)
        shard(out, 2, d)
        for tv in (tw, *tb):
            shard(tv, 0, d)
    want = linear(x, w, bias)
    with meshfuse.simulate(d) as sim:
        (result,) = sim.run(fd, inputs(x, w, bias))
        assert torch.equal(result, want)
        for r in range(d):
            local = sim.local(device=r)
            assert_layout(local, (2, 3, 8 // d), dense_strides((2, 3, 8 // d), order))
            assert torch.equal(local, block(want, -1, d, r))


@pytest.mark.parametrize("order", stride_orders(4))
def test_device_axis_and_stride_order(order):
    d, b, s, e, n = 2, 2, 3, 5, 4
    x, w = ramp(b, s, e), ramp(d, n, e)
    with FusionDefinition() as fd:
        tx, tw = fd.define_tensor([b, s, e]), fd.define_tensor([d, n, e])
        out = fd.ops.linear(tx, tw)
        fd.add_output(out, stride_order=order)
        place(DeviceMesh(range(d)), tx, tw, out)
        tw.axis(0).parallelize(X)
        out.axis(0).parallelize(X)
    with meshfuse.simulate(d) as sim:
        (result,) = sim.run(fd, [x, w])
        assert torch.equal(result, torch.stack([linear(x, part) for part in w]))
        assert_layout(sim.local(device=1), (1, b, s, n), dense_strides((1, b, s, n), order))


# ---- messages


WRONG = [
    ([3, 5], [4, 6], None, ["5", "6", "T0", "T1"]),
    ([3, 5], [4, 5], [3], ["4", "3", "T2"]),
    ([3, 5], [], None, ["Input B must be at least 2D", "T1"]),
    ([3, 5], [5], [1], ["Input B must be at least 2D", "T1"]),
    ([3, 5], [4, 5], [], ["Input bias must be at least 1D", "T2"]),
    ([], [4, 5], None, ["linear", "at least 1D", "T0"]),
    ([3, 1], [4, 5], None, ["K should be broadcast in both A and B, or neither."]),
    ([3, 5], [4, 1], None, ["K should be broadcast in both A and B, or neither."]),
    ([3, 5], [2, 4, 5], [2, 2, 4], ["T2", "3"]),
]


@pytest.mark.parametrize(("x", "w", "bias", "fragments"), WRONG)
def test_wrong_shapes(x, w, bias, fragments):
    with pytest.raises(meshfuse.Error) as caught:
        with FusionDefinition() as fd:
            tvs = [fd.define_tensor(s) for s in (x, w, bias) if s is not None]
            fd.ops.linear(*tvs)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("Float", "Half"), "Expected input and weight dtypes to have the same dtype"),
        (("Half", "Half", "Float"), "Expected bias to have the same dtype as A and B"),
        (("Float", "Double", "Float"), "Expected input and weight dtypes to have the same dtype"),
    ],
)
def test_unequal_dtypes(types, message):
    types = [getattr(DataType, t) for t in types]
    with pytest.raises(meshfuse.Error, match=message) as caught:
        with FusionDefinition() as fd:
            shapes = ([3, 5], [4, 5], [4])[: len(types)]
            fd.ops.linear(
                *(fd.define_tensor(s, dtype=t) for s, t in zip(shapes, types, strict=True))
            )
    assert "T0" in str(caught.value)


def test_weight_axes_in_front_must_be_device_axes():
    fd = program(ramp(3, 5), ramp(2, 4, 5))
    with pytest.raises(meshfuse.Error, match=r"linear.*T1.*\[2, 4, 5\]"):
        fd.execute([ramp(3, 5), ramp(2, 4, 5)])


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("which", ["both", "x", "w"])
def test_inner_axis_divided(which, with_bias, d):
    """One sum over the devices, and the bias once after it."""
    tensors = [ramp(3, 8), ramp(5, 8), *([100 * ramp(5)] if with_bias else [])]
    with FusionDefinition() as fd:
        tvs = [fd.define_tensor(list(t.shape)) for t in tensors]
        fd.add_output(fd.ops.linear(*tvs))
        place(DeviceMesh(range(d)), *tvs)
        for tv in {"both": tvs[:2], "x": tvs[:1], "w": tvs[1:2]}[which]:
            shard(tv, -1, d)
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, tensors)
        assert torch.equal(out, linear(*tensors))
        for r in range(d):
            assert torch.equal(sim.local(device=r), linear(*tensors))
    assert communications(fd) == ["all-reduce x"]
