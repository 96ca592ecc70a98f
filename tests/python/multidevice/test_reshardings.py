# SPDX-License-Identifier: BSD-3-Clause
"""Every change of sharding, and the communication that it takes.

With one process the bodies run on simulated meshes, under a launcher on its ranks.
"""

from __future__ import annotations

import pytest
import torch
from programs import X, Y, Z, assert_part, communications, dtype_of, lay, part_of, ramp, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition

PAIR = DeviceMesh([0, 1])
FOUR = DeviceMesh([0, 1, 2, 3])
SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))
CUBE = DeviceMesh(torch.arange(4).reshape(2, 1, 2))
S0, S1, S2 = [(0, X)], [(1, X)], [(2, X)]

# Of a tensor [4, 8, 4]: mesh and divided axes before and after, and what is sent.
SETS = {
    # one mesh axis, one mesh
    "whole_stays": (PAIR, [], PAIR, [], []),
    "divided_stays": (PAIR, S0, PAIR, S0, []),
    "gathered": (PAIR, S0, PAIR, [], ["all-gather x"]),
    "inner_axis_gathered": (PAIR, S1, PAIR, [], ["all-gather x"]),
    "last_axis_gathered": (PAIR, S2, PAIR, [], ["all-gather x"]),
    "cut": (PAIR, [], PAIR, S0, []),
    "inner_axis_cut": (PAIR, [], PAIR, S2, []),
    "other_axis": (PAIR, S0, PAIR, S1, ["all-to-all x"]),
    "other_axis_back": (PAIR, S2, PAIR, S0, ["all-to-all x"]),
    "gathered_of_four": (FOUR, S1, FOUR, [], ["all-gather x"]),
    "other_axis_of_four": (FOUR, S1, FOUR, S2, ["all-to-all x"]),
    # one mesh to another
    "to_more_devices": (DeviceMesh([0]), [], PAIR, [], ["broadcast x"]),
    "to_another_device": (DeviceMesh([0]), [], DeviceMesh([1]), [], ["broadcast x"]),
    "to_mesh_in_common": (PAIR, [], DeviceMesh([0, 2]), [], ["broadcast x"]),
    "gathered_elsewhere": (PAIR, S0, DeviceMesh([2]), [], ["gather x"]),
    "gathered_at_a_member": (PAIR, S0, DeviceMesh([1]), [], ["gather x"]),
    "gathered_at_two": (PAIR, S1, DeviceMesh([2, 3]), [], ["gather x"]),
    "scattered": (DeviceMesh([0]), [], PAIR, S0, ["scatter x"]),
    "scattered_elsewhere": (DeviceMesh([0]), [], DeviceMesh([1, 2]), S1, ["scatter x"]),
    "pipeline": (PAIR, S0, DeviceMesh([2, 3]), S0, ["send-recv x"]),
    "pipeline_back": (DeviceMesh([2, 3]), S1, PAIR, S1, ["send-recv x"]),
    "positions_change": (PAIR, S0, DeviceMesh([1, 0]), S0, ["send-recv x"]),
    "other_axis_elsewhere": (PAIR, S0, DeviceMesh([2, 3]), S1, ["send-recv x"]),
    "to_a_larger_mesh": (PAIR, S0, FOUR, S0, ["send-recv x"]),
    "to_a_smaller_mesh": (FOUR, S0, DeviceMesh([3, 1]), S0, ["send-recv x"]),
    # two mesh axes
    "x_gathered": (SQUARE, [(0, Y), (1, X)], SQUARE, [(0, Y)], ["all-gather x"]),
    "y_gathered": (SQUARE, [(0, Y), (1, X)], SQUARE, [(1, X)], ["all-gather y"]),
    "y_gathered_outermost_x": (SQUARE, [(0, X), (1, Y)], SQUARE, [(0, X)], ["all-gather y"]),
    "both_gathered": (SQUARE, [(0, Y), (1, X)], SQUARE, [], ["all-gather x", "all-gather y"]),
    "both_cut": (SQUARE, [], SQUARE, [(0, Y), (2, X)], []),
    "y_moves": (SQUARE, [(0, Y), (1, X)], SQUARE, [(2, Y), (1, X)], ["all-to-all y"]),
    "x_cut_y_gathered": (SQUARE, [(0, Y)], SQUARE, [(1, X)], ["all-gather y"]),
    "one_axis_twice_gathered": (
        SQUARE,
        [(1, Y), (1, X)],
        SQUARE,
        [],
        ["all-gather x", "all-gather y"],
    ),
    "one_axis_twice_inner_gathered": (
        SQUARE, [(1, Y), (1, X)], SQUARE, [(1, Y)], ["all-gather x"],
    ),
    "one_axis_twice_cut": (SQUARE, [], SQUARE, [(1, X), (1, Y)], []),
    "one_axis_cut_further": (SQUARE, [(1, Y)], SQUARE, [(1, Y), (1, X)], []),
    "exchanged": (SQUARE, [(0, Y), (1, X)], SQUARE, [(0, X), (1, Y)], None),
    "order_of_mesh_axes": (SQUARE, [(1, Y), (1, X)], SQUARE, [(1, X), (1, Y)], None),
    "to_another_shape": (FOUR, S0, SQUARE, [(0, Y), (1, X)], None),
    "column_of_the_mesh": (
        SQUARE, [(0, Y)], DeviceMesh(torch.tensor([[0], [2]])), [(0, Y)], None,
    ),
    # three mesh axes
    "z_gathered": (CUBE, [(0, Z), (1, Y), (2, X)], CUBE, [(2, X)], ["all-gather z"]),
    "z_moves": (CUBE, [(0, Z), (2, X)], CUBE, [(1, Z), (2, X)], ["all-to-all z"]),
    "all_gathered": (CUBE, [(1, Z), (1, X)], CUBE, [], ["all-gather x", "all-gather z"]),
}  # fmt: skip


