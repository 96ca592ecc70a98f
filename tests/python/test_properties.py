# SPDX-License-Identifier: BSD-3-Clause
"""Random schedules: parts make up the whole, and products equal torch's."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import (
    X,
    Y,
    Z,
    assert_layout,
    dense_strides,
    dtype_of,
    matmul_cut,
    place,
    ramp,
    shard,
)

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition

# Few examples and always the same: these run with every change.
FEW = settings(max_examples=60, derandomize=True, deadline=None, database=None)


class Axis:
    """A loop axis: its extent, and the index along it that element e of a logical axis has."""

    def __init__(self, logical, extent, index, device=None):
        self.logical, self.extent, self.index, self.device = logical, extent, index, device

    def split(self, factor, inner):
        rest = self.extent // factor
        low = factor if inner else rest  # extent of the inner half
        return [
            Axis(self.logical, rest if inner else factor, lambda e: self.index(e) // low),
            Axis(self.logical, low, lambda e: self.index(e) % low),
        ]


@st.composite
def schedules(draw):
    """Mesh, sizes, and splits: (loop axis, factor, inner, mesh axis or None)."""
    mesh_shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    numbers = draw(st.permutations(range(math.prod(mesh_shape))))
    ndim = draw(st.integers(1, 3))
    loop = list(range(ndim))  # logical axis of each loop axis
    sizes = [1] * ndim
    taken = [False] * ndim
    steps = []
    kinds = [*zip((X, Y, Z), reversed(mesh_shape), strict=False)]
    for _ in range(draw(st.integers(0, 3))):  # serial splits between those for the mesh
        kinds.insert(draw(st.integers(0, len(kinds))), (None, draw(st.integers(1, 3))))
    for mesh_axis, factor in kinds:
        free = [i for i in range(len(loop)) if not taken[i]]
        at = draw(st.sampled_from(free))
        inner = draw(st.booleans())
        steps.append((at, factor, inner, mesh_axis))
        sizes[loop[at]] *= factor
        loop.insert(at, loop[at])
        device = [False, mesh_axis is not None] if inner else [mesh_axis is not None, False]
        taken[at : at + 1] = device
    sizes = [n * draw(st.integers(1, 3)) for n in sizes]
    return DeviceMesh(torch.tensor(numbers).reshape(mesh_shape)), sizes, steps


def divisible(sizes, steps):
    """Serial and device splits of one axis must divide what is left at that point."""
    loop = list(sizes)
    for at, factor, inner, _ in steps:
        if loop[at] % factor:
            return False
        loop[at : at + 1] = [loop[at] // factor, factor] if inner else [factor, loop[at] // factor]
    return True


@FEW
@given(schedules())
def test_parts_make_up_the_whole(schedule):
    mesh, sizes, steps = schedule
    if not divisible(sizes, steps):
        return
    with FusionDefinition() as fd:
        # A declared size of 1 is a broadcast, which nothing divides; these sizes are found.
        x = fd.define_tensor([-1] * len(sizes))
        fd.add_output(fd.ops.neg(x))
        place(mesh, x)
        axes = [Axis(i, n, lambda e: e) for i, n in enumerate(sizes)]
        for at, factor, inner, mesh_axis in steps:
            x.split(at, factor, inner)
            axes[at : at + 1] = axes[at].split(factor, inner)
            if mesh_axis is not None:
                x.axis(at + inner).parallelize(mesh_axis)
                axes[at + inner].device = mesh_axis
    whole = torch.arange(math.prod(sizes)).reshape(sizes)
    devices = list(range(mesh.size))
    parts = [meshfuse._C.shard_tensor(whole, x, device) for device in devices]
    for device, part in zip(devices, parts, strict=True):
        place_in_mesh = dict(zip((X, Y, Z), reversed(mesh.index_of(device)), strict=False))
        want = whole
        for logical, n in enumerate(sizes):
            kept = [
                e
                for e in range(n)
                if all(
                    axis.index(e) == place_in_mesh[axis.device]
                    for axis in axes
                    if axis.logical == logical and axis.device is not None
                )
            ]
            want = want.index_select(logical, torch.tensor(kept, dtype=torch.long))
        assert torch.equal(part, want) and part.is_contiguous()
    assert torch.equal(meshfuse._C.unshard_tensor(parts, devices, x), whole)
    with meshfuse.simulate(mesh.size) as sim:
        assert torch.equal(sim.run(fd, [whole.float()])[0], -whole.float())
    assert meshfuse.parse_ir(fd.ir()).ir() == fd.ir()


SHAPES = [
    ((4,), (4, 3)),
    ((3, 4), (4,)),
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (2, 4, 5)),
]


@st.composite
def products(draw):
    a, b = map(list, draw(st.sampled_from(SHAPES)))
    loops = [name for name in ("m", "n", "batch0", "batch1") if matmul_cut(a, b, name)]
    loop = draw(st.sampled_from(loops))
    d = draw(st.integers(1, 4))
    cut = matmul_cut(a, b, loop)
    serial = draw(st.sampled_from([1, 1, 2]))
    for shape, axis in ((a, cut.a), (b, cut.b)):
        if axis is not None:
            shape[axis] *= d * serial
    ndim = torch.matmul(torch.empty(a), torch.empty(b)).dim()
    return {
        "a": a,
        "b": b,
        "cut": cut,
        "d": d,
        "serial": serial,
        "inner": draw(st.booleans()),
        "order": draw(st.none() | st.permutations(range(ndim))),
        "symbolic": draw(st.booleans()),
        "declared": draw(st.booleans()),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64])),
        "memory": [draw(st.permutations(range(len(s)))) for s in (a, b)],
        "devices": draw(st.permutations(range(d))),
    }


@FEW
@given(products())
def test_divided_product(case):
    """Any loop but the inner one, cut outer, inner or inside blocks, in any memory orders."""
    x, w = (
        torch.empty_strided(shape, dense_strides(shape, order), dtype=case["dtype"]).copy_(
            ramp(*shape)
        )
        for shape, order in zip((case["a"], case["b"]), case["memory"], strict=True)
    )
    cut, d = case["cut"], case["d"]
    mesh = DeviceMesh(case["devices"])

    def schedule(tv, axis):
        if axis is None:
            return
        if case["serial"] > 1:
            tv.split(axis, case["serial"], False)
            axis += 1
        shard(tv, axis, d, inner=case["inner"])

    with FusionDefinition() as fd:
        sizes = [
            [-1 if case["symbolic"] and n > 1 else n for n in shape]
            for shape in (case["a"], case["b"])
        ]
        a, b = (fd.define_tensor(s, dtype=dtype_of(x)) for s in sizes)
        out = fd.ops.matmul(a, b)
        fd.add_output(out, stride_order=case["order"])
        place(mesh, a, b)
        schedule(a, cut.a)
        schedule(b, cut.b)
        if case["declared"]:
            place(mesh, out)
            schedule(out, cut.out)
    want = torch.matmul(x, w)
    with meshfuse.simulate(d) as sim:
        (result,) = sim.run(fd, [x, w])
        assert torch.equal(result, want)
        local = list(want.shape)
        local[cut.out] //= d
        order = case["order"] or list(reversed(range(want.dim())))
        for r in range(d):
            assert_layout(sim.local(device=r), local, dense_strides(local, order))
    assert meshfuse.parse_ir(fd.ir()).ir() == fd.ir()


def test_every_split_of_one_axis():
    """All orders of two mesh axes and a serial split on one axis, outer and inner."""
    mesh = DeviceMesh(torch.arange(4).reshape(2, 2))
    x, w = ramp(3, 5), ramp(5, 8)
    kinds = list(itertools.permutations([X, Y, None]))
    for order, inners in itertools.product(kinds, itertools.product([False, True], repeat=3)):
        with FusionDefinition() as fd:
            a, b = fd.define_tensor([3, 5]), fd.define_tensor([5, 8])
            fd.add_output(fd.ops.matmul(a, b))
            place(mesh, a, b)
            axis = 1
            for kind, inner in zip(order, inners, strict=True):
                b.split(axis, 2, inner)
                if kind is not None:
                    b.axis(axis + inner).parallelize(kind)
                axis = axis if inner else axis + 1
        with meshfuse.simulate(4) as sim:
            assert torch.equal(sim.run(fd, [x, w])[0], x @ w), (order, inners)
            assert sim.local().shape == (3, 2)
