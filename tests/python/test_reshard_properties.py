# SPDX-License-Identifier: BSD-3-Clause
"""Random shardings: any one becomes any other, and random programs equal torch's.

``MESHFUSE_EXAMPLES=1000`` runs that many examples of each, not always the same ones.
"""

from __future__ import annotations

import math
import os

import torch
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from placements import general, is_useful
from programs import X, Y, Z, ramp

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition

COUNT = int(os.environ.get("MESHFUSE_EXAMPLES", "0"))
WORLD = 6
PROPERTY = settings(
    max_examples=COUNT or 60,
    derandomize=COUNT == 0,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

MESH_SHAPES = [(1,), (2,), (3,), (4,), (6,), (1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (2, 1, 2)]


@st.composite
def meshes(draw):
    """A mesh of some of the devices, in any order."""
    shape = draw(st.sampled_from(MESH_SHAPES))
    devices = draw(st.permutations(range(WORLD)))[: math.prod(shape)]
    return DeviceMesh(torch.tensor(devices).reshape(shape))


def draw_splits(draw, mesh, ndim, serial=True):
    """Splits in order: (loop axis, factor, inner, mesh axis or None), and what divides each axis.

    Mesh axes may be left out, may share a tensor axis, and may have serial splits around them.
    """
    wanted = [
        (parallel, size)
        for parallel, size in zip((X, Y, Z), reversed(mesh.shape), strict=False)
        if draw(st.booleans())
    ]
    wanted = draw(st.permutations(wanted)) if len(wanted) > 1 else wanted
    if serial:
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            wanted.insert(draw(st.integers(0, len(wanted))), (None, draw(st.sampled_from([2, 3]))))
    loop = list(range(ndim))  # the tensor axis that each loop axis is a piece of
    free = [True] * ndim
    divisor = [1] * ndim
    steps = []
    for parallel, factor in wanted:
        at = draw(st.sampled_from([i for i, ok in enumerate(free) if ok]))
        inner = draw(st.sampled_from([False, False, True]))
        steps.append((at, factor, inner, parallel))
        divisor[loop[at]] *= factor
        loop.insert(at, loop[at])
        # The half that the factor makes is not split again, so that the other one divides.
        free[at : at + 1] = [True, False] if inner else [False, True]
    return steps, divisor


def apply_splits(tv, mesh, steps):
    tv.set_device_mesh(mesh)
    for at, factor, inner, parallel in steps:
        tv.split(at, factor, inner)
        if parallel is not None:
            tv.axis(at + inner).parallelize(parallel)


@st.composite
def reshardings(draw):
    ndim = draw(st.integers(1, 3))
    sides = []
    sizes = [1] * ndim
    same = draw(st.booleans())
    first = draw(meshes())
    for mesh in (first, first if same else draw(meshes())):
        steps, divisor = draw_splits(draw, mesh, ndim)
        sides.append((mesh, steps))
        sizes = [math.lcm(n, d) for n, d in zip(sizes, divisor, strict=True)]
    return [n * draw(st.integers(1, 2)) for n in sizes], sides, draw(st.booleans())


@PROPERTY
@given(reshardings())
def test_any_sharding_becomes_any_other(case):
    """Also between meshes of other devices, shapes and orders; devices outside have nothing."""
    sizes, ((mesh_a, steps_a), (mesh_b, steps_b)), symbolic = case
    if 1 in sizes:  # a declared size of 1 is a broadcast, which nothing divides
        symbolic = True
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(sizes) if symbolic else sizes)
        y = fd.ops.set(x)
        fd.add_output(y)
        apply_splits(x, mesh_a, steps_a)
        apply_splits(y, mesh_b, steps_b)
    note(f"sizes {sizes}\n{fd.ir()}")
    whole = torch.arange(1.0, math.prod(sizes) + 1).reshape(sizes)
    with meshfuse.simulate(WORLD) as sim:
        (result,) = sim.run(fd, [whole])
        assert torch.equal(result, whole)
        for device, part in enumerate(sim.shard_tensor(whole, y)):
            got = sim.local(device=device)
            if device in mesh_b.devices:
                assert torch.equal(got, part), device
            else:
                assert got.numel() == 0 or not steps_b, device


@PROPERTY
@given(reshardings())
def test_there_and_back(case):
    sizes, ((mesh_a, steps_a), (mesh_b, steps_b)), _ = case
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(sizes))
        y = fd.ops.set(x)
        z = fd.ops.set(y)
        fd.add_output(z)
        for tv, mesh, steps in ((x, mesh_a, steps_a), (y, mesh_b, steps_b), (z, mesh_a, steps_a)):
            apply_splits(tv, mesh, steps)
    note(f"sizes {sizes}\n{fd.ir()}")
    whole = ramp(*sizes)
    with meshfuse.simulate(WORLD) as sim:
        parts = sim.shard(fd, [whole])
        outputs = sim.execute(fd, parts)
        for device in mesh_a.devices:
            assert torch.equal(outputs[device][0], parts[device][0])


