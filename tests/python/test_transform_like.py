# SPDX-License-Identifier: BSD-3-Clause
"""transform_like, parallelize_like and bounded_transform_backward, executed on meshes."""

from __future__ import annotations

import pytest
import torch
from test_caching import check, shard
from test_schedule_api import loop

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType, schedule

X, Y = ParallelType.mesh_x, ParallelType.mesh_y


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def local_shapes(fd, inputs, d):
    with meshfuse.simulate(d) as sim:
        sim.run(fd, inputs)
        return [tuple(sim.local(i).shape) for i in range(len(fd.fusion.outputs()))]


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("style", ["direct", "sched"])
def test_chain_from_its_middle(d, style):
    """Both directions; the input gets the split, but is divided only when it is named."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 8])
        h = fd.ops.relu(x)
        y = fd.ops.permute(h, [1, 0])
        z = fd.ops.sum(y, [0])
        fd.add_output(y)
        fd.add_output(z)
        shard(h, 0, d)
        calls = schedule if style == "direct" else fd.sched
        calls.transform_like(h)
        assert len(x.get_loop_domain()) == 3
        calls.parallelize_like(h)
    assert not any(axis.is_device_dim() for axis in x.get_loop_domain())
    assert not x.has_device_mesh()
    for tv, axes in ((y, 3), (z, 3)):
        assert tv.axis(0).get_parallel_type() == X and tv.get_device_mesh().size == d
        assert len(tv.get_loop_domain()) == axes
    a = torch.randn(4, 8)
    check(fd, [a], [a.relu().t(), a.relu().sum(1)], d)
    assert local_shapes(fd, [a], d) == [(8, 4 // d), (4 // d,)]


@pytest.mark.parametrize("d", [2, 4])
def test_linear_from_its_weight(d):
    """Columns of the weight reach the bias, the result and what is made of it."""
    with FusionDefinition() as fd:
        x, w, b = fd.define_tensor([3, 8]), fd.define_tensor([12, 8]), fd.define_tensor([12])
        y = fd.ops.linear(x, w, b)
        z = fd.ops.gelu(y)
        fd.add_output(z)
        shard(w, 0, d)
        fd.sched.transform_like(w, [b, y, z])
        fd.sched.parallelize_like(w, -1, [b, y, z], {X})
    assert loop(b) == f"{d}@x {12 // d}" and loop(x) == "3 8"
    assert loop(y) == f"{d}@x 3 {12 // d} r{{8}}" or loop(y) == f"3 {d}@x {12 // d} r{{8}}"
    a, u, c = torch.randn(3, 8), torch.randn(12, 8), torch.randn(12)
    wanted = torch.nn.functional.gelu(torch.nn.functional.linear(a, u, c))
    check(fd, [a, u, c], [wanted], d)
    assert local_shapes(fd, [a, u, c], d) == [(3, 12 // d)]


@pytest.mark.parametrize("d", [2, 4])
def test_contraction_reaches_the_other_operand(d):
    """K of x is r{K} of the result and K of w; dividing it gives partial sums."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 8]), fd.define_tensor([8, 6])
        y = fd.ops.matmul(x, w)
        fd.add_output(y)
        shard(x, 1, d)
        schedule.transform_like(x)
        schedule.parallelize_like(x, selected_tensors=[w])
    assert loop(w) == f"{d}@x {8 // d} 6" and loop(y) == f"4 6 r{{{d}}} r{{{8 // d}}}"
    a, b = torch.randn(4, 8), torch.randn(8, 6)
    check(fd, [a, b], [a @ b], d)


