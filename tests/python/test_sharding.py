# SPDX-License-Identifier: BSD-3-Clause
"""Shardings from placements and partition specs, on tensors, and back."""

from __future__ import annotations

import pytest
import torch
from programs import X, Y, Z, ramp, shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, from_partition_spec, from_placements
from meshfuse.tensor_sharding import sharding_of

LINE = DeviceMesh(range(2))
GRID = DeviceMesh(torch.arange(4).reshape(2, 2))
NAMED = DeviceMesh(torch.arange(4).reshape(2, 2), names=("dp", "tp"))


def strided(dim, pieces):
    return _StridedShard(dim, split_factor=pieces)


def tensor(shape, uneven=False, **arguments):
    """A tensor of a definition that is closed; it keeps its definition alive."""
    with FusionDefinition(uneven=uneven) as fd:
        tv = fd.define_tensor(shape, **arguments)
        fd.add_output(fd.ops.neg(tv))
    return tv


def parts(tv, devices, size):
    """What every device holds of a vector 0, 1, ..."""
    with meshfuse.simulate(devices) as sim:
        return [part.tolist() for part in sim.shard_tensor(torch.arange(size), tv)]


@pytest.mark.parametrize(
    ("placements", "want"),
    [
        ([Replicate(), Replicate()], [[0, 1, 2, 3, 4, 5, 6, 7]] * 4),
        ([Shard(0), Replicate()], [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2),
        ([Shard(-1), Shard(-1)], [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([strided(0, 2), Shard(0)], [[0, 1], [4, 5], [2, 3], [6, 7]]),
        ([Replicate(), strided(0, 2)], [[0, 1, 4, 5], [2, 3, 6, 7]] * 2),
        ([Replicate(), strided(0, 4)], [[0, 2, 4, 6], [1, 3, 5, 7]] * 2),
        ([Shard(0), strided(0, 2)], [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ([strided(0, 4), Shard(0)], [[0, 2], [4, 6], [1, 3], [5, 7]]),
    ],
    ids=str,
)
def test_what_devices_hold(placements, want):
    tv = tensor([8])
    tv.set_sharding(from_placements(placements, GRID))
    assert parts(tv, 4, 8) == want


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ("", [[0, 1, 2, 3, 4, 5, 6, 7]] * 4),
        ("x", [[0, 1, 2, 3], [4, 5, 6, 7]] * 2),
        ("(y, x),", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ('P(("x", "y"))', [[0, 1], [4, 5], [2, 3], [6, 7]]),
    ],
)
def test_what_a_spec_says(spec, want):
    tv = tensor([8])
    tv.set_sharding(from_partition_spec(spec, mesh=GRID))
    assert parts(tv, 4, 8) == want


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("x, None", "x, None"),
        (" None ,y", "None, y"),
        ("x,", "x"),
        ("x", "x"),
        ("", ""),
        ("None, None", "None, None"),
        ('("x","y"), None', "(x, y), None"),
        ("('x', None)", "x, None"),
        ("P('x', None)", "x, None"),
        ("P(('y', 'x'))", "(y, x),"),
        ("PartitionSpec(('x',), 'z')", "x, z"),
        ("jax.sharding.PartitionSpec(None, mesh_x)", "None, x"),
        ("P()", ""),
        ((None, ("x", "y")), "None, (x, y)"),
        (["x", (), None], "x, None, None"),
    ],
    ids=str,
)
def test_spellings_of_specs(given, text):
    sharding = from_partition_spec(given)
    assert sharding.to_partition_spec() == text
    assert from_partition_spec(text) == sharding


def test_names_of_the_mesh():
    sharding = from_partition_spec("P('tp', 'dp')", mesh=NAMED)
    assert sharding == from_partition_spec("x, y", mesh=GRID)
    assert sharding.to_partition_spec() == "tp, dp"
    assert sharding.placements() == (Shard(1), Shard(0))
    assert sharding.axis_sharded_on(X) == 0 and sharding.axis_sharded_on(Z) == -1


def test_names_that_are_not_words():
    mesh = DeviceMesh(range(2), names=("data parallel",))
    sharding = from_partition_spec("None, 'data parallel'", mesh=mesh)
    assert sharding.to_partition_spec() == "None, 'data parallel'"
    assert from_partition_spec(sharding.to_partition_spec(), mesh) == sharding


def test_own_names_go_first():
    """As in parallelize(name): this mesh calls its first axis x."""
    mesh = DeviceMesh(torch.arange(6).reshape(2, 3), names=("x", "y"))
    sharding = from_partition_spec("x, y", mesh=mesh)
    assert sharding.axis_sharded_on(Y) == 0 and sharding.axis_sharded_on(X) == 1
    assert sharding.to_partition_spec() == "x, y"
    with pytest.raises(meshfuse.Error, match="calls mesh_y 'x', which stands for mesh_x"):
        tv = tensor([12, 12])
        tv.set_device_mesh(mesh)
        tv.set_sharding(from_partition_spec("x"))


def test_the_mesh_of_a_spec_without_one():
    """The tensor's own mesh goes first, then the only one of the definition."""
    spec = from_partition_spec("None, x")
    assert spec.mesh is None
    with FusionDefinition() as fd:
        a, b, c = (fd.define_tensor([4, 4]) for _ in range(3))
        fd.add_output(fd.ops.matmul(fd.ops.matmul(a, b), c))
        with pytest.raises(meshfuse.Error, match="has not one mesh but none"):
            a.set_sharding(spec)
        a.set_device_mesh(LINE)
        a.set_sharding(spec)
        b.set_sharding(spec)
        assert b.get_device_mesh() == LINE
        c.set_device_mesh(GRID)
        c.set_sharding(spec)
        with pytest.raises(
            meshfuse.Error, match=r"DeviceMesh\{0 1\}, DeviceMesh\{\{0 1\}\{2 3\}\}"
        ):
            fd.define_tensor([4, 4]).set_sharding(spec)


def test_results_and_intermediates():
    """Axes of a sharding are counted without reductions."""
    x = ramp(4, 6, 8)
    with FusionDefinition() as fd:
        total = fd.ops.sum(fd.define_tensor([4, 6, 8]), [0])
        out = fd.ops.neg(total)
        fd.add_output(out)
        total.set_sharding(from_placements([Shard(1), Shard(0)], GRID))
        out.set_sharding(from_placements([Shard(0), strided(1, 2)], GRID))
    with meshfuse.simulate(4) as sim:
        (y,) = sim.run(fd, [x])
        assert torch.equal(y, -x.sum(0))
        want = y[3:][:, [2, 3, 6, 7]]
        assert torch.equal(sim.local(device=3), want)
    (sharding,) = fd._executor().get_output_shardings()
    assert sharding == from_placements([Shard(0), strided(1, 2)], GRID)


def test_memory_order_is_kept():
    tv = tensor([4, 6], stride_order=[0, 1], contiguity=True)
    tv.set_sharding(from_partition_spec("x", mesh=LINE))
    fd = meshfuse.parse_ir(tv.fusion().ir())
    with meshfuse.simulate(2) as sim:
        given = torch.arange(24.0).reshape(6, 4).t()
        assert torch.equal(sim.run(fd, [given])[0], -given)


def test_the_same_sharding_twice():
    tv = tensor([8])
    sharding = from_placements([strided(0, 2), Shard(0)], GRID)
    tv.set_sharding(sharding)
    before = tv.fusion().ir()
    tv.set_sharding(sharding)
    assert tv.fusion().ir() == before


def divided(shape, mesh, schedule):
    tv = tensor(shape)
    tv.set_device_mesh(mesh)
    schedule(tv)
    return sharding_of(tv)


def merge_and_cut(d, mesh_axis=X):
    def schedule(tv):
        tv.merge(0, 1)
        shard(tv, 0, d, mesh_axis)

    return schedule


def blocks_of_blocks(tv):
    tv.outer_split(0, 4)
    shard(tv, 1, 2)


@pytest.mark.parametrize(
    ("shape", "schedule", "want"),
    [
        ([8, 6], lambda tv: None, (Replicate(), Replicate())),
        ([8, 6], lambda tv: shard(tv, 1, 2), (Replicate(), Shard(1))),
        ([8, 6], lambda tv: shard(tv, 0, 2, Y, inner=True), (strided(0, 4), Replicate())),
        ([-1, 6], lambda tv: shard(tv, 0, 2, X, inner=True), (Replicate(), strided(0, 4))),
        ([8, 6], blocks_of_blocks, (Replicate(), strided(0, 4))),
        ([2, 6], lambda tv: tv.axis(0).parallelize(X), (Replicate(), Shard(0))),
        ([8, 6], merge_and_cut(2, Y), (Shard(0), Replicate())),
        ([1, 6], merge_and_cut(2), (Replicate(), Shard(1))),
    ],
)
def test_placements_of_splits_by_hand(shape, schedule, want):
    sharding = divided(shape, GRID, schedule)
    assert sharding.placements((8, 6)) == want


def test_single_elements_in_turn():
    sharding = divided([-1], LINE, lambda tv: shard(tv, 0, 2, X, inner=True))
    with pytest.raises(meshfuse.Error, match=r"axis 0 .*mesh_x takes single elements .*shape="):
        sharding.placements()


def test_merged_axes():
    """Four devices share two rows of six: half a row each."""
    sharding = divided([2, 6], DeviceMesh(range(4)), merge_and_cut(4))
    assert sharding.axis_sharded_on(X) == 0 and sharding.axis_sharded_on(Y) == -1
    for convert in (sharding.placements, sharding.to_partition_spec):
        with pytest.raises(meshfuse.Error, match="mesh_x divides axes 0 and 1 merged"):
            convert()


@pytest.mark.parametrize(("extent", "d"), [(5, 2), (5, 4), (3, 4), (0, 2)])
def test_uneven_extents_are_torchs_chunks(extent, d):
    tv = tensor([extent], uneven=True)
    tv.set_sharding(from_placements([Shard(0)], DeviceMesh(range(d))))
    chunks = [c.tolist() for c in torch.arange(extent).chunk(d)]
    assert parts(tv, d, extent) == chunks + [[]] * (d - len(chunks))


@pytest.mark.parametrize("op", ["sum", "avg", "product", "max", "min", "band", "bor", "bxor"])
def test_partial(op):
    sharding = from_placements([Partial(op), Shard(1)], GRID)
    assert sharding.placements() == (Partial(op), Shard(1))
    with pytest.raises(meshfuse.Error, match=rf"T0 cannot be partial \({op}\) on mesh_y"):
        tensor([4, 4]).set_sharding(sharding)
    with pytest.raises(meshfuse.Error, match=rf"partial \({op}\) on mesh_y.*use placements"):
        sharding.to_partition_spec()


@pytest.mark.parametrize(
    ("placements", "mesh", "message"),
    [
        ([Shard(0)], GRID, r"1 placements were given for .*2 dims"),
        ([Partial("premul_sum"), Shard(0)], GRID, r"placement 0, Partial\(premul_sum\) on mesh_y"),
        ([_MaskPartial(offset_shape=(2,), offset_dim=0)], LINE, "placement 0, .*cannot express"),
        (["S(0)"], LINE, "placement 0, 'S\\(0\\)' on mesh_x is not a placement"),
        ([strided(0, 3), strided(0, 2)], GRID, r"placement 1, .*axis 0: 3 pieces do not divide"),
        (
            [strided(0, 2), Shard(0)],
            DeviceMesh(torch.arange(8).reshape(2, 4)),
            "placement 1, .*4 devices of mesh_x would hold pieces .*Redistribute",
        ),
        ([strided(0, 0)], LINE, "divides each of 0 pieces of axis 0, but split_factor is at least"),
        ([strided(0, -1)], LINE, "divides each of -1 pieces of axis 0, but split_factor is at"),
        ([strided(0, 1 << 62)], LINE, "the product with the 2 devices at most 9223372036854775807"),
        ([Shard(1000000000)], LINE, "names axis 1000000000 of a tensor of at most 64 axes. Use"),
        ([Shard], LINE, "placement 0, <class .*> on mesh_x names no axis. Give a number, as in"),
        ([[Shard(0)]], LINE, "placement 0, .* on mesh_x is not a placement that meshfuse knows"),
    ],
)
def test_placements_that_cannot_be_expressed(placements, mesh, message):
    with pytest.raises(meshfuse.Error, match=message):
        from_placements(placements, mesh)


def test_not_a_mesh():
    with pytest.raises(TypeError, match=r"expected a DeviceMesh .*but got list"):
        from_placements([Shard(0)], [0, 1])
    with pytest.raises(
        TypeError, match=r"from_partition_spec: expected a DeviceMesh .*but got int"
    ):
        from_partition_spec("x", 5)


@pytest.mark.parametrize("given", [None, 5])
def test_no_list_of_placements(given):
    with pytest.raises(TypeError, match=f"from_placements: expected a list .*but got {given}"):
        from_placements(given, LINE)


@pytest.mark.parametrize("given", [None, 5, b"x", {"x": 1}])
def test_not_a_spec(given):
    message = f"from_partition_spec: expected a text .*but got {type(given).__name__}"
    with pytest.raises(TypeError, match=message):
        from_partition_spec(given)


@pytest.mark.parametrize(
    ("spec", "mesh", "message"),
    [
        ("x, x", None, "mesh_x occurs more than once"),
        ("(x, y)", None, "may mean one axis over both, or two axes"),
        ("a, None", None, "'a' is not a mesh axis. Without a mesh .*'x', 'y', 'z'"),
        ("z", GRID, r"'z' is not an axis of DeviceMesh\{\{0 1\}\{2 3\}\}. It has 'y', 'x'"),
        ("x +", None, r"cannot read 'x \+'"),
        ("Q(x)", None, "calls Q"),
        ("P(x, unreduced={'y'})", None, "says unreduced"),
        ("P.UNCONSTRAINED, x", None, "cannot read 'P.UNCONSTRAINED'"),
        ("1, x", None, "cannot read '1'"),
        ([1, "x"], None, "cannot read the entry 1"),
        ("P(x)(y)", None, r"'P\(x\)\(y\)' calls P\(x\). Use P"),
        ("P(x, **k)", None, r"says \*\*k, which a tensor cannot be given"),
        ("-" * 5000 + "x", None, r"cannot read '-{120}... \(5001 characters\)'"),
        ("-" * 500 + "x", None, r"cannot read '-{120}... \(501 characters\)'"),
        ("x" * 5000, None, r"'x{120}... \(5000 characters\)' is not a mesh axis"),
        ([None] * 65, None, "65 axes are more than a tensor has, at most 64"),
    ],
)
def test_wrong_specs(spec, mesh, message):
    with pytest.raises(meshfuse.Error, match=message):
        from_partition_spec(spec, mesh)


@pytest.mark.parametrize(
    ("shape", "placements", "mesh", "message"),
    [
        (
            [5, 4],
            [Shard(0)],
            LINE,
            r"axis 0 of T0 has size 5, which is not divisible by 2, for mesh_x",
        ),
        ([6], [Shard(0), Shard(0)], GRID, r"size 6, .*by 4, for mesh_y \(2\) and mesh_x \(2\)"),
        ([4], [Shard(1)], LINE, "divides axis 1, but T0 has 1 axes. Use one from -1 to 0"),
        ([1, 4], [Shard(0)], LINE, "axis 0 of T0 has size 1 in every place, so mesh_x cannot"),
        ([4], [Shard(0), Shard(-1)], GRID, "axes -1 and 0 of T0, which has 1 axes, are the same"),
    ],
)
def test_shardings_that_do_not_fit(shape, placements, mesh, message):
    tv = tensor(shape)
    before = tv.fusion().ir()
    with pytest.raises(meshfuse.Error, match=message):
        tv.set_sharding(from_placements(placements, mesh))
    assert tv.fusion().ir() == before


def test_uneven_chunks_of_chunks():
    tv = tensor([6], uneven=True)
    with pytest.raises(meshfuse.Error, match="only the blocks of one mesh axis may be uneven"):
        tv.set_sharding(from_placements([Shard(0), Shard(0)], GRID))


def test_specs_that_do_not_fit():
    with pytest.raises(meshfuse.Error, match="speaks of 2 axes, but T0 has 1"):
        tensor([4]).set_sharding(from_partition_spec("x, None", mesh=LINE))
    tv = tensor([4])
    tv.set_device_mesh(LINE)
    with pytest.raises(meshfuse.Error, match=r"over mesh_y, which .*mesh_x=2.* does not have"):
        tv.set_sharding(from_partition_spec("y"))
    with pytest.raises(meshfuse.Error, match=r"T0 is on DeviceMesh\{0 1\}, but the sharding is on"):
        tv.set_sharding(from_placements([Shard(0), Replicate()], GRID))
    with pytest.raises(TypeError, match="expected a Sharding for T0, but got str"):
        tv.set_sharding("x")


def test_another_sharding_after_the_first():
    tv = tensor([4, 4])
    tv.set_sharding(from_partition_spec("x", mesh=LINE))
    with pytest.raises(meshfuse.Error, match="T0 is split or divided already"):
        tv.set_sharding(from_partition_spec("None, x", mesh=LINE))


def test_a_tensor_that_is_scheduled():
    for schedule in (
        lambda tv: tv.outer_split(0, 2),
        lambda tv: tv.reorder([1, 0]),
        lambda tv: tv.axis(0).parallelize(meshfuse.ParallelType.stream),
    ):
        tv = tensor([4, 4])
        schedule(tv)
        before = tv.fusion().ir()
        with pytest.raises(meshfuse.Error, match="T0 is split or divided already"):
            tv.set_sharding(from_partition_spec("x", mesh=LINE))
        assert tv.fusion().ir() == before


def test_expanded_axes():
    tv = tensor([6, 4], contiguity=[None, True])
    tv.set_sharding(from_placements([Shard(0)], LINE))
    with meshfuse.simulate(2) as sim:
        parts = sim.shard_tensor(torch.arange(4).expand(6, 4), tv)
    assert [part.shape for part in parts] == [(3, 4), (3, 4)]
    assert sharding_of(tv) == from_placements([Shard(0)], LINE)


def test_numbers_without_axes():
    tv = tensor([])
    tv.set_sharding(from_placements([Replicate()], LINE))
    assert tv.get_device_mesh() == LINE


def test_what_forms_cannot_say():
    with pytest.raises(meshfuse.Error, match=r"has no mesh.*from_partition_spec\(spec, mesh"):
        from_partition_spec("x").placements()
    with pytest.raises(meshfuse.Error, match="several pieces of axis 0"):
        from_placements([strided(0, 2)], LINE).to_partition_spec()
    with pytest.raises(meshfuse.Error, match="axis -1 is counted from the end"):
        from_placements([Shard(-1)], LINE).to_partition_spec()
    with pytest.raises(meshfuse.Error, match="serial is not a mesh axis"):
        from_placements([Shard(0)], LINE).axis_sharded_on(meshfuse.ParallelType.serial)


def test_text_of_a_sharding():
    sharding = from_placements([strided(0, 2), Partial()], GRID)
    assert repr(sharding) == (
        "Sharding(DeviceMesh{{0 1}{2 3}}, axis 0: [2, mesh_y, rest], mesh_x: partial sum)"
    )
    assert len({sharding, from_placements([strided(0, 2), Partial()], GRID)}) == 1