def assignment(t, before, after):
    """Return the program ``set`` of a tensor like ``t``, with mesh and cuts of both sides."""
    with FusionDefinition() as fd:
        a = fd.define_tensor(list(t.shape), dtype=dtype_of(t))
        out = fd.ops.set(a)
        fd.add_output(out)
        lay(a, *before)
        lay(out, *after)
    return fd


def need(world, *meshes):
    """Skip a test whose meshes the world cannot serve."""
    devices = 1 + max(max(mesh.devices) for mesh in meshes)
    if world.size < devices:
        pytest.skip(f"needs {devices} devices")


@pytest.mark.parametrize("name", SETS)
def test_set(world, name):
    mesh, cuts, new_mesh, new_cuts, sent = SETS[name]
    need(world, mesh, new_mesh)
    t = torch.arange(128.0).reshape(4, 8, 4)
    fd = assignment(t, (mesh, cuts), (new_mesh, new_cuts))
    for _ in range(2):
        for r, (out,) in world.run(fd, [t]).items():
            assert_part(out, part_of(t, new_mesh, new_cuts, r))
    if sent is not None:
        assert sorted(communications(fd)) == sent


BITS = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def patterns(dtype):
    """Return [4, 8, 4] elements with many bit patterns, those of NaN among them."""
    if dtype == torch.bool:
        return (torch.arange(128) % 3 == 0).reshape(4, 8, 4)
    if dtype == torch.complex64:
        return torch.complex(torch.arange(128.0), -torch.arange(128.0)).reshape(4, 8, 4)
    width = torch.empty(0, dtype=dtype).element_size()
    seeded = torch.Generator().manual_seed(7)
    raw = torch.randint(0, 256, (128 * width,), generator=seeded, dtype=torch.uint8)
    return raw.view(dtype).reshape(4, 8, 4)


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize(
    "name",
    ["inner_axis_gathered", "other_axis", "to_more_devices", "gathered_at_a_member", "scattered",
     "positions_change", "cut", "both_gathered", "pipeline"],
)  # fmt: skip
def test_every_bit_travels(world, name, dtype):
    """Also the payload of a NaN, in types that message libraries do not know."""
    mesh, cuts, new_mesh, new_cuts, _ = SETS[name]
    need(world, mesh, new_mesh)
    t = patterns(dtype)
    fd = assignment(t, (mesh, cuts), (new_mesh, new_cuts))
    for r, (out,) in world.run(fd, [t]).items():
        assert_part(out, part_of(t, new_mesh, new_cuts, r))


