# SPDX-License-Identifier: BSD-3-Clause
"""Sizes on which programs of this kind have failed: uneven, one, zero, and only locally right."""

from __future__ import annotations

import pytest
import torch
from programs import X, assert_layout, block, matmul_cut, place, poison, ramp, shard, sharded_matmul

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition


def column_parallel(a, b, d):
    """Return a @ b with the columns of b divided; sizes as declared."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor(list(a)), fd.define_tensor(list(b))
        fd.add_output(fd.ops.matmul(x, w))
        place(DeviceMesh(range(d)), x, w)
        shard(w, -1, d)
    return fd


def test_columns_that_do_not_divide():
    with pytest.raises(meshfuse.Error, match="T1 of size 10 is not divisible by 4"):
        column_parallel((4, 6), (6, 10), 4)


@pytest.mark.parametrize("columns", [(3, 3, 3, 1), (3, 3, 2, 2), (2, 2, 2, 2), (3, 3, 3, 3)])
def test_columns_cut_by_hand(columns):
    """A declared size that is met on no device is refused, whatever the parts add up to."""
    fd = column_parallel((4, 6), (6, 16), 4)
    w = ramp(6, 12)
    with meshfuse.simulate(4) as sim:
        with pytest.raises(meshfuse.Error, match=r"T1.*16.*4"):
            sim.execute(fd, [[ramp(4, 6), part] for part in w[:, : sum(columns)].split(columns, 1)])
        assert torch.equal(sim.run(fd, [ramp(4, 6), ramp(6, 16)])[0], ramp(4, 6) @ ramp(6, 16))


def test_symbolic_columns_cut_unevenly_by_hand():
    fd = column_parallel((4, 6), (6, -1), 4)
    parts = ramp(6, 10).split((3, 3, 2, 2), 1)
    with meshfuse.simulate(4) as sim:
        with pytest.raises(meshfuse.Error, match="T1"):
            sim.execute(fd, [[ramp(4, 6), part] for part in parts])
        assert torch.equal(sim.run(fd, [ramp(4, 6), ramp(6, 8)])[0], ramp(4, 6) @ ramp(6, 8))


def test_symbolic_columns_that_do_not_divide():
    fd = column_parallel((4, 6), (6, -1), 4)
    with meshfuse.simulate(4) as sim:
        with pytest.raises(meshfuse.Error, match="T1 of size 10 is not divisible by 4"):
            sim.run(fd, [ramp(4, 6), ramp(6, 10)])
        assert torch.equal(sim.run(fd, [ramp(4, 6), ramp(6, 8)])[0], ramp(4, 6) @ ramp(6, 8))


def test_inner_size_that_does_not_divide():
    with pytest.raises(meshfuse.Error, match="T0 of size 5 is not divisible by 2"):
        with FusionDefinition() as fd:
            a, b = fd.define_tensor([3, 5]), fd.define_tensor([5, 2])
            fd.add_output(fd.ops.matmul(a, b))
            place(DeviceMesh(range(2)), a, b)
            shard(a, 1, 2)


@pytest.mark.parametrize("rows", [2, -1], ids=["static", "symbolic"])
def test_more_devices_than_rows(rows):
    """No device may get an empty part while others work."""
    with meshfuse.simulate(4) as sim:
        with pytest.raises(meshfuse.Error, match="T0 of size 2 is not divisible by 4"):
            with FusionDefinition() as fd:
                a, b = fd.define_tensor([rows, 3]), fd.define_tensor([3, 5])
                fd.add_output(fd.ops.matmul(a, b))
                place(DeviceMesh(range(4)), a, b)
                shard(a, 0, 4)
            sim.run(fd, [ramp(2, 3), ramp(3, 5)])


@pytest.mark.parametrize("a_first", [True, False], ids=["1 on the left", "1 on the right"])
def test_batch_of_one_on_one_side(a_first):
    a, b = ((1, 3, 4), (2, 4, 6)) if a_first else ((2, 3, 4), (1, 4, 6))
    x, w = ramp(*a), ramp(*b)
    fd = sharded_matmul(x, w, matmul_cut(a, b, "n"), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
        assert out.shape == (2, 3, 6) and torch.equal(out, x @ w)
        assert sim.local(device=1).shape == (2, 3, 3)
    if a_first:
        assert out.sum() == 18 and out[0, 0].tolist() == [1, 9, 10, 4, -2, -8]


@pytest.mark.parametrize("k", [1, -1], ids=["static", "symbolic"])
def test_inner_size_of_one(k):
    """An outer product; the rank and the divided axis do not depend on the declaration."""
    fd = column_parallel((5, k), (k, 4), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [ramp(5, 1), ramp(1, 4)])
        assert out.shape == (5, 4) and out[0].tolist() == [9, 6, 3, 0]
        assert sim.local(device=1).shape == (5, 2)
    with FusionDefinition() as fd:
        out = fd.ops.matmul(fd.define_tensor([5, k]), fd.define_tensor([k, 4]))
    assert out.ndim == 2


def test_leading_ones_of_a_linear():
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([1, 1, 6]), fd.define_tensor([2, 6])
        fd.add_output(fd.ops.linear(x, w))
        place(DeviceMesh(range(2)), x, w)
        shard(w, 0, 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [ramp(1, 1, 6), ramp(2, 6)])
        assert out.shape == (1, 1, 2)
        assert torch.equal(out, torch.nn.functional.linear(ramp(1, 1, 6), ramp(2, 6)))
        assert sim.local(device=0).shape == (1, 1, 1)


def test_vector_times_matrix():
    v, w = ramp(4), ramp(4, 6)
    fd = sharded_matmul(v, w, matmul_cut((4,), (4, 6), "n"), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [v, w])
        assert out.tolist() == [1, 9, 10, 4, -2, -8]
        assert sim.local(device=1).tolist() == [4, -2, -8]


def test_batch_times_vector():
    x, v = ramp(2, 3, 4), ramp(4)
    fd = sharded_matmul(x, v, matmul_cut((2, 3, 4), (4,), "batch0"), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, v])
        assert out.tolist() == [[14, -10, 8], [-9, 2, -1]]
        assert sim.local(device=1).shape == (1, 3)


def test_product_of_vectors_on_a_mesh():
    """A result without axes, replicated: nothing indexes it from the back."""
    with FusionDefinition() as fd:
        v, w = fd.define_tensor([4]), fd.define_tensor([4])
        out = fd.ops.matmul(v, w)
        fd.add_output(out)
        place(DeviceMesh(range(2)), v, w, out)
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [ramp(4), (torch.arange(4) % 7 - 1).float()])
        assert result.shape == () and result.item() == 2.0
        assert sim.local(device=1).item() == 2.0


def test_shapes_that_agree_only_locally():
    """The local inner size of A is B's; the declared one is not."""
    with pytest.raises(meshfuse.Error) as caught:
        with FusionDefinition() as fd:
            fd.ops.matmul(fd.define_tensor([4, 6]), fd.define_tensor([3, 5]))
    assert all(text in str(caught.value) for text in ("6", "3", "T0", "T1"))