@pytest.mark.parametrize("name", ["merge", "reorder", "inner", "twice"])
def test_other_transforms(name):
    calls = {
        "merge": (lambda t: t.merge(0, 1).outer_split(0, 2), "2@x 12"),
        "reorder": (lambda t: t.outer_split(1, 2).reorder({1: 0}), "2@x 4 3"),
        "inner": (lambda t: t.inner_split(1, 2).reorder({2: 0}), "2@x 4 3"),
        "twice": (lambda t: t.outer_split(0, 2).outer_split(2, 3), "2@x 2 3 2"),
    }
    transform, after = calls[name]
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        h = fd.ops.neg(x)
        y = fd.ops.exp(h)
        fd.add_output(y)
        y.set_device_mesh(DeviceMesh(range(2)))
        transform(y)
        y.axis(0).parallelize(X)
        fd.sched.transform_like(y)
        fd.sched.parallelize_like(y, -1, [x, h])
        text = fd.ir()
        fd.sched.transform_like(y)
        fd.sched.parallelize_like(y)
    assert fd.ir() == text  # a second time changes nothing
    assert loop(x) == loop(h) == loop(y) == after
    a = torch.randn(4, 6)
    check(fd, [a], [(-a).exp()], 2)


def test_two_mesh_axes_and_position():
    """Only the types of the first axes, or of the types named, are copied."""
    mesh = DeviceMesh(torch.arange(4).reshape(2, 2))
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.exp(x)
        z, u, v = fd.ops.neg(y), fd.ops.sin(y), fd.ops.cos(y)
        for out in (z, u, v):
            fd.add_output(out)
        y.set_device_mesh(mesh)
        y.outer_split(1, 2).outer_split(0, 2)
        y.axis(0).parallelize(Y)
        y.axis(2).parallelize(X)
        schedule.transform_like(y)
        schedule.parallelize_like(y, 2, [z])
        schedule.parallelize_like(y, -1, [u], {X})
        schedule.parallelize_like(y, -1, [v])
    assert loop(z) == "2@y 2 2 3" and loop(u) == "2 2 2@x 3" and loop(v) == "2@y 2 2@x 3"
    a = torch.randn(4, 6)
    check(fd, [a], [-a.exp(), a.exp().sin(), a.exp().cos()], 4)