# ---- random programs

UNARY = {
    "relu": torch.relu,
    "neg": torch.neg,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "sigmoid": torch.sigmoid,
    "set": torch.clone,
    "silu": torch.nn.functional.silu,
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
SIZE = 12  # every axis: it is divisible by all products of mesh axes


class Builder:
    """Adds random operations to a definition and computes them by torch beside it."""

    def __init__(self, draw, fd):
        self.draw, self.fd = draw, fd
        self.values: list[tuple] = []  # (TensorView, torch tensor)
        self.inputs: list[torch.Tensor] = []

    def input(self, shape):
        generator = torch.Generator().manual_seed(len(self.inputs))
        value = torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5
        symbolic = self.draw(st.booleans())
        sizes = [-1 if symbolic and n > 1 else n for n in shape]
        self.inputs.append(value)
        self.values.append((self.fd.define_tensor(sizes, dtype=DataType.Double), value))
        return self.values[-1]

    def operand(self, fits=lambda value: True):
        """Return an earlier tensor that fits, one of the latest more often; None: there is none."""
        found = [pair for pair in self.values if fits(pair[1])]
        if not found:
            return None
        return found[-1] if self.draw(st.booleans()) else self.draw(st.sampled_from(found))

    def step(self):
        kind = self.draw(
            st.sampled_from(["unary", "binary", "binary", "matmul", "linear", "sum", "permute"])
        )
        made = getattr(self, kind)()
        if made is not None:
            self.values.append(made)

    def unary(self):
        tv, value = self.operand()
        name = self.draw(st.sampled_from(sorted(UNARY)))
        return getattr(self.fd.ops, name)(tv), UNARY[name](value)

    def binary(self):
        tv, value = self.operand()

        def fits(other):
            try:
                return torch.broadcast_shapes(other.shape, value.shape) is not None
            except RuntimeError:
                return False

        other_tv, other = self.operand(fits)
        name = self.draw(st.sampled_from(sorted(BINARY)))
        return getattr(self.fd.ops, name)(tv, other_tv), BINARY[name](value, other)

    def matmul(self):
        left = self.operand(lambda v: v.dim() >= 1 and v.size(-1) == SIZE)
        if left is None:
            return None

        def fits(other):
            if other.dim() < 1 or other.size(-2 if other.dim() > 1 else 0) != SIZE:
                return False
            try:
                return torch.matmul(left[1], other).dim() <= 3
            except RuntimeError:
                return False

        right = self.operand(fits)
        if right is None:
            return None
        return self.fd.ops.matmul(left[0], right[0]), torch.matmul(left[1], right[1])

    def linear(self):
        x = self.operand(lambda v: v.dim() >= 1 and v.size(-1) == SIZE)
        w = self.operand(lambda v: v.dim() == 2 and v.size(1) == SIZE)
        if x is None or w is None:
            return None
        bias = self.operand(lambda v: v.shape == w[1].shape[:1])
        if bias is None or self.draw(st.booleans()):
            return self.fd.ops.linear(x[0], w[0]), torch.nn.functional.linear(x[1], w[1])
        return (
            self.fd.ops.linear(x[0], w[0], bias[0]),
            torch.nn.functional.linear(x[1], w[1], bias[1]),
        )

    def sum(self):
        found = self.operand(lambda v: v.dim() >= 1)
        if found is None:
            return None
        tv, value = found
        axes = st.lists(st.integers(0, value.dim() - 1), min_size=1, max_size=2, unique=True)
        dims = sorted(self.draw(axes))
        keepdim = self.draw(st.booleans())
        return self.fd.ops.sum(tv, dims, keepdim), torch.sum(value, dims, keepdim)

    def permute(self):
        found = self.operand(lambda v: v.dim() >= 2)
        if found is None:
            return None
        tv, value = found
        dims = self.draw(st.permutations(range(value.dim())))
        return self.fd.ops.permute(tv, list(dims)), value.permute(dims)


SHAPES = [(SIZE,), (SIZE, SIZE), (SIZE, SIZE), (SIZE, 1), (1, SIZE), (SIZE, SIZE, SIZE)]


def annotate(draw, tv, value, mesh):
    """Place a tensor: splits of axes that are no broadcasts and no reductions."""
    tv.set_device_mesh(mesh)
    loop = tv.get_loop_domain()
    kept = [i for i, axis in enumerate(loop) if not axis.is_reduction()]
    axes = [i for i, n in zip(kept, value.shape, strict=True) if n > 1]
    splits: dict[int, list] = {}
    for parallel, size in zip((X, Y, Z), reversed(mesh.shape), strict=False):
        if axes and draw(st.booleans()):
            splits.setdefault(draw(st.sampled_from(axes)), []).append((parallel, size))
    for axis in sorted(splits, reverse=True):
        at = axis
        for parallel, size in splits[axis]:
            inner = draw(st.sampled_from([False, False, False, True]))
            tv.split(at, size, inner)
            tv.axis(at + inner).parallelize(parallel)
            at += 0 if inner else 1


@PROPERTY
@given(st.data())
def test_random_program(data):
    """5 to 20 operations; inputs are placed, other tensors sometimes, some on a second mesh.

    A program may be refused, by a message that names a tensor and says what to do.
    """
    draw = data.draw
    mesh, second = draw(meshes()), draw(meshes())
    with FusionDefinition() as fd:
        builder = Builder(draw, fd)
        for _ in range(draw(st.integers(1, 4))):
            builder.input(draw(st.sampled_from(SHAPES)))
        for _ in range(draw(st.integers(5, 20))):
            builder.step()
        count = len(builder.inputs)
        results = [builder.values[-1]]
        results += [pair for pair in builder.values[count:-1] if draw(st.integers(0, 4)) == 0]
        for tv, _ in results:
            fd.add_output(tv)
        for number, (tv, value) in enumerate(builder.values):
            if number < count or draw(st.integers(0, 3)) == 0:
                annotate(draw, tv, value, second if draw(st.integers(0, 7)) == 0 else mesh)
    note(fd.ir())
    with meshfuse.simulate(WORLD) as sim:
        try:
            found = sim.run(fd, builder.inputs)
        except meshfuse.Error as error:
            assert is_useful(str(error)), error
            event(general(str(error)))
            return
        for k, ((tv, want), got) in enumerate(zip(results, found, strict=True)):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
            if tv.has_device_mesh():
                parts = sim.shard_tensor(want, tv)
                for device in tv.get_device_mesh().devices:
                    torch.testing.assert_close(
                        sim.local(k, device), parts[device], rtol=1e-9, atol=1e-9
                    )