def test_symbolic_shapes_that_agree_only_locally():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        place(DeviceMesh(range(2)), a, b, out)
        shard(a, 1, 2)
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error) as caught:
            sim.execute(fd, [[torch.ones(4, 3), torch.ones(3, 5)]] * 2)
    assert all(text in str(caught.value) for text in ("6", "3", "T0", "T1"))


@pytest.mark.parametrize("symbolic", [True, False])
def test_no_elements_do_not_hide_a_mismatch(symbolic):
    with pytest.raises(meshfuse.Error, match=r"T0.*4.*T1.*5"):
        with FusionDefinition() as fd:
            shapes = [[-1, -1], [-1, -1]] if symbolic else [[0, 4], [5, 6]]
            fd.add_output(fd.ops.matmul(*(fd.define_tensor(s) for s in shapes)))
        fd.execute([torch.empty(0, 4), torch.empty(5, 6)])


@pytest.mark.parametrize("symbolic", [True, False], ids=["symbolic", "static"])
def test_empty_inner_size(symbolic):
    """Every entry is exactly zero, in memory that held nan."""
    a, b = torch.empty(4, 0), torch.empty(0, 6)
    fd = sharded_matmul(a, b, matmul_cut((4, 0), (0, 6), "n"), 2, symbolic=symbolic)
    with meshfuse.simulate(2) as sim:
        for _ in range(3):
            poison(4, 3)
            parts = sim.execute(fd, [[a, torch.empty(0, 3)]] * 2)
            for (part,) in parts:
                assert part.shape == (4, 3) and torch.equal(part, torch.zeros(4, 3))


def test_bias_of_an_empty_inner_size():
    with FusionDefinition() as fd:
        x, w, bias = fd.define_tensor([2, 0]), fd.define_tensor([3, 0]), fd.define_tensor([3])
        fd.add_output(fd.ops.linear(x, w, bias))
    poison(2, 3)
    (out,) = fd.execute([torch.empty(2, 0), torch.empty(3, 0), torch.tensor([100.0, 200.0, 300.0])])
    assert out.tolist() == [[100, 200, 300]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_no_rows(dtype):
    x, w = torch.empty(0, 4, dtype=dtype), ramp(4, 6, dtype=dtype)
    fd = sharded_matmul(x, w, matmul_cut((0, 4), (4, 6), "n"), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
        assert out.shape == (0, 6) and out.dtype == dtype
        assert sim.local(device=1).shape == (0, 3)


def test_no_columns():
    x, w = ramp(3, 4), torch.empty(4, 0)
    fd = sharded_matmul(x, w, matmul_cut((3, 4), (4, 0), "n"), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
        assert out.shape == (3, 0)
        assert sim.local(device=0).stride() == (x @ w).stride()


def test_ordinary_call_after_an_empty_one():
    fd = column_parallel((-1, 4), (4, 6), 2)
    with meshfuse.simulate(2) as sim:
        for rows in (0, 3, 0, 1):
            x = ramp(rows, 4)
            assert torch.equal(sim.run(fd, [x, ramp(4, 6)])[0], x @ ramp(4, 6))


def test_local_size_of_a_logical_device_axis():
    """An axis of extent d on the mesh: each device has 1 of it."""
    with FusionDefinition() as fd:
        w = fd.define_tensor([2, 4, 4])
        fd.add_output(fd.ops.neg(w))
        place(DeviceMesh(range(2)), w)
        w.axis(0).parallelize(X)
    x = ramp(2, 4, 4)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x])[0], -x)
        assert_layout(sim.local(device=1), (1, 4, 4), (16, 4, 1))
        assert torch.equal(sim.local(device=1), -block(x, 0, 2, 1))
        with pytest.raises(meshfuse.Error, match=r"T0.*mesh_x.*local size 2"):
            sim.execute(fd, [[x], [x]])
