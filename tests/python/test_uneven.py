# SPDX-License-Identifier: BSD-3-Clause
"""Extents that the devices do not divide (semantics 5.7): chunks of ceil(size / devices)."""

from __future__ import annotations

import pytest
import torch
from programs import place, ramp, shard
from uneven_programs import (
    PRODUCT_CUTS,
    chunks,
    product,
    product_on_two_axes,
    relu,
    resharding,
)

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition


@pytest.mark.parametrize(("extent", "d", "sizes"), [(5, 2, [3, 2]), (5, 4, [2, 2, 1, 0])])
def test_devices_have_chunks(extent, d, sizes):
    x = ramp(extent, 3)
    with meshfuse.simulate(d) as sim:
        assert torch.equal(sim.run(relu(extent, d), [x])[0], x.relu())
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
@pytest.mark.parametrize("cut", PRODUCT_CUTS)
@pytest.mark.parametrize("result", [None, 0, 1, "whole"])
def test_products_of_any_sizes(d, cut, result):
    a, b = ramp(5, 7), ramp(7, 6)
    with meshfuse.simulate(d) as sim:
        assert torch.equal(sim.run(product(d, cut, result), [a, b])[0], a @ b)
        if isinstance(result, int):
            for r, want in enumerate(chunks(a @ b, result, d)):
                assert torch.equal(sim.local(device=r), want)


@pytest.mark.parametrize("source", [None, 0, 1, 2])
@pytest.mark.parametrize("target", [None, 0, 1, 2])
@pytest.mark.parametrize("d", [2, 4])
def test_any_sharding_to_any_sharding(source, target, d):
    x = ramp(5, 3, 7)
    with meshfuse.simulate(d) as sim:
        assert torch.equal(sim.run(resharding(d, source, target), [x])[0], x)
        if target is not None:
            for r, want in enumerate(chunks(x, target, d)):
                assert torch.equal(sim.local(device=r), want)


def test_two_mesh_axes_and_two_meshes():
    x, w = ramp(5, 7), ramp(7, 3)
    with meshfuse.simulate(6) as sim:
        (out,) = sim.run(product_on_two_axes(DeviceMesh([4, 1, 5])), [x, w])
        assert torch.equal(out, x @ w)
        for device, want in zip((4, 1, 5), chunks(x @ w, 0, 3), strict=True):
            assert torch.equal(sim.local(device=device), want)


def test_chunks_of_chunks_are_refused():
    """A chunk that is shorter than the others has no equal pieces for a second mesh axis."""
    with FusionDefinition(uneven=True) as fd:
        x = fd.define_tensor([3])
        y = fd.ops.add(x, x)
        fd.add_output(y)
        place(DeviceMesh(torch.arange(4).reshape(2, 2)), x, y)
        shard(y, 0, 2, meshfuse.ParallelType.mesh_y)
        shard(y, 1, 2, meshfuse.ParallelType.mesh_x)
    message = "size 3 is not divisible by 2.*uneven=True is for axes that one outer split divides"
    with meshfuse.simulate(4) as sim, pytest.raises(meshfuse.Error, match=message):
        sim.run(fd, [torch.ones(3)])


def test_sizes_must_be_declared():
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=r"axis 0 of T0 .*uneven.*declare the size"):
            sim.execute(relu(-1, 2), [[ramp(3, 3)], [ramp(2, 3)]])


def test_wrong_chunk_is_refused():
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=r"T0.*\[2, 3\].*\[3, 3\]"):
            sim.execute(relu(5, 2), [[ramp(2, 3)], [ramp(3, 3)]])


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


def test_text_form():
    """It does not hold the option; whoever reads it says so."""
    for fd in (relu(5, 4), product(2, "k and m", 0)):
        again = meshfuse.parse_ir(fd.ir(), uneven=True)
        assert again.ir() == fd.ir() and again.fusion.uneven
        assert again.check(examples=3).examples == 3
    with pytest.raises(meshfuse.Error, match=r"parseIr: line 1, .*5 is not divisible by 4"):
        meshfuse.parse_ir(relu(5, 4).ir())
    with pytest.raises(meshfuse.Error, match="parseIr: line 2, column 1: found the end"):
        meshfuse.parse_ir("a: f32[i0{5}] mesh(x=2)\n", uneven=True)
