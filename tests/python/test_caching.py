# SPDX-License-Identifier: BSD-3-Clause
"""cache_after, cache_before and cache_fork: the programs they make, and what these compute."""

from __future__ import annotations

import pytest
import torch
from test_python_text import again

import meshfuse
from meshfuse import CacheOp, DeviceMesh, FusionDefinition, LoadStoreOpType, ParallelType


def shard(tv, axis, d):
    """Divide an axis (not negative) over mesh_x."""
    tv.set_device_mesh(DeviceMesh(range(d)))
    tv.outer_split(axis, d)
    tv.axis(axis).parallelize(ParallelType.mesh_x)


def check(fd, inputs, expected, d):
    """The program, its text read again and its repr executed give ``expected``."""
    assert meshfuse.parse_ir(fd.ir()).ir() == fd.ir()
    made = again(repr(fd))
    assert made.fusion == fd.fusion, f"{made.ir()}\n{fd.ir()}"
    for program in (fd, made):
        with meshfuse.simulate(d) as sim:
            results = sim.run(program, inputs)
        assert len(results) == len(expected)
        for got, want in zip(results, expected, strict=True):
            torch.testing.assert_close(got, want)


def ops_of(fd):
    return [expr.op for expr in fd.fusion.exprs()]


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(4, 8)


@pytest.mark.parametrize("d", [2, 4])
def test_cache_after_serves_all_uses(x, d):
    """Gathered once into the new tensor, which both products read."""
    w = torch.randn(8, 6)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1]), fd.define_tensor([8, 6])
        h = fd.ops.relu(a)
        fd.add_output(fd.ops.matmul(h, b))
        fd.add_output(fd.ops.sum(h, [0]))
        shard(a, 0, d)
        shard(h, 0, d)
        whole = h.cache_after()
        whole.set_device_mesh(DeviceMesh(range(d)))
    assert ops_of(fd) == ["relu", "set", "matmul", "sum"]
    assert [use.op for use in h.uses()] == ["set"]
    assert sorted(use.op for use in whole.uses()) == ["matmul", "sum"]
    check(fd, [x, w], [x.relu() @ w, x.relu().sum(0)], d)
    with meshfuse.simulate(d) as sim:
        sim.run(fd, [x, w])
        assert sim.local(0).shape == (4, 6)


@pytest.mark.parametrize("d", [2, 4])
def test_cache_after_of_an_input_for_some_uses(x, d):
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 8])
        negative, positive = fd.ops.neg(a), fd.ops.relu(a)
        fd.add_output(negative)
        fd.add_output(positive)
        cached = a.cache_after(cached_uses=[negative.definition()])
        shard(a, 1, d)
    assert negative.definition().input(0) == cached
    assert positive.definition().input(0) == a
    check(fd, [x], [-x, x.relu()], d)


def test_cache_after_where_an_operation_reads_twice(x):
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 8])
        y = fd.ops.mul(a, a)
        fd.add_output(y)
        cached = a.cache_after()
    assert y.definition().inputs() == [cached, cached]
    check(fd, [x], [x * x], 2)


def test_cache_after_of_an_output_keeps_the_output(x):
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 8])
        y = fd.ops.exp(a)
        fd.add_output(y)
        fd.add_output(fd.ops.neg(y))
        y.cache_after()
    assert fd.fusion.outputs()[0] == y
    check(fd, [x], [x.exp(), -x.exp()], 2)


def test_cache_after_passes_the_memory_order_on(x):
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 8], stride_order=[0, 1], contiguity=True)
        fd.add_output(fd.ops.matmul(a, fd.ops.permute(a, [1, 0])))
        ordered = a.cache_after()
        plain = ordered.cache_after(propagate_allocation_domain=False)
    assert [str(i.extent()) for i in ordered.get_allocation_domain()] == ["8", "4"]
    assert not plain.has_allocation()
    check(fd, [x.t().contiguous().t()], [x @ x.t()], 2)


