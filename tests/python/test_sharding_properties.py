# SPDX-License-Identifier: BSD-3-Clause
"""Devices hold the elements that torch's placements give them, whatever the mesh and the sizes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import X, Y, Z
from test_properties import divisible, schedules
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, from_partition_spec, from_placements
from meshfuse.device_parts import same_parts
from meshfuse.tensor_sharding import sharding_of

FEW = settings(max_examples=150, derandomize=True, deadline=None, database=None)


def chunks(tensor, count):
    """Return exactly so many chunks; torch.chunk leaves out empty ones."""
    found = list(tensor.chunk(count)) if tensor.numel() else []
    return found + [tensor[:0]] * (count - len(found))


def indices(extent, mesh_shape, coordinate, placements, dim):
    """Return which indices of an axis torch puts on a device: placements, left to right."""
    held = torch.arange(extent)
    for size, at, placement in zip(mesh_shape, coordinate, placements, strict=True):
        if getattr(placement, "dim", None) == dim:
            pieces = chunks(held, getattr(placement, "split_factor", 1))
            held = torch.cat([chunks(piece, size)[at] for piece in pieces])
    return held


def torchs_part(mesh, device, placements, whole):
    coordinate = mesh.index_of(device)
    held = [
        indices(extent, mesh.shape, coordinate, placements, dim)
        for dim, extent in enumerate(whole.shape)
    ]
    shape, offset = _compute_local_shape_and_global_offset(
        whole.shape, mesh.shape, list(coordinate), placements
    )
    assert shape == tuple(h.numel() for h in held)
    if all(shape):
        assert offset == tuple(int(h[0]) for h in held)
    for dim, h in enumerate(held):
        whole = whole.index_select(dim, h)
    return whole


def assert_torchs(tv, mesh, placements, sizes):
    whole = torch.arange(math.prod(sizes)).reshape(sizes)
    with meshfuse.simulate(max(mesh.devices) + 1) as sim:
        parts = sim.shard_tensor(whole, tv)
    for device in mesh.devices:
        assert torch.equal(parts[device], torchs_part(mesh, device, placements, whole))


@st.composite
def meshes(draw, most=3):
    shape = draw(st.lists(st.integers(1, most), min_size=1, max_size=3))
    numbers = draw(st.permutations(range(math.prod(shape))))
    return DeviceMesh(torch.tensor(numbers).reshape(shape))


@st.composite
def placed(draw):
    """A mesh, a placement per dim, and sizes that all pieces divide."""
    mesh = draw(meshes())
    ndim = draw(st.integers(1, 3))
    sizes = [draw(st.integers(0, 2)) for _ in range(ndim)]
    result = []
    for count in mesh.shape:
        dim = draw(st.integers(0, ndim - 1))
        pieces = draw(st.sampled_from([1, 1, 2, 3, 4, 6]))
        kind = draw(st.sampled_from(["replicate", "shard", "strided", "strided"]))
        if kind == "replicate":
            result.append(Replicate())
            continue
        result.append(Shard(dim) if kind == "shard" else _StridedShard(dim, split_factor=pieces))
        sizes[dim] *= count * (pieces if kind == "strided" else 1)
    return mesh, result, sizes


def tensor(sizes, uneven=False):
    with FusionDefinition(uneven=uneven) as fd:
        tv = fd.define_tensor(sizes)
        fd.add_output(fd.ops.neg(tv))
    return tv


@FEW
@given(placed(), st.booleans())
def test_parts_are_torchs(case, declared):
    mesh, placements, sizes = case
    try:
        sharding = from_placements(placements, mesh)
    except meshfuse.Error:
        assume(False)
    assume(not declared or 1 not in sizes)
    tv = tensor(sizes if declared else [-1] * len(sizes))
    tv.set_sharding(sharding)
    assert_torchs(tv, mesh, placements, sizes)
    back = sharding_of(tv)
    assert back == sharding or 0 in sizes
    assert from_placements(back.placements(sizes), mesh) == back


@FEW
@given(schedules())
def test_placements_of_any_splits(case):
    """Read off splits made by hand, placements give the parts that the splits give."""
    mesh, sizes, steps = case
    assume(1 not in sizes and divisible(sizes, steps))
    tv = tensor(sizes)
    tv.set_device_mesh(mesh)
    for at, factor, inner, mesh_axis in steps:
        tv.split(at, factor, inner)
        if mesh_axis is not None:
            tv.axis(at + 1 if inner else at).parallelize(mesh_axis)
    placements = sharding_of(tv).placements(sizes)
    assert_torchs(tv, mesh, placements, sizes)
    other = tensor(sizes)
    other.set_sharding(from_placements(placements, mesh))
    axes = [dict(sharding_of(t).axes) for t in (other, tv)]
    assert same_parts(axes[0], mesh, axes[1], mesh, sizes) == []


@FEW
@given(meshes(most=4), st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data())
def test_uneven_sizes_are_torchs_or_refused(mesh, sizes, data):
    """Each mesh dim shards some axis; where torch's chunks cannot be had, that is an error."""
    sizes = [size if size != 1 else 2 for size in sizes]
    dims = st.one_of(st.none(), st.integers(-len(sizes), len(sizes) - 1))
    chosen = [data.draw(dims) for _ in mesh.shape]
    counted = [None if d is None else d % len(sizes) for d in chosen]
    tv = tensor(sizes, uneven=True)
    try:
        tv.set_sharding(
            from_placements([Replicate() if d is None else Shard(d) for d in chosen], mesh)
        )
    except meshfuse.Error as error:
        twice = [d for d in counted if d is not None and counted.count(d) > 1]
        assert twice and ("uneven" in str(error) or "are the same" in str(error))
        return
    assert_torchs(tv, mesh, [Replicate() if d is None else Shard(d) for d in counted], sizes)


