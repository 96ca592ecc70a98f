# SPDX-License-Identifier: BSD-3-Clause
"""Shardings in Shardy's text form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import X, Y, Z
from test_sharding_properties import assert_torchs, meshes, tensor
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import meshfuse
from meshfuse import (
    DeviceMesh,
    FusionDefinition,
    from_partition_spec,
    from_placements,
    from_shardy,
)
from meshfuse.limits import MAX_DEVICES
from meshfuse.shardy import read_mesh, write_mesh

FEW = settings(max_examples=100, derandomize=True, deadline=None, database=None)
GRID = DeviceMesh(torch.arange(8).reshape(2, 4))
NAMED = DeviceMesh(torch.arange(8).reshape(2, 4), names=("data", "model"))
LINE = 'sdy.mesh @mesh = <["data"=2, "model"=4]>'


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("#sdy.sharding<@mesh, []>", ""),
        ('#sdy.sharding<@mesh, [{"x"}, {}]>', "x, None"),
        ('#sdy.sharding<@mesh,[{},{"y","x"}]>', "None, (y, x)"),
        ('#sdy.sharding<@mesh, [{"y"}, {}], replicated={"x"}>', "y, None"),
        ('sdy.sharding = #sdy.sharding<@other, [{"x"}]>', "x"),
        (' #sdy.sharding< @mesh , [ { "x" } ] > \n', "x"),
    ],
)
def test_what_a_text_says(text, spec):
    assert from_shardy(text) == from_partition_spec(spec)
    assert from_shardy(text, GRID) == from_partition_spec(spec, GRID)


def test_mesh_in_the_text():
    """As a line before the sharding, inside it, or as an argument; the first axis is outermost."""
    want = from_placements([Shard(1), Shard(0)], NAMED)
    sharding = '#sdy.sharding<@mesh, [{"model"}, {"data"}]>'
    inside = '#sdy.sharding<mesh<["data"=2, "model"=4]>, [{"model"}, {"data"}]>'
    for found in (
        from_shardy(f"{LINE}\n{sharding}"),
        from_shardy(sharding, LINE),
        from_shardy(sharding, NAMED),
        from_shardy(inside),
    ):
        assert found == want
        assert found.mesh.names == ("data", "model")
        assert found.to_shardy() == sharding


def test_devices_of_a_mesh():
    mesh = read_mesh('sdy.mesh @m = <["a"=2, "b"=2], device_ids=[3, 1, 0, 2]>')
    assert (mesh.devices, mesh.shape, mesh.names) == ([3, 1, 0, 2], (2, 2), ("a", "b"))
    assert write_mesh(mesh) == 'sdy.mesh @mesh = <["a"=2, "b"=2], device_ids=[3, 1, 0, 2]>'
    assert write_mesh(GRID) == 'sdy.mesh @mesh = <["y"=2, "x"=4]>'


def test_names_in_another_order():
    """The names of the mesh count, not x, y and z."""
    mesh = read_mesh('sdy.mesh @mesh = <["x"=2, "y"=4]>')
    sharding = from_shardy('#sdy.sharding<@mesh, [{"x"}, {}]>', mesh)
    assert sharding.axis_sharded_on(Y) == 0 and sharding.axis_sharded_on(X) == -1
    assert sharding.to_shardy() == '#sdy.sharding<@mesh, [{"x"}, {}]>'


def test_sums_that_are_to_be_made():
    text = '#sdy.sharding<@mesh, [{"x"}, {}], unreduced={"y"}>'
    sharding = from_shardy(text, GRID)
    assert sharding.placements() == (Partial("sum"), Shard(0))
    assert sharding.to_shardy() == text
    both = from_placements([Partial(), Partial()], GRID)
    assert both.to_shardy(1) == '#sdy.sharding<@mesh, [{}], unreduced={"y", "x"}>'


def test_number_of_axes():
    """Shardy lists all axes; those counted from the end need the number, too."""
    last = from_placements([Replicate(), Shard(-1)], GRID)
    assert last.to_shardy(3) == '#sdy.sharding<@mesh, [{}, {}, {"x"}]>'
    with pytest.raises(meshfuse.Error, match="to_shardy: axis -1 is counted from the end"):
        last.to_shardy()
    with pytest.raises(
        meshfuse.Error,
        match=r"to_shardy: the sharding speaks of 2 axes, but the tensor has 1. Give one",
    ):
        from_partition_spec("None, x").to_shardy(1)
    with pytest.raises(meshfuse.Error, match=r"divides axis -3, but the tensor has 2 axes. Use"):
        from_placements([Replicate(), Shard(-3)], GRID).to_shardy(2)
    with pytest.raises(meshfuse.Error, match=r"divides axis -1, but the tensor has no axes. Repl"):
        last.to_shardy(0)


def test_two_divisions_of_one_axis():
    """Counted from both ends they are the same axis of a tensor with one axis: neither is lost."""
    both = from_placements([Shard(-1), Shard(0)], GRID)
    assert both.to_shardy(2) == '#sdy.sharding<@mesh, [{"x"}, {"y"}]>'
    with pytest.raises(
        meshfuse.Error,
        match=r"to_shardy: axes -1 and 0 of the tensor, which has 1 axes, are the same. Count both",
    ):
        both.to_shardy(1)


@pytest.mark.parametrize("ndim", [-5, 65, 1000000000])
def test_impossible_numbers_of_axes(ndim):
    sharding = from_partition_spec("x")
    with pytest.raises(meshfuse.Error, match=f"ndim is {ndim}, but a tensor has from 0 to 64 axes"):
        sharding.to_shardy(ndim)


def test_number_of_axes_of_another_type():
    with pytest.raises(
        TypeError, match=r"to_shardy: ndim is the number of axes .* but got 'x', of"
    ):
        from_partition_spec("x").to_shardy("x")


def test_on_a_tensor():
    with FusionDefinition() as fd:
        t = fd.define_tensor([8, 6])
        fd.add_output(fd.ops.neg(t))
        t.set_sharding(from_shardy(f'{LINE}\n#sdy.sharding<@mesh, [{{"model", "data"}}, {{}}]>'))
    a = torch.randn(8, 6)
    with meshfuse.simulate(8) as sim:
        assert torch.equal(sim.run(fd, [a])[0], -a)
        assert torch.equal(sim.shard_tensor(a, t)[1], a[2:3])  # data 0, model 1


SUB = "Make the mesh with the two parts as axes of their own."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '#sdy.sharding<@mesh, [{"x":(1)2}, {}]>',
            '"x":(1)2 is a part of a mesh axis, and a tensor axis is divided over whole ones. '
            + SUB,
        ),
        ('#sdy.sharding<@mesh, [{}], replicated={"x":(2)2}>', '"x":(2)2 is a part of a mesh axis'),
        (
            '#sdy.sharding<@mesh, [{"x", ?}]>',
            "an open axis ('?') lets propagation divide it further, but shardings that a user gave "
            "are never changed here. Leave out the '?', or give the tensor no sharding: "
            "propagation then chooses all of it.",
        ),
        ("#sdy.sharding<@mesh, [{?}]>", "an open axis ('?')"),
        (
            '#sdy.sharding<@mesh, [{"x"}p1]>',
            "priority p1 orders the propagation of annotations, but here all are propagated "
            "together. Leave it out.",
        ),
        (
            '#sdy.sharding<@mesh, [{"w"}]>',
            "from_shardy: 'w' is not a mesh axis. Without a mesh they are called 'x', 'y', 'z'.",
        ),
        (
            f'{LINE} #sdy.sharding<@mesh, [{{"w"}}]>',
            "'w' is not a mesh axis. DeviceMesh{{0 1 2 3}{4 5 6 7}} has 'data', 'model', 'y', 'x'.",
        ),
        ('#sdy.sharding<@mesh, [{"x"}, {"x"}]>', "mesh_x ('x') occurs more than once in '#sdy"),
        ('#sdy.sharding<@mesh, [{"x"}], replicated={"x"}>', "name it once."),
        ('#sdy.sharding<@mesh, [{"x"}], unreduced={"x"}>', "name it once."),
        (
            f'{LINE} #sdy.sharding<@other, [{{"x"}}]>',
            "the sharding is on @other, but the text describes @mesh. Give the mesh of the "
            "sharding.",
        ),
        (
            "",
            "cannot read '': it ends where #sdy.sharding is expected. Write #sdy.sharding<@mesh, "
            '[{"x"}, {}]>: for each tensor axis its mesh axes in braces, and before it, if you '
            'like, the line sdy.mesh @mesh = <["x"=2, "y"=4]>.',
        ),
        ("x, None", "column 1 has 'x' where #sdy.sharding is expected"),
        ("#sdy.sharding<@mesh, [{x}]>", """column 24 has 'x' where a mesh axis such as "x" is"""),
        ('#sdy.sharding<@mesh, [{"x"}]', "it ends where '>' is expected"),
        ('#sdy.sharding<@mesh, [{"x" "y"}]>', "column 28 has '\"y\"' where ',' is expected"),
        ('#sdy.sharding<@mesh, [{"x"}]> more', "column 31 has 'more' where the end is expected"),
        ('#sdy.sharding<@mesh, [{"x"}], manual={}>', "where replicated={...} or unreduced={...}"),
        ("#sdy.sharding<%mesh, []>", "found '%' in column 15"),
        ("#sdy.sharding<[]>", "column 15 has '[' where the mesh, @mesh, is expected"),
        ('#sdy.sharding<@mesh, [{"x]>', "found '\"' in column 24"),
        (
            '#sdy.sharding<mesh<["a"=1, "b"=1, "c"=1, "d"=1]>, []>',
            "the mesh has 4 axes, but at most 3 can be had: mesh_z, mesh_y and mesh_x. Join axes",
        ),
        (
            "#sdy.sharding<mesh<[], device_ids=[3]>, []>",
            'the mesh has no axes. Give at least one axis; a single device 3 is <["x"=1], '
            "device_ids=[3]>.",
        ),
        (
            '#sdy.sharding<mesh<["a"=2, "b"=2], device_ids=[0, 1]>, []>',
            "the mesh has 4 places (2 x 2), but 2 device ids. Give one device per place, and sizes "
            "of at least 1.",
        ),
        ('#sdy.sharding<mesh<["a"=0]>, []>', "the mesh has 0 places (0), but 0 device ids"),
        ('#sdy.sharding<mesh<["a"=2, "a"=2]>, []>', "name"),
        (
            '#sdy.sharding<mesh<["a"=2000000000]>, []>',
            'the size of "a", 2000000000 is too large. Give its size, at most 1048576.',
        ),
        (
            '#sdy.sharding<mesh<["a"=2048, "b"=2048]>, []>',
            "the mesh has 4194304 devices (2048 x 2048), but at most 1048576 can be had",
        ),
        (
            f'#sdy.sharding<mesh<["a"={"9" * 5000}]>, []>',
            'the size of "a", of 5000 digits is too large.',
        ),
        (
            '#sdy.sharding<mesh<["a"=1], device_ids=[9223372036854775807]>, []>',
            "device 9223372036854775807 is too large. Devices are numbered from 0, at most 1048575",
        ),
        ('#sdy.sharding<mesh<["a"=\u0662]>, []>', "found '\u0662' in column 25"),
        (
            f"#sdy.sharding<@mesh, [{'{},' * 64}{{}}]>",
            "from_shardy: 65 axes are more than a tensor has, at most 64. Give one entry per axis",
        ),
        ("]" * 5000, f"cannot read '{']' * 120}... (5000 characters)': column 1 has"),
    ],
)
def test_wrong_texts(text, message):
    with pytest.raises(meshfuse.Error) as caught:
        from_shardy(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", [5, b"x", None])
def test_what_is_not_text(text):
    with pytest.raises(TypeError, match=f"from_shardy: expected a text .*{type(text).__name__}"):
        from_shardy(text)


def test_what_is_no_mesh():
    with pytest.raises(TypeError, match=r"from_shardy: expected a DeviceMesh of .* got int"):
        from_shardy("#sdy.sharding<@mesh, []>", 5)


def test_limit_of_devices_is_that_of_programs():
    with pytest.raises(meshfuse.Error, match=f"a mesh has from 1 to {MAX_DEVICES} devices"):
        meshfuse.parse_ir(f"a: f32[i0{{4}}] mesh(x={MAX_DEVICES + 1})\nreturn a\n")
    with pytest.raises(meshfuse.Error, match=f"simulate: .* Simulate at most {MAX_DEVICES}."):
        meshfuse.simulate((1 << 63) - 1)


def test_two_meshes():
    text = '#sdy.sharding<mesh<["y"=4, "x"=2]>, [{"x"}]>'
    with pytest.raises(
        meshfuse.Error,
        match=r'describes sdy.mesh @mesh = <\["y"=4, "x"=2\]>, but mesh= is sdy.mesh @mesh = '
        r'<\["y"=2, "x"=4\]>. Give one of them.',
    ):
        from_shardy(text, GRID)


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        (
            [Replicate(), Partial("max")],
            "to_shardy: the tensor is partial (max) on mesh_x, but Shardy has sums alone. Reduce "
            "it first, or use placements().",
        ),
        (
            [Replicate(), _StridedShard(0, split_factor=2)],
            "to_shardy: devices hold several pieces of axis 0, which Shardy cannot express. Divide "
            "it in blocks, or use placements().",
        ),
    ],
)
def test_what_shardy_cannot_say(placements, message):
    with pytest.raises(meshfuse.Error) as caught:
        from_placements(placements, GRID).to_shardy()
    assert str(caught.value) == message


# ---- properties


@st.composite
def divided(draw):
    """A mesh, maybe with names, and for each tensor axis the mesh axes that divide it."""
    mesh = draw(meshes())
    names = draw(st.sampled_from([(), ("a", "b c", 'd"\\'), ("x", "y", "z")]))[: mesh.rank]
    mesh = DeviceMesh(torch.tensor(mesh.devices).reshape(mesh.shape), names=names)
    entries = [[] for _ in range(draw(st.integers(0, 3)))]
    for axis in draw(st.permutations([X, Y, Z][: mesh.rank])):
        at = draw(st.integers(-1, len(entries) - 1))
        if at >= 0:
            entries[at].append(axis.name)
    return mesh, entries


@FEW
@given(divided())
def test_round_trip(case):
    """Through Shardy and back, mesh included, and the same as through placements and specs."""
    mesh, entries = case
    sharding = from_partition_spec(entries, mesh)
    text = sharding.to_shardy()
    whole = f"{write_mesh(mesh)}\n{text}"
    assert from_shardy(text, mesh) == from_shardy(whole) == sharding
    assert from_shardy(whole).to_shardy() == text
    assert read_mesh(write_mesh(mesh)) == mesh
    if 1 not in mesh.shape:  # placements do not keep the order of a mesh axis of one device
        again = from_placements(from_shardy(whole).placements(), mesh)
        assert again.to_shardy(len(entries)) == text
    without = from_partition_spec(entries)
    assert from_shardy(without.to_shardy()) == without


@FEW
@given(divided(), st.data())
def test_parts_are_torchs(case, data):
    mesh, entries = case
    sizes = [data.draw(st.integers(0, 2)) for _ in entries]
    count = dict(zip([a.name for a in (Z, Y, X)[-mesh.rank :]], mesh.shape, strict=True))
    for k, axes in enumerate(entries):
        for axis in axes:
            sizes[k] *= count[axis]
    text = f"{write_mesh(mesh)}\n{from_partition_spec(entries, mesh).to_shardy()}"
    tv = tensor([-1] * len(sizes))
    tv.set_sharding(from_shardy(text))
    assert_torchs(tv, mesh, list(from_shardy(text).placements()), sizes)


@FEW
@given(st.text(alphabet='#sdy.haring<@me, [{"x"}]>=?p1:()', max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        from_shardy(text)
    except meshfuse.Error as error:
        assert str(error).startswith("from_shardy: ")
