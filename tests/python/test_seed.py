# SPDX-License-Identifier: BSD-3-Clause
"""The column-parallel product that the library was made for, and programs close to it."""

from __future__ import annotations

import pytest
import torch
from programs import DEVICES, assert_layout, block, dense_strides, stride_orders

import meshfuse as nvfuser
from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType


class Model(FusionDefinition):
    """As users of the class style write it."""

    def __init__(self, num_devices, batch, sequence, hidden):
        super().__init__()
        self._sizes = (num_devices, batch, sequence, hidden)

    def definition(self):
        d, b, s, e = self._sizes
        self.inp = self.define_tensor([b, s, e])
        self.weight = self.define_tensor([e, d * e])
        self.out = self.ops.matmul(self.inp, self.weight)
        self.add_output(self.out)

    def multidevice_schedule(self):
        d, *_ = self._sizes
        mesh = nvfuser.DeviceMesh(range(d))
        for t in [self.inp, self.weight, self.out]:
            self.sched._set_device_mesh(t, mesh)

        # Shard N for weight (K, N)
        self.sched.split(self.weight, -1, d, False)
        self.sched.parallelize(self.weight, -2, nvfuser.ParallelType.mesh_x)
        self.sched.set_allocation_as_loop(self.weight)

        # Output of linear: {.., i{M}, i{N}, r{K}}
        # Shard N -> axis(-2)
        self.sched.split(self.out, -2, d, False)
        self.sched.parallelize(self.out, -3, nvfuser.ParallelType.mesh_x)
        self.sched.set_allocation_as_loop(self.out)


# The result's tolerance: sums of `hidden` products in float32.
TOLERANCE = {"rtol": 1.3e-6, "atol": 1e-3}


