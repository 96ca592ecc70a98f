# SPDX-License-Identifier: BSD-3-Clause
"""Extents that the devices do not divide (semantics 5.7): chunks of ceil(size / devices)."""

from __future__ import annotations

import itertools

import pytest
import torch
from programs import X, Y, place, ramp, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition


def chunks(tensor: torch.Tensor, axis: int, d: int) -> list[torch.Tensor]:
    """Return what each of ``d`` devices holds."""
    size = -(-tensor.size(axis) // d)
    n = tensor.size(axis)
    starts = [min(r * size, n) for r in range(d + 1)]
    return [tensor.narrow(axis, a, b - a) for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize(("extent", "d", "sizes"), [(5, 2, [3, 2]), (5, 4, [2, 2, 1, 0])])
def test_devices_have_chunks(extent, d, sizes):
    x = ramp(extent, 3)
    with FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([extent, 3])
        fd.add_output(fd.ops.relu(t))
        place(DeviceMesh(range(d)), t)
        shard(t, 0, d)
    with meshfuse.simulate(d) as sim:
        assert torch.equal(sim.run(fd, [x])[0], x.relu())
        parts = [sim.local(device=r) for r in range(d)]
        assert [p.shape[0] for p in parts] == sizes
        for part, want in zip(parts, chunks(x.relu(), 0, d), strict=True):
            assert torch.equal(part, want)


def test_without_the_option_it_is_an_error():
    with FusionDefinition() as fd:
        t = fd.define_tensor([5, 3])
        fd.add_output(fd.ops.relu(t))
        place(DeviceMesh(range(2)), t)
        with pytest.raises(meshfuse.Error, match=r"5 .*not divisible by 2"):
            shard(t, 0, 2)


@pytest.mark.parametrize("d", [2, 3, 4])
@pytest.mark.parametrize("cut", ["m", "n", "k", "m and n", "k of a", "k and m"])
@pytest.mark.parametrize("result", [None, 0, 1, "whole"])
def test_products_of_any_sizes(d, cut, result):
    a, b = ramp(5, 7), ramp(7, 6)
    with FusionDefinition(uneven=True) as fd:
        ta, tb = fd.define_tensor([5, 7]), fd.define_tensor([7, 6])
        out = fd.ops.matmul(ta, tb)
        fd.add_output(out)
        mesh = DeviceMesh(range(d))
        place(mesh, ta, tb)
        axes = {
            "m": (0, None),
            "n": (None, 1),
            "k": (1, 0),
            "m and n": (0, 1),
            "k of a": (1, None),
            "k and m": (0, 0),
        }[cut]
        for tv, axis in zip((ta, tb), axes, strict=True):
            if axis is not None:
                shard(tv, axis, d)
        if result is not None:
            place(mesh, out)
        if isinstance(result, int):
            shard(out, result, d)
    with meshfuse.simulate(d) as sim:
        assert torch.equal(sim.run(fd, [a, b])[0], a @ b)
        if isinstance(result, int):
            for r, want in enumerate(chunks(a @ b, result, d)):
                assert torch.equal(sim.local(device=r), want)


@pytest.mark.parametrize("source", [None, 0, 1, 2])
@pytest.mark.parametrize("target", [None, 0, 1, 2])
@pytest.mark.parametrize("d", [2, 4])
def test_any_sharding_to_any_sharding(source, target, d):
    x = ramp(5, 3, 7)
    with FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([5, 3, 7])
        out = fd.ops.set(t)
        fd.add_output(out)
        place(DeviceMesh(range(d)), t, out)
        for tv, axis in ((t, source), (out, target)):
            if axis is not None:
                shard(tv, axis, d)
    with meshfuse.simulate(d) as sim:
        assert torch.equal(sim.run(fd, [x])[0], x)
        if target is not None:
            for r, want in enumerate(chunks(x, target, d)):
                assert torch.equal(sim.local(device=r), want)


def test_two_mesh_axes_and_two_meshes():
    x, w = ramp(5, 7), ramp(7, 3)
    with FusionDefinition(uneven=True) as fd:
        tx, tw = fd.define_tensor([5, 7]), fd.define_tensor([7, 3])
        out = fd.ops.set(fd.ops.matmul(tx, tw))
        fd.add_output(out)
        place(DeviceMesh(torch.arange(4).view(2, 2)), tx, tw)
        place(DeviceMesh([4, 1, 5]), out)
        shard(tx, 0, 2, Y)
        shard(tx, 2, 2, X)
        shard(tw, 0, 2, X)
        shard(out, 0, 3, X)
    with meshfuse.simulate(6) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
        for device, want in zip((4, 1, 5), chunks(x @ w, 0, 3), strict=True):
            assert torch.equal(sim.local(device=device), want)


def halves(extent: int) -> FusionDefinition:
    """Return relu of [extent, 3], its first axis cut over two devices; -1: not declared."""
    with FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([extent, 3])
        fd.add_output(fd.ops.relu(t))
        place(DeviceMesh(range(2)), t)
        shard(t, 0, 2)
    return fd


def test_sizes_must_be_declared():
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=r"axis 0 of T0 .*uneven.*declare the size"):
            sim.execute(halves(-1), [[ramp(3, 3)], [ramp(2, 3)]])


def test_wrong_chunk_is_refused():
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=r"T0.*\[2, 3\].*\[3, 3\]"):
            sim.execute(halves(5), [[ramp(2, 3)], [ramp(3, 3)]])


def test_half_partial_sums_that_overflow_alone():
    """The exact sum is 0; the partial products are beyond half's range."""
    a = torch.tensor([[200.0] * 4 + [-200.0] * 4]).half()
    b = torch.full((8, 1), 100.0).half()
    results = {}
    for wide in (None, DataType.Float):
        with FusionDefinition(reduce_dtype=wide) as fd:
            ta = fd.define_tensor([1, 8], dtype=DataType.Half)
            tb = fd.define_tensor([8, 1], dtype=DataType.Half)
            fd.add_output(fd.ops.matmul(ta, tb))
            place(DeviceMesh(range(2)), ta, tb)
            shard(ta, 1, 2)
            shard(tb, 0, 2)
        with meshfuse.simulate(2) as sim:
            (results[wide],) = sim.run(fd, [a, b])
    assert results[None].isnan().all()
    assert results[DataType.Float].dtype == torch.float16
    assert results[DataType.Float].item() == 0