@FEW
@given(st.data())
def test_round_trip_of_specs(data):
    ndim = data.draw(st.integers(0, 4))
    entries = [[] for _ in range(ndim)]
    for axis in data.draw(st.permutations([X, Y, Z])):
        at = data.draw(st.integers(-1, ndim - 1))
        if at >= 0:
            entries[at].append(axis.name.removeprefix("mesh_"))
    sharding = from_partition_spec(entries)
    text = sharding.to_partition_spec()
    assert from_partition_spec(text) == sharding
    assert from_partition_spec(text).to_partition_spec() == text
    assert text.count("None") == entries.count([])
    mesh = DeviceMesh(torch.arange(12).reshape(2, 3, 2))
    on_mesh = from_partition_spec(text, mesh=mesh)
    assert from_placements(on_mesh.placements(), mesh) == on_mesh


@pytest.mark.parametrize("op", ["sum", "max"])
def test_round_trip_of_partial(op):
    mesh = DeviceMesh(torch.arange(8).reshape(2, 2, 2))
    given_ = (_StridedShard(-2, split_factor=2), Partial(op), Shard(-2))
    assert from_placements(given_, mesh).placements() == given_


@FEW
@given(placed(), placed())
def test_same_parts_of_two_meshes(one, two):
    """Two shardings are told apart exactly where a device holds other elements."""
    (mesh, ours, sizes), (other, theirs, _) = one, two
    assume(set(mesh.devices) <= set(other.devices))
    shape = [12 * math.prod(other.shape) * n for n in sizes]
    assume(math.prod(shape) <= 10**6)
    theirs = [p if not hasattr(p, "dim") or p.dim < len(shape) else Replicate() for p in theirs]
    pair = []
    for m, placements in ((mesh, ours), (other, theirs)):
        try:
            pair.append(from_placements(placements, m))
        except meshfuse.Error:
            assume(False)
    differing = same_parts(dict(pair[0].axes), mesh, dict(pair[1].axes), other, shape)
    want = [
        dim
        for dim, extent in enumerate(shape)
        if any(
            indices(extent, mesh.shape, mesh.index_of(d), ours, dim).tolist()
            != indices(extent, other.shape, other.index_of(d), theirs, dim).tolist()
            for d in mesh.devices
        )
    ]
    assert differing == want
