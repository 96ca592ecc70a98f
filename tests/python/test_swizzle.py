# SPDX-License-Identifier: BSD-3-Clause
"""swizzle1d: kept by every form of a program, and without effect on values."""

from __future__ import annotations

import pytest
import torch
from test_caching import check, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType, schedule


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("first", ["swizzle", "stream"])
def test_ring_over_a_sharded_operand(d, first):
    """The habit of scripts: rows come from the devices in turn, each beginning with its own."""
    torch.manual_seed(0)
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([8, 6]), fd.define_tensor([6, 5])
        y = fd.ops.matmul(x, w)
        fd.add_output(y)
        shard(x, 0, d)
        y.set_device_mesh(DeviceMesh(range(d)))
        y.outer_split(0, d)
        if first == "swizzle":
            assert y.swizzle1d(0, ParallelType.mesh_x) is y
        y.axis(0).parallelize(ParallelType.stream)
        if first == "stream":
            y.swizzle1d(0, ParallelType.mesh_x)
    assert f"i3{{{d}}}@stream swizzle x, i4{{{8 // d}}} = split i0 outer {d}" in fd.ir()
    assert "swizzle1d(0, ParallelType.mesh_x)" in repr(fd)
    a, b = torch.randn(8, 6), torch.randn(6, 5)
    check(fd, [a, b], [a @ b], d)


def test_serial_axis_is_not_divided():
    """Propagation leaves an axis that has an order of its own alone."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        h = fd.ops.neg(x)
        fd.add_output(fd.ops.exp(h))
        shard(x, 0, 2)
        h.outer_split(0, 2)
        h.set_device_mesh(DeviceMesh(range(2)))
        h.swizzle1d(0, ParallelType.mesh_x)
    assert "i2{2} swizzle x" in fd.ir()
    a = torch.randn(4, 6)
    check(fd, [a], [(-a).exp()], 2)


def swizzled():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.sum(x, [1])
        fd.add_output(y)
        y.set_device_mesh(DeviceMesh(range(2)))
        y.outer_split(0, 2)
        y.axis(0).parallelize(ParallelType.stream)
        y.swizzle1d(0, ParallelType.mesh_x)
    return fd, x, y


def test_equality_sees_it():
    fd, _, _ = swizzled()
    plain = meshfuse.parse_ir(fd.ir().replace(" swizzle x", ""))
    assert plain.fusion != fd.fusion and meshfuse.parse_ir(fd.ir()).fusion == fd.fusion


def test_copies_have_it():
    """parallelize_like carries it along with the stream type, cache_before repeats it."""
    fd, x, y = swizzled()
    schedule.transform_like(y)
    schedule.parallelize_like(y, -1, [x])
    y.cache_before()
    assert fd.ir().count("@stream swizzle x") == 3
    a = torch.randn(4, 6)
    check(fd, [a], [a.sum(1)], 2)


def test_rfactor_keeps_it():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.sum(x, [1])
        fd.add_output(y)
        y.set_device_mesh(DeviceMesh(range(2)))
        y.outer_split(1, 2).outer_split(0, 2)
        y.axis(0).parallelize(ParallelType.stream)
        y.swizzle1d(0, ParallelType.mesh_x)
        half = y.rfactor([-1])
        half.axis(-2).parallelize(ParallelType.mesh_x)
        shard(x, 1, 2)
    assert fd.ir().count("@stream swizzle x") == 2
    a = torch.randn(4, 6)
    check(fd, [a], [a.sum(1)], 2)


BAD = [
    (
        lambda x, y: x.swizzle1d(0, ParallelType.mesh_x),
        "swizzle1d: a piece of axis 0 of T0 is swizzled over mesh_x, but the tensor has no",
    ),
    (lambda x, y: y.swizzle1d(1, ParallelType.stream), "swizzle1d: stream is no mesh axis"),
    (lambda x, y: y.swizzle1d(-1, ParallelType.mesh_x), "axis -1 of T1 is a reduction"),
    (lambda x, y: y.swizzle1d(0, ParallelType.mesh_y), "does not have parallel type"),
    (
        lambda x, y: y.axis(0).parallelize(ParallelType.mesh_x),
        "a piece of axis 0 of T1 is swizzled over mesh_x and on mesh_x",
    ),
    (
        lambda x, y: y.set_device_mesh(DeviceMesh(range(4))),
        "of size 2 is swizzled over mesh_x, which has 4 devices",
    ),
    (
        lambda x, y: (y.axis(0).parallelize(ParallelType.serial), y.outer_split(0, 1)),
        "split: an axis of T1 is swizzled over mesh_x",
    ),
    (
        lambda x, y: (y.axis(0).parallelize(ParallelType.serial), y.merge(0, 1)),
        "merge: an axis of T1 is swizzled over mesh_x",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m for _, m in BAD])
def test_faults(call, message):
    fd, x, y = swizzled()
    text = fd.ir()
    with pytest.raises(meshfuse.Error, match=message):
        call(x, y)
    assert fd.ir().replace("@stream", "") == text.replace("@stream", "")


def test_fault_in_text():
    fd, _, _ = swizzled()
    with pytest.raises(meshfuse.Error, match=r"a mesh axis \(z, y or x\)"):
        meshfuse.parse_ir(fd.ir().replace("swizzle x", "swizzle stream"))