@pytest.mark.parametrize("forward", [True, False], ids=["to_cyclic", "to_blocks"])
def test_other_digit_of_one_axis(world, forward):
    """Blocks to every d-th element and back, on one mesh axis: no copy to oneself."""
    d = world.size
    t = torch.arange(2.0 * d * d * 3).reshape(2 * d * d, 3)
    with FusionDefinition() as fd:
        a = fd.define_tensor(list(t.shape))
        out = fd.ops.set(a)
        fd.add_output(out)
        for tv, inner in ((a, not forward), (out, forward)):
            tv.set_device_mesh(world.mesh)
            shard(tv, 0, d, inner=inner)
    for r, (result,) in world.run(fd, [t]).items():
        assert torch.equal(result, t[r::d] if forward else t[2 * d * r : 2 * d * (r + 1)])
    assert communications(fd) == (["all-to-all x"] if d > 1 else [])


# Of sum([4, 8, 4], [0]): mesh and cuts of the operand and of the result (8, 4), and what is sent.
# A result that carries a mesh axis is scattered over it.
SUMS = {
    "all_reduce": (PAIR, S0, PAIR, [], ["all-reduce x"]),
    "reduce_scatter": (PAIR, S0, PAIR, [(0, X)], ["reduce-scatter x"]),
    "reduce_scatter_last_axis": (PAIR, S0, PAIR, [(1, X)], ["reduce-scatter x"]),
    "over_y": (SQUARE, [(0, Y), (1, X)], SQUARE, [(0, X)], ["all-reduce y"]),
    "over_x": (SQUARE, [(0, X), (1, Y)], SQUARE, [(0, Y)], ["all-reduce x"]),
    "over_both": (SQUARE, [(0, Y), (0, X)], SQUARE, [], ["all-reduce x", "all-reduce y"]),
    "scattered_over_y": (SQUARE, [(0, Y), (1, X)], SQUARE, [(1, Y), (0, X)], ["reduce-scatter y"]),
    "over_another_axis": (PAIR, S1, PAIR, [(0, X)], []),
    "over_another_axis_to_whole": (PAIR, S1, PAIR, [], ["all-gather x"]),
    "scattered_on_another_mesh": (PAIR, S0, DeviceMesh([2, 3]), [(1, X)], None),
    "of_four": (FOUR, S0, FOUR, [(0, X)], ["reduce-scatter x"]),
}


def reduction(t, before, after):
    with FusionDefinition() as fd:
        a = fd.define_tensor(list(t.shape), dtype=dtype_of(t))
        out = fd.ops.sum(a, [0])
        fd.add_output(out)
        lay(a, *before)
        lay(out, after[0], [(axis + 1, p) for axis, p in after[1]])  # r of the sum stands first
    return fd


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("name", SUMS)
def test_sum(world, name, dtype):
    mesh, cuts, new_mesh, new_cuts, sent = SUMS[name]
    need(world, mesh, new_mesh)
    t = ramp(4, 8, 4, dtype=dtype)
    if dtype.is_complex:
        t = torch.complex(t.real, t.real.flip(0))
    fd = reduction(t, (mesh, cuts), (new_mesh, new_cuts))
    for r, (out,) in world.run(fd, [t]).items():
        assert_part(out, part_of(t.sum(0), new_mesh, new_cuts, r))
    if sent is not None:
        assert sorted(communications(fd)) == sent


@pytest.mark.parametrize("devices", [[2], [1, 2], [1]])
def test_sum_on_another_mesh(world, devices):
    """Every receiver gets the sum, one reduce each."""
    mesh = DeviceMesh(devices)
    need(world, PAIR, mesh)
    fd = reduction(ramp(4, 8, 4), (PAIR, S0), (mesh, []))
    for r, (out,) in world.run(fd, [ramp(4, 8, 4)]).items():
        assert_part(out, part_of(ramp(4, 8, 4).sum(0), mesh, [], r))
    assert communications(fd) == ["reduce x"]


