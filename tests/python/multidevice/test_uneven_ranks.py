# SPDX-License-Identifier: BSD-3-Clause
"""Extents that the ranks do not divide: every rank holds its chunk, which may be empty."""

from __future__ import annotations

import pytest
import torch
from programs import ramp
from uneven_programs import (
    PRODUCT_CUTS,
    expected_parts,
    product,
    product_on_two_axes,
    relu,
    resharding,
)

import meshfuse
from meshfuse import Communicator, DeviceMesh

RANKS = Communicator.instance().size()


def check(world, fd, inputs, want):
    """Execute twice, the second time with the plan of the first, and compare what ranks hold."""
    for _ in range(2):
        for r, (out,) in world.run(fd, inputs).items():
            assert out.shape == want[r].shape
            assert torch.equal(out, want[r])


@pytest.mark.parametrize("extent", [2, 3, 5, 7])
def test_ranks_have_chunks(world, extent):
    x = ramp(extent, 3)
    check(world, relu(extent, world.size), [x], expected_parts(x.relu(), 0, world.size))


@pytest.mark.parametrize("cut", PRODUCT_CUTS)
@pytest.mark.parametrize("result", [0, 1, "whole"])
def test_products(world, cut, result):
    a, b = ramp(5, 7), ramp(7, 6)
    axis = result if isinstance(result, int) else None
    want = expected_parts(a @ b, axis, world.size)
    check(world, product(world.size, cut, result), [a, b], want)


@pytest.mark.parametrize("source", [None, 0, 1, 2])
@pytest.mark.parametrize("target", [None, 0, 1, 2])
def test_reshardings(world, source, target):
    x = ramp(5, 3, 7)
    want = expected_parts(x, target, world.size)
    check(world, resharding(world.size, source, target), [x], want)


def test_from_two_mesh_axes_to_another_mesh(world):
    if world.size < 4:
        pytest.skip("needs 4 devices")
    x, w = ramp(5, 7), ramp(7, 3)
    want = [torch.empty(0, 3)] * world.size
    for device, part in zip((3, 1, 2), expected_parts(x @ w, 0, 3), strict=True):
        want[device] = part
    check(world, product_on_two_axes(DeviceMesh([3, 1, 2])), [x, w], want)


@pytest.mark.skipif(RANKS == 1, reason="needs several ranks")
def test_wrong_chunk_of_one_rank(multidevice_test):
    """The rank says what is wrong, the others that it gave up; then all go on."""
    fd, rank = relu_of_sum(), multidevice_test.rank
    parts = expected_parts(ramp(2 * RANKS - 1, 3), 0, RANKS)
    for _ in range(2):
        if rank == RANKS - 1:
            with pytest.raises(meshfuse.Error, match=r"T0.*\[2, 3\].*\[1, 3\]"):
                fd.execute([ramp(2, 3)])
        else:
            with pytest.raises(meshfuse.PeerError) as caught:
                fd.execute([parts[rank]])
            assert caught.value.rank == RANKS - 1
        (out,) = fd.execute([parts[rank]])
        assert torch.equal(out, ramp(2 * RANKS - 1, 3).sum(0).relu())


def relu_of_sum():
    """Return relu of the sum over rows that the ranks share, one row too few for all."""
    with meshfuse.FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([2 * RANKS - 1, 3])
        fd.add_output(fd.ops.relu(fd.ops.sum(t, [0])))
        t.set_device_mesh(DeviceMesh(range(RANKS)))
        t.outer_split(0, RANKS)
        t.axis(0).parallelize(meshfuse.ParallelType.mesh_x)
    return fd
