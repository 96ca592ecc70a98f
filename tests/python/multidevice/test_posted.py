# SPDX-License-Identifier: BSD-3-Clause
"""Communications whose results are not needed at once: other steps run before they end."""

from __future__ import annotations

import pytest
import torch
from programs import place, ramp, shard

from meshfuse import DataType, FusionDefinition

COUNT = 5


def sums(mesh_env, size, between=None):
    """``COUNT`` sums over the devices, one after the other, and then a use of each."""
    d = mesh_env.size
    with FusionDefinition() as fd:
        given = [fd.define_tensor([2 * d, size]) for _ in range(COUNT)]
        summed = [fd.ops.sum(t, [0]) for t in given]
        if between is not None:
            between(fd)
        for s in summed:
            fd.add_output(fd.ops.mul(s, 2.0))
        place(mesh_env.mesh, *given)
        for t in given:
            shard(t, 0, d)
    return fd, [ramp(2 * d, size) + i for i in range(COUNT)]


def needs_several(mesh_env):
    if mesh_env.size == 1:
        pytest.skip("one device sends nothing")


@pytest.mark.parametrize("size", [3, 100_000])
def test_independent_all_reduces(mesh_env, size):
    needs_several(mesh_env)
    fd, x = sums(mesh_env, size)
    for _ in range(3):
        got = mesh_env.run(fd, x)
        assert all(torch.equal(g, 2 * t.sum(0)) for g, t in zip(got, x, strict=True))
    plan = fd.plan()
    assert plan.count("all-reduce over mesh_x") == COUNT
    assert plan.count("all-reduce over mesh_x, posted") == COUNT


def test_a_result_that_is_needed_at_once_is_waited_for(mesh_env):
    d = mesh_env.size
    x = ramp(2 * d, 3)
    with FusionDefinition() as fd:
        t = fd.define_tensor([2 * d, 3])
        fd.add_output(fd.ops.exp(fd.ops.sum(t, [0])))
        place(mesh_env.mesh, t)
        shard(t, 0, d)
    (got,) = mesh_env.run(fd, [x])
    assert torch.equal(got, x.sum(0).exp())
    assert "posted" not in fd.plan()


def test_gathers_are_one_ahead(mesh_env):
    """While a product waits for its weight, only the next weight is gathered."""
    needs_several(mesh_env)
    d = mesh_env.size
    x, weights = ramp(4, 4), [ramp(4 * d, 4) % 3 for _ in range(4)]
    with FusionDefinition() as fd:
        y = first = fd.define_tensor([4, 4])
        given = [fd.define_tensor([4 * d, 4]) for _ in weights]
        blocks = []
        for w in given:
            blocks.append(fd.ops.slice(w, [0, 0], [4, 4]))
            y = fd.ops.matmul(y, blocks[-1])
        fd.add_output(y)
        place(mesh_env.mesh, first, *given, *blocks)
        for w in given:
            shard(w, 0, d)
    (got,) = mesh_env.run(fd, [x, *weights])
    want = x
    for w in weights:
        want = want @ w[:4]
    assert torch.equal(got, want)
    steps = [s for s in fd.plan().splitlines() if "all-gather" in s or "matmul" in s]
    assert ["matmul" in s for s in steps] == [False] * 2 + [True, False] * 2 + [True] * 2


def test_several_kinds_and_outputs(mesh_env):
    """All-reduce, all-gather, reduce-scatter and all-to-all, none of them used by the program."""
    d = mesh_env.size
    x = ramp(2 * d, 3 * d)
    with FusionDefinition() as fd:
        t = fd.define_tensor([2 * d, 3 * d])
        summed, scattered = fd.ops.sum(t, [0]), fd.ops.sum(t, [0])
        whole, turned, local = fd.ops.set(t), fd.ops.set(t), fd.ops.neg(t)
        for out in (summed, scattered, whole, turned, local):
            fd.add_output(out)
        place(mesh_env.mesh, t, summed, scattered, whole, turned, local)
        shard(t, 0, d)
        shard(scattered, 1, d)  # its loop is [r, i]
        shard(turned, 1, d)
        shard(local, 0, d)
    got = mesh_env.run(fd, [x])
    for g, want in zip(got, [x.sum(0), x.sum(0), x, x, -x], strict=True):
        assert torch.equal(g, want)


def test_results_that_overwrite_inputs(mesh_env):
    """The input is read by a communication that has begun; its memory changes after the end."""
    d = mesh_env.size
    x = ramp(2 * d, 4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([2 * d, 4])
        whole = fd.ops.set(t)
        changed = fd.ops.mul(t, 3.0)
        fd.add_output(changed, alias_input=t)
        fd.add_output(fd.ops.neg(t))
        fd.add_output(whole)
        place(mesh_env.mesh, t, whole)
        shard(t, 0, d)
    *_, got = mesh_env.run(fd, [x.clone()])
    assert torch.equal(got, x)


@pytest.mark.cpu_only("torch checks indices of other devices itself, and CUDA then stops working")
def test_an_error_after_messages_were_posted(mesh_env):
    """All ranks fail in the same step, with messages under way; the group goes on."""

    def fails(fd):
        table, index = fd.define_tensor([4, 2]), fd.define_tensor([3], dtype=DataType.Int)
        place(mesh_env.mesh, table, index)
        fd.add_output(fd.ops.embedding_fwd(index, table))

    fd, x = sums(mesh_env, 3, fails)
    table = ramp(4, 2)
    with pytest.raises((IndexError, RuntimeError), match="ind"):
        mesh_env.run(fd, [*x, table, torch.tensor([0, 9, 1])])
    _, *got = mesh_env.run(fd, [*x, table, torch.tensor([0, 3, 1])])
    assert all(torch.equal(g, 2 * t.sum(0)) for g, t in zip(got, x, strict=True))
