# SPDX-License-Identifier: BSD-3-Clause
"""prod, max and min over a divided axis: the collective combines by the same operation."""

from __future__ import annotations

import pytest
import torch
from programs import dtype_of, place, ramp, shard

import meshfuse
from meshfuse import FusionDefinition, ParallelType

COMPUTE = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}


def operand(op, *shape):
    """Small integers; for products 1, -1 and one 2."""
    x = ramp(*shape)
    if op == "prod":
        x = x.sign() + (x == 0)
        x[0] *= 2
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("scatter", [False, True], ids=["all-reduce", "reduce-scatter"])
@pytest.mark.parametrize("op", COMPUTE)
def test_reduction_over_ranks(mesh_env, op, scatter, dtype):
    d = mesh_env.size
    x = operand(op, 2 * d, d).to(dtype)
    with FusionDefinition() as fd:
        t = fd.define_tensor([2 * d, d], dtype=dtype_of(x))
        out = getattr(fd.ops, op)(t, [0])
        fd.add_output(out)
        place(mesh_env.mesh, t, out)
        shard(t, 0, d)
        if scatter:
            shard(out, 1, d)  # its loop is [r, i]
    (got,) = mesh_env.run(fd, [x])
    want = COMPUTE[op](x, 0)
    assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("split", [False, True], ids=["axis", "split"])
@pytest.mark.parametrize(
    ("given", "result"), [(torch.int32, torch.int64), (torch.float32, torch.float64)], ids=str
)
def test_sums_of_one_element_each_are_in_the_type_of_the_result(mesh_env, split, given, result):
    """Each device widens its element before the all-reduce, however the axis is put on the mesh."""
    d = mesh_env.size
    x = torch.full((d, 3), 2**30 + 1, dtype=torch.int32).to(given)
    x[0] += 64
    with FusionDefinition() as fd:
        t = fd.define_tensor([d, 3], dtype=dtype_of(x))
        fd.add_output(fd.ops.sum(t, [0], dtype=dtype_of(torch.empty(0, dtype=result))))
        place(mesh_env.mesh, t)
        if split:
            shard(t, 0, d)
        else:
            t.axis(0).parallelize(ParallelType.mesh_x)
    (got,) = mesh_env.run(fd, [x])
    want = x.sum(0, dtype=result)
    assert got.dtype == want.dtype and torch.equal(got, want)


def test_one_element_each_is_sent_as_it_is(mesh_env):
    """No local sum where there is nothing to add up before the all-reduce."""
    d = mesh_env.size
    x = ramp(d, 3)
    with FusionDefinition() as fd:
        t = fd.define_tensor([d, 3])
        fd.add_output(fd.ops.sum(t, [0]))
        place(mesh_env.mesh, t)
        shard(t, 0, d)
    (got,) = mesh_env.run(fd, [x])
    assert torch.equal(got, x.sum(0))
    assert fd.plan().count("step ") == 1


@pytest.mark.parametrize("scatter", [False, True], ids=["all-reduce", "reduce-scatter"])
@pytest.mark.parametrize("others", [[1, 4], [1, 1]], ids=str)
def test_another_reduced_axis_of_one_element(mesh_env, others, scatter):
    """Its dimension goes by a local sum, before what is left is combined over the devices."""
    d = mesh_env.size
    x = ramp(d, *others, d)
    with FusionDefinition() as fd:
        t = fd.define_tensor(list(x.shape))
        out = fd.ops.sum(t, [0, 1, 2])
        fd.add_output(out)
        place(mesh_env.mesh, t, out)
        shard(t, 0, d)
        if scatter:
            shard(out, -1, d)  # a reduced axis known to hold one element is none of its loop axes
    (got,) = mesh_env.run(fd, [x])
    assert torch.equal(got, x.sum([0, 1, 2]))


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_crosses_ranks(mesh_env, op):
    d = mesh_env.size
    x = torch.arange(2.0 * d).reshape(d, 2)
    x[d - 1, 1] = float("nan")
    with FusionDefinition() as fd:
        t = fd.define_tensor([d, 2])
        fd.add_output(getattr(fd.ops, op)(t, [0]))
        place(mesh_env.mesh, t)
        shard(t, 0, d)
    (got,) = mesh_env.run(fd, [x])
    torch.testing.assert_close(got, COMPUTE[op](x, 0), equal_nan=True)


@pytest.mark.parametrize("op", ["max", "min"])
def test_empty_axis_is_refused_by_every_rank(mesh_env, op):
    """Before anything is sent: the next call works."""
    d = mesh_env.size
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, 3])
        fd.add_output(getattr(fd.ops, op)(t, [0]))
        place(mesh_env.mesh, t)
        shard(t, 0, d)
    with pytest.raises(
        meshfuse.Error, match=f"{op}: Expected reduction dim 0 .*axis 0 of T0 is empty"
    ):
        mesh_env.run(fd, [torch.empty(0, 3)])
    x = ramp(d, 3)
    (got,) = mesh_env.run(fd, [x])
    assert torch.equal(got, COMPUTE[op](x, 0))


@pytest.mark.parametrize("op", COMPUTE)
def test_ranks_with_fewer_elements(mesh_env, op):
    """Of 5 rows the last of 4 ranks has none."""
    d = mesh_env.size
    rows = d + 1
    x = -operand(op, rows, 3).abs() - 1
    with FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([rows, 3])
        fd.add_output(getattr(fd.ops, op)(t, [0]))
        place(mesh_env.mesh, t)
        shard(t, 0, d)
    (got,) = mesh_env.run(fd, [x])
    assert torch.equal(got, COMPUTE[op](x, 0))
