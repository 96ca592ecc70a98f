# SPDX-License-Identifier: BSD-3-Clause
"""Results that only local operations read stay views, and are not widened to be narrowed again."""

from __future__ import annotations

import pytest
import torch
from programs import place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition


def operations(call):
    """Return the torch operations that a call runs, by name."""
    call()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
    return [event.name for event in profile.events() if event.name.startswith("aten::")]


def heads_of(fd, x):
    """Take [b, s, 3 * h * e] apart into queries, keys and values, [b, h, s, e], and add them up."""
    parts = fd.ops.permute(fd.ops.reshape(x, [2, 6, 3, 4, 8]), [2, 0, 3, 1, 4])
    q, k, v = (
        fd.ops.squeeze(fd.ops.slice(parts, [i, 0, 0, 0, 0], [i + 1, 2, 4, 6, 8]), [0])
        for i in range(3)
    )
    return fd.ops.add(fd.ops.add(q, k), v)


def test_views_of_views_are_not_copied():
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 6, 96], contiguity=True)
        fd.add_output(fd.ops.sum(heads_of(fd, x), [0]))
    given = torch.randn(2, 6, 96)
    assert "aten::copy_" not in operations(lambda: fd.execute([given]))
    q, k, v = given.view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    torch.testing.assert_close(fd.execute([given])[0], (q + k + v).sum(0))


def test_results_of_the_program_have_their_memory_order():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        turned = fd.ops.permute(x, [1, 0])
        fd.add_output(turned)
        fd.add_output(fd.ops.mul(turned, 2.0))
        ordered = fd.ops.stride_order(fd.ops.permute(x, [1, 0]), [1, 0])
        fd.add_output(fd.ops.neg(ordered))
    given = torch.randn(4, 6)
    outputs = fd.execute([given])
    assert [out.stride() for out in outputs] == [(4, 1)] * 3
    for out, want in zip(outputs, (given.t(), 2 * given.t(), -given.t()), strict=True):
        torch.testing.assert_close(out, want)


def test_an_order_that_is_asked_for_stays():
    """The reader is given the memory order that was set on what it reads."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        y = fd.ops.set(x)
        y.set_allocation_domain([y.axis(1), y.axis(0)], True)
        fd.add_output(fd.ops.neg(y))
    assert fd.execute([torch.ones(4, 6)])[0].stride() == (1, 4)


def test_communicated_results_are_in_order():
    """What is sent lies in memory as the plan says, whatever view it was made by."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        turned = fd.ops.permute(x, [1, 0])
        whole = fd.ops.set(turned)
        fd.add_output(whole)
        place(DeviceMesh(range(2)), x, turned, whole)
        shard(x, 0, 2)
        shard(turned, 1, 2)
    given = torch.randn(4, 6)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [given])[0], given.t())


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "BFloat16"), (torch.float16, "Half")], ids=str
)
def test_sum_that_is_cast_back_rounds_once(op, dtype, name):
    kind = getattr(DataType, name)
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], dtype=kind) for _ in range(2))
        fd.add_output(fd.ops.cast(getattr(fd.ops, op)(x, y), kind))
    torch.manual_seed(0)
    x, y = (100 * torch.randn(4099).to(dtype) for _ in range(2))
    assert "aten::_to_copy" not in operations(lambda: fd.execute([x, y]))
    want = getattr(torch, op)(x.float(), y.float()).to(dtype)
    assert torch.equal(fd.execute([x, y])[0], want)


def test_sum_that_others_read_is_wide():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], dtype=DataType.BFloat16) for _ in range(2))
        total = fd.ops.add(x, y)
        fd.add_output(fd.ops.cast(total, DataType.BFloat16))
        fd.add_output(fd.ops.sum(total, [0]))
    x, y = (torch.randn(1000).bfloat16() for _ in range(2))
    narrow, total = fd.execute([x, y])
    assert torch.equal(narrow, (x.float() + y.float()).bfloat16())
    torch.testing.assert_close(total, (x.float() + y.float()).sum())