def pointwise(mesh, x, y, z):
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 8]), fd.define_tensor([4, 8])
        out = fd.ops.add(a, b)
        fd.add_output(out)
        for tv, cuts in ((a, x), (b, y), (out, z)):
            if cuts is not None:
                lay(tv, mesh, cuts)
    return fd, [ramp(4, 8), 10 * ramp(4, 8)]


def product(mesh, x, y, z):
    """X @ y; a cut on axis 2 of z is one of its reduction."""
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 8]), fd.define_tensor([8, 4])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        for tv, cuts in ((a, x), (b, y), (out, z)):
            if cuts is not None:
                lay(tv, mesh, cuts)
    return fd, [ramp(4, 8), ramp(8, 4)]


# Whether an operation needs resharding: what its program sends, or "slice" where nothing is sent.
OPERATIONS = {
    "add_result_alone": (pointwise, [], [], S0, ["slice", "slice"]),
    "add_operands_alone": (pointwise, S0, S0, [], ["all-gather x"]),
    "add_one_operand_whole": (pointwise, S0, [], S0, ["slice"]),
    "add_all_alike": (pointwise, S0, S0, S0, []),
    "add_on_two_axes": (pointwise, S0, S1, S0, ["all-to-all x"]),
    "matmul_rows": (product, S0, [], S0, []),
    "matmul_columns": (product, [], S1, S1, []),
    "matmul_rows_and_columns": (product, S0, S1, S0, ["all-gather x"]),
    "matmul_k_asked": (product, S1, S0, S2, ["all-reduce x"]),
    "matmul_k_whole_in_result": (product, S1, S0, [], ["all-reduce x"]),
    "matmul_k_open": (product, S1, S0, None, ["all-reduce x"]),
    "matmul_k_scattered": (product, S1, S0, [(0, X), (2, X)], ["reduce-scatter x"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(world, name):
    make, x, y, z, sent = OPERATIONS[name]
    need(world, PAIR)
    fd, inputs = make(PAIR, x, y, z)
    want = inputs[0] + inputs[1] if make is pointwise else inputs[0] @ inputs[1]
    for r, (out,) in world.run(fd, inputs).items():
        assert_part(out, part_of(want, PAIR, [c for c in z or [] if c[0] < 2], r))
    slices = ["slice"] * fd.plan().count("local slice")
    assert communications(fd) + slices == sent


def test_divided_broadcast_axis_divides_nothing(world):
    """A mesh axis on an axis of size 1, of an operand or made by broadcast, changes nothing."""
    d = world.size
    t, row = ramp(2 * d, 6), ramp(1, 6)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([2 * d, 6]), fd.define_tensor([1, 6])
        both = fd.ops.add(a, b)
        front = fd.ops.broadcast(b, [False, True, False])
        fd.add_output(both)
        fd.add_output(front)
        for tv, cuts in ((a, S0), (both, S0), (b, []), (front, [])):
            lay(tv, world.mesh, cuts)
        b.axis(0).parallelize(X)
        front.axis(1).parallelize(X)
    for r, (out, wide) in world.run(fd, [t, row]).items():
        assert_part(out, part_of(t + row, world.mesh, S0, r))
        assert_part(wide, row.unsqueeze(1))
    assert communications(fd) == [] and "local slice" not in fd.plan()


def test_sum_keeps_the_division_of_another_axis(world):
    """Left open, the result is divided as the operand is."""
    d = world.size
    t = ramp(2 * d, 6)
    with FusionDefinition() as fd:
        a = fd.define_tensor([2 * d, 6])
        fd.add_output(fd.ops.sum(a, [1]))
        lay(a, world.mesh, S0)
    for r, (out,) in world.run(fd, [t]).items():
        assert_part(out, part_of(t.sum(1), world.mesh, S0, r))
    assert communications(fd) == []


@pytest.mark.parametrize("name", SETS)
def test_set_joined(name):
    """The parts of a simulated mesh make the whole again."""
    mesh, cuts, new_mesh, new_cuts, _ = SETS[name]
    t = torch.arange(128.0).reshape(4, 8, 4)
    with meshfuse.simulate(4) as sim:
        (out,) = sim.run(assignment(t, (mesh, cuts), (new_mesh, new_cuts)), [t])
    assert torch.equal(out, t)