@pytest.mark.parametrize("d", [2, 4])
def test_the_way_that_loses_fewest_axes_counts(d):
    """The residual add reaches x directly, though the way over the sum is as long."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        s = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
        y = fd.ops.sub(x, s)
        fd.add_output(y)
        y.set_device_mesh(DeviceMesh(range(d)))
        y.outer_split(1, d)
        y.axis(1).parallelize(X)
        fd.sched.transform_like(y)
        fd.sched.parallelize_like(y, -1, [x])
    assert loop(x) == f"4 {d}@x {8 // d}" and loop(s) == "4 1"
    a = torch.randn(4, 8)
    check(fd, [a], [a - a.sum(1, keepdim=True)], d)


@pytest.mark.parametrize("d", [2, 4])
def test_bounded_backward(d):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        a = fd.ops.neg(x)
        b = fd.ops.exp(a)
        side = fd.ops.sin(a)
        c = fd.ops.relu(b)
        y = fd.ops.add(c, side)
        fd.add_output(y)
        shard(y, 0, d)
        y.outer_split(2, 2)
        schedule.bounded_transform_backward(y, 1, [b], True)
        assert loop(c) == f"{d}@x {4 // d} 8"
        assert loop(b) == loop(side) == loop(x) == "4 8"
        fd.sched.bounded_transform_backward(y, -1, [a])
    assert loop(c) == f"{d}@x {4 // d} 2 4"
    assert loop(b) == loop(side) == f"{d} {4 // d} 2 4" and loop(a) == loop(x) == "4 8"
    t = torch.randn(4, 8)
    check(fd, [t], [(-t).exp().relu() + (-t).sin()], d)


@pytest.mark.parametrize("d", [2, 4])
def test_cached_tensor_gets_the_schedule(d):
    """The habit of scripts: cache, transform a reference, carry both steps over, execute."""

    class Scheduled(FusionDefinition):
        def definition(self):
            self.x, self.w = self.define_tensor([4, 8]), self.define_tensor([8, 12])
            self.y = self.ops.matmul(self.x, self.w)
            self.add_output(self.ops.relu(self.y))

        def multidevice_schedule(self):
            c = self.sched.cache_after(self.y)
            self.sched._set_device_mesh(c, DeviceMesh(range(d)))
            self.sched.split(c, 1, d, False)
            self.sched.parallelize(c, 1, X)
            self.sched.transform_like(c)
            self.sched.parallelize_like(c)
            for tensor in self.sched.tensors():
                self.sched.set_allocation_as_loop(tensor)

    x, w = torch.randn(4, 8), torch.randn(8, 12)
    fd = Scheduled()
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [x, w])
        assert sim.local(0).shape == (4, 12 // d)
    torch.testing.assert_close(out, (x @ w).relu())


def test_blocking_axes_do_not_correspond():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        y = fd.ops.softmax(x, 1)
        fd.add_output(y)
        x.outer_split(1, 2).outer_split(0, 2)
        schedule.transform_like(x)
    assert loop(x) == "2 2 2 4" and loop(y) in ("2 2 8", "2 2 2 4")
    a = torch.randn(4, 8)
    check(fd, [a], [a.softmax(1)], 2)


def scheduled():
    """Define y = neg(x), z = exp(y): x is split over x at axis 0."""
    fd = FusionDefinition()
    with fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.neg(x)
        z = fd.ops.exp(y)
        fd.add_output(z)
        shard(x, 0, 2)
    return fd, x, y, z


def another_split(x, y, z):
    z.outer_split(0, 4)
    schedule.transform_like(x)


def a_merge(x, y, z):
    z.merge(0, 1)
    schedule.transform_like(x)


def parallel_before(x, y, z):
    z.axis(0).parallelize(ParallelType.stream)
    schedule.transform_like(x)


def other_axis(x, y, z):
    schedule.transform_like(x)
    shard(y, 2, 2)
    schedule.parallelize_like(x)


def other_mesh(x, y, z):
    schedule.transform_like(x)
    z.set_device_mesh(DeviceMesh(range(4)))
    schedule.parallelize_like(x)


BAD = [
    (
        another_split,
        "transform_like: the transforms of T0 cannot be repeated on T2: a piece of axis 0 of T2 is "
        "split already, into 4 and 1. Name the tensors",
    ),
    (a_merge, "a piece of axis 0 of T2 is merged already, with another axis"),
    (parallel_before, "a piece of axis 0 of T2 is on stream already"),
    (other_axis, "parallelize_like: axis 0 of T1 would be on mesh_x as in T0, but axis 1 of it is"),
    (other_mesh, "axis 0 of T2 of size 2 is on mesh_x, which has 4 devices"),
    (
        lambda x, y, z: schedule.parallelize_like(x, 4),
        "parallelize_like: position 4 is out of range for T0, whose loop domain has 3 axes",
    ),
    (
        lambda x, y, z: schedule.bounded_transform_backward(y, -1, [z]),
        "bounded_transform_backward: T1 does not depend on T2",
    ),
    (
        lambda x, y, z: schedule.bounded_transform_backward(y, -1, []),
        "bounded_transform_backward: no tensors were given",
    ),
    (
        lambda x, y, z: schedule.transform_like(x, [scheduled()[1]]),
        "transform_like: T0 belongs to another definition than T0",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m for _, m in BAD])
def test_faults(call, message):
    _, x, y, z = scheduled()
    with pytest.raises(meshfuse.Error, match=message):
        call(x, y, z)


def test_a_fault_changes_nothing():
    fd, x, _, z = scheduled()
    z.outer_split(0, 4)
    text = fd.ir()
    with pytest.raises(meshfuse.Error):
        schedule.transform_like(x)
    assert fd.ir() == text


def test_axes_of_a_reshape_are_left_alone():
    """What it splits or merges corresponds to nothing, what it keeps does."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.reshape(x, [4, 2, 3])
        fd.add_output(y)
        x.set_device_mesh(DeviceMesh(range(2)))
        x.outer_split(1, 2).outer_split(0, 2)
        x.axis(0).parallelize(X)
        schedule.transform_like(x)
        schedule.parallelize_like(x)
    assert loop(y) == "2@x 2 2 3"
    a = torch.randn(4, 6)
    check(fd, [a], [a.reshape(4, 2, 3)], 2)