@pytest.mark.parametrize("d", [2, 4])
def test_cache_after_in_class_style(x, d):
    class Cached(FusionDefinition):
        def definition(self):
            self.a = self.define_tensor([4, 8])
            self.y = self.ops.neg(self.a)
            self.add_output(self.y)

        def multidevice_schedule(self):
            c = self.sched.cache_after(self.a)
            self.sched._set_device_mesh(c, DeviceMesh(range(d)))
            self.sched.split(c, 0, d, False)
            self.sched.parallelize(c, 0, ParallelType.mesh_x)

    fd = Cached()
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [x])
        assert sim.local(0).shape == (4 // d, 8)
    torch.testing.assert_close(out, -x)


@pytest.mark.parametrize("d", [2, 4])
def test_cache_before_a_sharded_output(x, d):
    """The new tensor has the schedule, reductions included; the old one is its copy."""
    w = torch.randn(8, 6)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 8]), fd.define_tensor([8, 6])
        y = fd.ops.matmul(a, b)
        fd.add_output(y, stride_order=[0, 1])
        shard(a, 1, d)
        shard(b, 0, d)
        shard(y, 0, d)
        c = y.cache_before()
    assert ops_of(fd) == ["matmul", "set"] and c.has_reduction() and not y.has_reduction()
    assert y.definition().input(0) == c and fd.fusion.outputs()[0] == y
    check(fd, [x, w], [x @ w], d)
    with meshfuse.simulate(d) as sim:
        sim.run(fd, [x, w])
        assert sim.local(0).shape == (4 // d, 6) and sim.local(0).t().is_contiguous()


def test_cache_before_one_of_several_results(x):
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 8])
        var, mean = fd.ops.var_mean(a, [1], 0)
        fd.add_output(var)
        fd.add_output(mean)
        mean.cache_before()
        shard(mean, 0, 2)
    var, mean = torch.var_mean(x, 1, correction=0)
    check(fd, [x], [var, mean], 2)


def test_cache_before_the_result_of_an_rfactor(x):
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 8])
        y = fd.ops.sum(a, [1])
        fd.add_output(y)
        shard(a, 1, 2)
        y.outer_split(-1, 2)
        half = y.rfactor([-1])
        half.set_device_mesh(DeviceMesh(range(2)))
        half.axis(-2).parallelize(ParallelType.mesh_x)
        fd.sched.cache_before(y)
    assert ops_of(fd) == ["sum", "sum", "set"]
    check(fd, [x], [x.sum(1)], 2)


@pytest.mark.parametrize("d", [2, 4])
def test_cache_fork(x, d):
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 8])
        y = fd.ops.relu(a)
        fd.add_output(y)
        z = fd.ops.neg(y)
        fd.add_output(z)
        shard(a, 0, d)
        out = fd.sched.cache_fork(y)
        out.set_device_mesh(DeviceMesh(range(d)))
    assert fd.fusion.outputs() == [out, z] and z.definition().input(0) == y
    assert not y.is_fusion_output() and out.is_fusion_output()
    check(fd, [x], [x.relu(), -x.relu()], d)
    with meshfuse.simulate(d) as sim:
        sim.run(fd, [x])
        assert sim.local(0).shape == (4, 8) and sim.local(1).shape == (4 // d, 8)


def defined():
    """Define x -> relu (an output) -> neg (an output), and an rfactored sum of x."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        y = fd.ops.relu(x)
        z = fd.ops.neg(y)
        s = fd.ops.sum(x, [1])
        for out in (y, z, s):
            fd.add_output(out)
        s.outer_split(-1, 2)
        half = s.rfactor([-1])
    return x, y, z, half


BAD = [
    (lambda x, y, z, h: z.cache_after(), "cache_after: no operation reads T2"),
    (
        lambda x, y, z, h: x.cache_after(cached_uses=[z.definition()]),
        "cache_after: neg, which makes T2, is listed in cached_uses, but does not read T0",
    ),
    (lambda x, y, z, h: x.cache_before(), "cache_before: T0 is an input"),
    (lambda x, y, z, h: x.cache_fork(), "cache_fork: T0 is not an output"),
    (lambda x, y, z, h: z.cache_fork(), "cache_fork: no operation reads the output T2"),
    (lambda x, y, z, h: h.cache_after(), "cache_after: T4 is the first half of a reduction"),
    (lambda x, y, z, h: h.cache_before(), "cache_before: T4 is the first half of a reduction"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m for _, m in BAD])
def test_faults(call, message):
    with pytest.raises(meshfuse.Error, match=message):
        call(*defined())


UNSUPPORTED = [
    (lambda y: y.cache_after(LoadStoreOpType.tma), "cache_after: op_type=tma for T1"),
    (
        lambda y: y.cache_after(cache_op=CacheOp.streaming),
        "cache_after: cache_op=streaming for T1",
    ),
    (lambda y: y.cache_before(LoadStoreOpType.ldmatrix), "cache_before: op_type=ldmatrix for T1"),
]


@pytest.mark.parametrize(("call", "message"), UNSUPPORTED, ids=[m for _, m in UNSUPPORTED])
def test_copies_of_cuda_kernels(call, message):
    with pytest.raises(meshfuse.UnsupportedError, match=message):
        call(defined()[1])
