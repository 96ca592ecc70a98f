# SPDX-License-Identifier: BSD-3-Clause
"""Pictures give every device the elements, in the order of memory, that the library gives it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import mlp, place, shard
from test_properties import divisible, schedules
from uneven_programs import PRODUCT_CUTS, product, product_on_two_axes, resharding

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition
from meshfuse.pictures.ownership import Ownership
from meshfuse.program_text import parse

FEW = settings(max_examples=150, derandomize=True, deadline=None, database=None)


def ownership_of(fd: FusionDefinition, name: str) -> Ownership:
    return Ownership(parse(fd.compiled_ir()).tensors()[name], int)


def compiled_tensors(fd: FusionDefinition):
    return [t for t in fd._executor().compiled_fusion().vals() if hasattr(t, "get_loop_domain")]


def assert_same_parts(own: Ownership, tv: meshfuse.TensorView) -> None:
    """Compare with ``sim.shard_tensor`` of the numbers of the elements."""
    whole = torch.arange(math.prod(own.shape)).reshape(own.shape)
    with meshfuse.simulate(max(own.mesh.devices) + 1) as sim:
        parts = sim.shard_tensor(whole, tv)
    owned = {device: [] for device in own.mesh.devices}
    for index in itertools.product(*map(range, own.shape)):
        for device in own.owners(index):
            owned[device].append(int(whole[index]))
    for device in own.mesh.devices:
        assert owned[device] == sorted(parts[device].flatten().tolist())
        assert own.count(device) == len(owned[device])


def assert_same_memory(own: Ownership, device: int, part: torch.Tensor) -> None:
    """Compare with a result that has the numbers of the elements as values."""
    whole = torch.arange(math.prod(own.shape)).reshape(own.shape)
    ordered = part.as_strided((part.numel(),), (1,)).int().tolist()  # results are dense
    assert [int(whole[index]) for index in own.memory(device)] == ordered


@FEW
@given(schedules(), st.randoms(use_true_random=False))
def test_any_schedule(schedule, random):
    """Outer and inner splits, serial ones between them, on meshes of up to three axes."""
    mesh, sizes, steps = schedule
    if not divisible(sizes, steps):
        return
    sizes = [n + (n == 1) * math.prod(f for _, f, _, _ in steps) for n in sizes]
    if not divisible(sizes, steps):
        return
    draw_order = random.sample(range(len(sizes)), len(sizes))
    with FusionDefinition() as fd:
        x = fd.define_tensor(sizes, contiguity=True)
        fd.add_output(fd.ops.set(x), stride_order=draw_order)
        place(mesh, x)
        for at, factor, inner, mesh_axis in steps:
            x.split(at, factor, inner)
            if mesh_axis is not None:
                x.axis(at + inner).parallelize(mesh_axis)
    for tv in compiled_tensors(fd):
        assert_same_parts(ownership_of(fd, tv.name), tv)
    with meshfuse.simulate(mesh.size) as sim:
        sim.run(fd, [torch.arange(math.prod(sizes), dtype=torch.float32).reshape(sizes)])
        own = ownership_of(fd, fd.fusion.outputs()[0].name)
        for device in mesh.devices:
            assert_same_memory(own, device, sim.local(device=device))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_memory_of_uneven_parts(axis, order):
    with FusionDefinition(uneven=True) as fd:
        x = fd.define_tensor([7, 5])
        y = fd.ops.set(x)
        fd.add_output(y, stride_order=order)
        place(DeviceMesh(range(4)), x, y)
        for tv in (x, y):
            shard(tv, axis, 4)
    with meshfuse.simulate(4) as sim:
        sim.run(fd, [torch.arange(35.0).reshape(7, 5)])
        own = ownership_of(fd, y.name)
        for device in range(4):
            assert_same_memory(own, device, sim.local(device=device))


PROGRAMS = {
    "mlp": lambda: mlp(DeviceMesh(range(4)), in_seq=True, out_seq=True),
    **{
        f"product {c} {r}": (lambda c=c, r=r: product(3, c, r))
        for c in PRODUCT_CUTS
        for r in (0, 1)
    },
    **{
        f"resharding {s} {t}": (lambda s=s, t=t: resharding(4, s, t))
        for s, t in itertools.product((None, 0, 1, 2), repeat=2)
    },
    "two meshes": lambda: product_on_two_axes(DeviceMesh([5, 1, 3])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_tensor_of_a_compiled_program(name):
    fd = PROGRAMS[name]()
    tensors = compiled_tensors(fd)
    assert tensors
    for tv in tensors:
        assert_same_parts(ownership_of(fd, tv.name), tv)