def operands(d, b, s, e, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(b, s, e, dtype=dtype), torch.randn(e, d * e, dtype=dtype)


@pytest.mark.parametrize("d", DEVICES)
def test_seed_program(d):
    """Each device has its columns of the weight and of the result; nothing is copied."""
    b, s, e = 2, 1024, 96
    x, w = operands(d, b, s, e)
    fd = Model(d, b, s, e)
    with nvfuser.simulate(d) as sim:
        (out,) = sim.run(fd, [x, w])
        torch.testing.assert_close(out, x @ w, **TOLERANCE)
        for r in range(d):
            local = sim.local(output=0, device=r)
            assert_layout(local, (b, s, e), (s * e, e, 1))
            torch.testing.assert_close(local, block(x @ w, -1, d, r), **TOLERANCE)
    assert fd._executor().stats() == {"runs": 1, "compiles": 1, "relayouts": 0}


def test_seed_program_at_full_width():
    d, b, s, e = 2, 1, 256, 768
    x, w = operands(d, b, s, e)
    fd = Model(d, b, s, e)
    with nvfuser.simulate(d) as sim:
        (out,) = sim.run(fd, [x, w])
    torch.testing.assert_close(out, x @ w, **TOLERANCE)


def test_seed_program_in_one_process():
    """Without a launcher the mesh of one is this process, and execute takes the whole weight."""
    x, w = operands(1, 2, 16, 32)
    fd = Model(1, 2, 16, 32)
    for _ in range(2):
        (out,) = fd.execute([x, w])
        torch.testing.assert_close(out, x @ w, **TOLERANCE)
    assert fd.fec.stats() == {"runs": 2, "compiles": 1, "relayouts": 0}


def test_seed_program_moves_no_data_around():
    """Besides the products torch runs nothing that copies."""
    x, w = operands(2, 2, 16, 32)
    fd = Model(2, 2, 16, 32)
    with nvfuser.simulate(2) as sim:
        parts = sim.shard(fd, [x, w])
        sim.execute(fd, parts)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            sim.execute(fd, parts)
    events = {event.key for event in profile.key_averages()}
    assert "aten::matmul" in events
    assert not events & {"aten::copy_", "aten::clone", "aten::contiguous", "aten::to"}


class Variant(FusionDefinition):
    """The same with another dtype, memory order, divided loop, or symbolic sizes."""

    def __init__(self, d, sizes, *, order=None, loop="n", dtype=DataType.Float, symbolic=False,
                 as_loop=True, weight_order=()):  # fmt: skip
        super().__init__()
        self.d, self.sizes, self.order, self.loop = d, sizes, order, loop
        self.dtype, self.symbolic, self.as_loop = dtype, symbolic, as_loop
        self.weight_order = weight_order

    def definition(self):
        (a, b) = self.sizes
        if self.symbolic:
            a, b = [-1] * len(a), [-1] * len(b)
        self.inp = self.define_tensor(list(a), dtype=self.dtype)
        self.weight = self.define_tensor(list(b), dtype=self.dtype, stride_order=self.weight_order)
        self.out = self.ops.matmul(self.inp, self.weight)
        if self.order is None:
            self.add_output(self.out)
        else:
            self.add_output(self.out, self.order)

    def multidevice_schedule(self):
        mesh = DeviceMesh(range(self.d))
        for t in [self.inp, self.weight, self.out]:
            self.sched._set_device_mesh(t, mesh)
        if self.loop == "n":
            divided = [(self.weight, -1), (self.out, -2)]
        elif self.loop == "m":
            divided = [(self.inp, -2), (self.out, -3)]
        else:
            divided = [(self.inp, 0), (self.out, 0)]
        for t, axis in divided:
            place = axis if axis >= 0 else axis - 1
            self.sched.split(t, axis, self.d, False)
            self.sched.parallelize(t, place, ParallelType.mesh_x)
            if self.as_loop:
                self.sched.set_allocation_as_loop(t)


def check(fd, d, loop, x, w, order=None, **tolerance):
    want = x @ w
    axis = {"n": -1, "m": -2, "batch": 0}[loop]
    order = order or tuple(reversed(range(want.dim())))
    with nvfuser.simulate(d) as sim:
        (out,) = sim.run(fd, [x, w])
        assert out.dtype == want.dtype
        torch.testing.assert_close(out, want, **(tolerance or TOLERANCE))
        for r in range(d):
            local = sim.local(device=r)
            part = block(want, axis, d, r)
            assert_layout(local, part.shape, dense_strides(part.shape, order))
            torch.testing.assert_close(local, part, **(tolerance or TOLERANCE))
    return fd._executor().stats()["relayouts"]


@pytest.mark.parametrize("as_loop", [True, False], ids=["as loop", "derived"])
@pytest.mark.parametrize("loop", ["n", "m", "batch"])
@pytest.mark.parametrize("order", stride_orders(3))
@pytest.mark.parametrize("d", [1, 2, 4])
def test_stride_orders(d, order, loop, as_loop):
    x, w = operands(d, 4, 8, 12)
    fd = Variant(d, (x.shape, w.shape), order=order, loop=loop, as_loop=as_loop)
    check(fd, d, loop, x, w, order)


@pytest.mark.parametrize("loop", ["n", "m"])
@pytest.mark.parametrize("d", DEVICES)
def test_column_major_result_is_written_directly(d, loop):
    torch.manual_seed(0)
    x, w = torch.randn(24, 16), torch.randn(16, 24)
    fd = Variant(d, (x.shape, w.shape), order=(0, 1), loop=loop)
    assert check(fd, d, loop, x, w, (0, 1)) == 0


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_orders_of_three_axes_that_are_written_directly(order):
    x, w = operands(2, 4, 8, 12)
    fd = Variant(2, (x.shape, w.shape), order=order)
    assert check(fd, 2, "n", x, w, order) == 0


@pytest.mark.parametrize("loop", ["m", "batch"])
@pytest.mark.parametrize("d", DEVICES)
def test_rows_divided_instead_of_columns(d, loop):
    torch.manual_seed(0)
    x, w = torch.randn(24, 24, 16), torch.randn(16, 20)
    assert check(Variant(d, (x.shape, w.shape), loop=loop), d, loop, x, w) == 0


@pytest.mark.parametrize("loop", ["n", "m"])
@pytest.mark.parametrize(
    ("dtype", "torch_dtype"),
    [
        (DataType.BFloat16, torch.bfloat16),
        (DataType.Half, torch.float16),
        (DataType.Double, torch.float64),
    ],
)
@pytest.mark.parametrize("order", [(2, 1, 0), (2, 0, 1), (0, 1, 2)])
def test_dtypes(dtype, torch_dtype, loop, order):
    x, w = operands(2, 2, 8, 16, torch_dtype)
    fd = Variant(2, (x.shape, w.shape), loop=loop, dtype=dtype, order=order)
    # torch's default tolerance of each type; the reference is torch in the same type.
    check(fd, 2, loop, x, w, order, rtol=None, atol=None)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_column_major_weight(d, declared, symbolic):
    """A transposed weight: its columns are views of memory, and the result is the same.

    set_allocation_as_loop declares a tensor contiguous in the order of its loop axes, unless it
    has a stride order, so a column-major weight is declared as such or left out of that call.
    """
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 16), torch.randn(16 * d, 16).t()
    assert w.stride() == (1, 16)
    fd = Variant(
        d,
        (x.shape, w.shape),
        symbolic=symbolic,
        as_loop=declared,
        weight_order=(0, 1) if declared else (),
    )
    assert check(fd, d, "n", x, w) == 0
    views = [[x, block(w, 1, d, r)] for r in range(d)]
    with nvfuser.simulate(d) as sim:
        for r, (part,) in enumerate(sim.execute(fd, views)):
            torch.testing.assert_close(part, block(x @ w, -1, d, r), **TOLERANCE)


