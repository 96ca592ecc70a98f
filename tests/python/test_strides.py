# SPDX-License-Identifier: BSD-3-Clause
"""Layouts of inputs and outputs, and device axes that are not outermost."""

from __future__ import annotations

import pytest
import torch
from programs import assert_layout, block, matmul_cut, place, ramp, shard, sharded_matmul

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition


def test_transposed_weight():
    x, w = ramp(4, 6), ramp(8, 6).t()
    assert w.stride() == (1, 6)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    views = [[x, block(w, 1, 2, r)] for r in range(2)]
    with meshfuse.simulate(2) as sim:
        (whole,) = sim.run(fd, [x, w])
        from_views = sim.execute(fd, views)
        from_copies = sim.execute(fd, [[x, part.contiguous()] for x, part in views])
    assert torch.equal(whole, x @ w)
    for r in range(2):
        assert torch.equal(from_views[r][0], block(x @ w, 1, 2, r))
        assert torch.equal(from_views[r][0], from_copies[r][0])
        assert views[r][1].stride() == (1, 6)


def test_layout_of_inputs_changes_between_calls():
    """One definition, one signature per layout, equal results."""
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    layouts = [w, w.t().contiguous().t(), torch.cat([w, w], 1)[:, :8], w.expand(6, 8)]
    with meshfuse.simulate(2) as sim:
        for _ in range(2):
            for layout in layouts:
                parts = [[x, block(layout, 1, 2, r)] for r in range(2)]
                for r, (part,) in enumerate(sim.execute(fd, parts)):
                    assert torch.equal(part, block(x @ w, 1, 2, r))
                    assert part.is_contiguous()


def test_layouts_that_differ_between_devices():
    """Strides are a device's own affair."""
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    with meshfuse.simulate(2) as sim:
        parts = sim.execute(fd, [[x, w[:, :4].t().contiguous().t()], [x, w[:, 4:]]])
    for r in range(2):
        assert torch.equal(parts[r][0], block(x @ w, 1, 2, r))


@pytest.mark.parametrize("b", [1, 2])
def test_slice_that_is_contiguous_for_one_batch(b):
    x = ramp(b, 16, 8)[:, 4:]
    assert x.is_contiguous() == (b == 1)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, 12, 8])
        fd.add_output(fd.ops.neg(t))
        place(DeviceMesh(range(2)), t)
        shard(t, 1, 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x])[0], -x)
        views = [[x[:, 6 * r : 6 * r + 6]] for r in range(2)]
        for r, (part,) in enumerate(sim.execute(fd, views)):
            assert torch.equal(part, -views[r][0])


def test_device_axis_that_is_not_outermost():
    x, w = ramp(2, 4, 3), ramp(3, 5)
    fd = sharded_matmul(x, w, matmul_cut((2, 4, 3), (3, 5), "m"), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
        assert torch.equal(out, x @ w)
        assert out.sum() == 14 and out[0, 0].tolist() == [5, -1, 7, 1, 2]
        for r in range(2):
            assert sim.shard(fd, [x, w])[r][0].shape == (2, 2, 3)
            assert torch.equal(sim.local(device=r), (x @ w)[:, 2 * r : 2 * r + 2])


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "found"])
def test_inner_split(declared):
    """Device r owns columns r, r + 2, r + 4, r + 6, not a block of four."""
    x, w = ramp(4, 6), ramp(6, 8)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        place(DeviceMesh(range(2)), a, b)
        shard(b, 1, 2, inner=True)
        if declared:
            place(DeviceMesh(range(2)), out)
            shard(out, 1, 2, inner=True)
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [x, w])
        assert torch.equal(result, x @ w)
        for r in range(2):
            assert torch.equal(sim.shard_tensor(w, b)[r], w[:, r::2])
            assert torch.equal(sim.local(device=r), (x @ w)[:, r::2])


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("make", [lambda: ramp(8, 6).t(), lambda: ramp(6, 16)[:, ::2]])
def test_inner_split_of_a_weight_with_other_strides(make, d):
    """By default an input may have any strides, however it is divided."""
    x, w = ramp(4, 6), make()
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(a, b))
        place(DeviceMesh(range(d)), a, b)
        shard(b, 1, d, inner=True)
    with meshfuse.simulate(d) as sim:
        outputs = sim.execute(fd, [[x, w[:, r::d]] for r in range(d)])
    for r, (out,) in enumerate(outputs):
        assert torch.equal(out, (x @ w)[:, r::d])


def test_inner_split_against_an_outer_one():
    """Cyclic columns of the weight become blocks of columns of the result."""
    x, w = ramp(4, 6), ramp(6, 8)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        place(DeviceMesh(range(2)), a, b, out)
        shard(b, 1, 2, inner=True)
        shard(out, 1, 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
        for r in range(2):
            assert torch.equal(sim.local(device=r), block(x @ w, 1, 2, r))


def test_split_by_hand_that_means_the_same():
    """An inner split by n/d is an outer split by d."""
    x, w = ramp(4, 6), ramp(6, 8)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        place(DeviceMesh(range(2)), a, b, out)
        shard(b, 1, 2)
        out.split(1, 4)
        out.axis(1).parallelize(meshfuse.ParallelType.mesh_x)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)


def test_same_mesh_axis_twice_on_one_tensor():
    with pytest.raises(meshfuse.Error, match=r"same parallel type.*mesh_x.*T0"):
        with FusionDefinition() as fd:
            a = fd.define_tensor([4, 6])
            place(DeviceMesh(range(2)), a)
            shard(a, 0, 2)
            shard(a, -1, 2)


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "requires grad"])
def test_column_major_result(grad):
    x, w = ramp(4, 6).requires_grad_(grad), ramp(6, 8).requires_grad_(grad)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2, stride_order=[0, 1])
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
        assert torch.equal(out, x @ w)
        assert out[0, :4].tolist() == [19, 16, -1, -11] and out.sum() == -4
        for r in range(2):
            assert_layout(sim.local(device=r), (4, 4), (1, 4))
            assert not sim.local(device=r).requires_grad