def test_column_major_weight_where_a_row_major_one_was_declared():
    x, w = torch.randn(2, 8, 16), torch.randn(32, 16).t()
    fd = Variant(2, (x.shape, w.shape), as_loop=True)
    with nvfuser.simulate(2) as sim:
        with pytest.raises(nvfuser.Error, match=r"stride mismatch with contiguity info.*T1"):
            sim.run(fd, [x, w])
        torch.testing.assert_close(sim.run(fd, [x, w.contiguous()])[0], x @ w, **TOLERANCE)


@pytest.mark.parametrize("loop", ["n", "m"])
def test_column_major_weight_and_result(loop):
    torch.manual_seed(0)
    x, w = torch.randn(8, 16), torch.randn(32, 16).t()
    fd = Variant(2, (x.shape, w.shape), order=(0, 1), loop=loop, weight_order=(0, 1))
    assert check(fd, 2, loop, x, w, (0, 1)) == 0


def test_symbolic_sizes_serve_many_shapes():
    fd = Variant(2, ((1, 1, 1), (1, 1)), symbolic=True)
    for b, s, e in ((2, 4, 6), (1, 3, 5), (2, 4, 6), (3, 1, 2)):
        x, w = operands(2, b, s, e)
        check(fd, 2, "n", x, w)
    assert fd._executor().stats()["compiles"] == 3


def test_scheduled_once():
    fd = Model(2, 2, 4, 6)
    x, w = operands(2, 2, 4, 6)
    with nvfuser.simulate(2) as sim:
        for _ in range(3):
            sim.run(fd, [x, w])
    assert len(fd.out.get_loop_domain()) == 5 and len(fd.weight.get_loop_domain()) == 3


def test_wrong_part_of_the_weight():
    fd = Model(2, 2, 4, 6)
    x, w = operands(2, 2, 4, 6)
    with nvfuser.simulate(2) as sim:
        with pytest.raises(nvfuser.Error) as caught:
            sim.execute(fd, [[x, w], [x, w]])
        for text in ("T1", "12", "6", "2"):
            assert text in str(caught.value)
        torch.testing.assert_close(sim.run(fd, [x, w])[0], x @ w, **TOLERANCE)
