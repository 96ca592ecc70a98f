# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse convert``: every form to every other."""

from __future__ import annotations

import itertools
import re

import pytest
from cli_programs import failed, ok, ok_json

LINE = 'sdy.mesh @mesh = <["dp"=2, "tp"=4]>\n'
TENSOR = (
    "T0: f32[i0{T0.0}, i1{T0.1}] { i2{4}@x, i3{(ceilDiv(T0.1, 4))} = split i1 outer 4; "
    'i4{2}@y, i5{(ceilDiv(T0.0, 2))} = split i0 outer 2 } mesh(y=2 "dp", x=4 "tp")'
)
FORMS = {
    "dtensor": "[Shard(0), Shard(1)]",
    "partition-spec": "dp, tp",
    "shardy": LINE + '#sdy.sharding<@mesh, [{"dp"}, {"tp"}]>',
    "meshfuse": TENSOR,
}


@pytest.mark.parametrize(("source", "target"), [*itertools.product(FORMS, FORMS)])
def test_every_form_to_every_other(source, target):
    call = ["convert", "--from", source, "--to", target, FORMS[source], "--mesh", "dp=2,tp=4"]
    assert ok(*call) == FORMS[target] + "\n"
    assert ok_json(*call) == {
        "form": target,
        "text": FORMS[target],
        "mesh": "dp=2,tp=4",
        "devices": list(range(8)),
    }


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("Shard(1), Replicate()", "None, y"),
        ("(S(0),R())", "y"),
        ("[_StridedShard(dim=0, split_factor=4), torch.Shard(0)]", "(x, y),"),
    ],
)
def test_spellings_of_placements(text, spec):
    call = ["convert", "--from", "dtensor", "--to", "partition-spec", "--mesh", "2x4", text]
    assert ok(*call) == spec + "\n"


def test_placements_of_each_kind():
    text = '[_StridedShard(1, split_factor=2), Partial(), Partial("max")]'
    call = ["convert", "--from", "dtensor", "--to", "dtensor", "--mesh", "2x2x2", text]
    assert ok(*call) == text + "\n"


def test_without_a_mesh():
    shardy = '#sdy.sharding<@mesh, [{"x"}, {}]>'
    assert ok("convert", "--from", "partition-spec", "--to", "shardy", "x, None") == shardy + "\n"
    found = ok_json("convert", "--from", "shardy", "--to", "partition-spec", shardy)
    assert (found["text"], found["mesh"], found["devices"]) == ("x, None", None, None)


def test_number_of_axes():
    call = ["convert", "--from", "dtensor", "--mesh", "2", "[Shard(-1)]", "--ndim", "3"]
    assert ok(*call, "--to", "shardy").endswith('[{}, {}, {"x"}]>\n')
    assert "split i2 outer 2" in ok(*call, "--to", "meshfuse")


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize(
    ("source", "text"), [("dtensor", "[Shard(-2)]"), ("partition-spec", "None, x")], ids=str
)
def test_number_of_axes_in_every_form(source, text, target):
    """It is taken into account whatever the forms are, and axes are counted from the front."""
    call = ["convert", "--from", source, "--to", target, "--mesh", "2", "--ndim", "3", text]
    forms = {
        "dtensor": "[Shard(1)]",
        "partition-spec": "None, x, None",
        "shardy": 'sdy.mesh @mesh = <["x"=2]>\n#sdy.sharding<@mesh, [{}, {"x"}, {}]>',
        "meshfuse": "T0: f32[i0{T0.0}, i1{T0.1}, i2{T0.2}] { i3{2}@x, i4{(ceilDiv(T0.1, 2))} = "
        "split i1 outer 2 } mesh(x=2)",
    }
    assert ok(*call) == forms[target] + "\n"


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize(
    ("source", "text", "ndim", "message"),
    [
        ("dtensor", "[Shard(2), Replicate()]", 2, "divides axis 2, but the tensor has 2 axes"),
        ("partition-spec", "x, None, y", 2, "speaks of 3 axes, but the tensor has 2"),
        ("shardy", FORMS["shardy"], 3, "a tensor with 2 axes, but --ndim is 3. Leave --ndim out."),
        ("meshfuse", TENSOR, 1, "a tensor with 2 axes, but --ndim is 1. Leave --ndim out."),
    ],
)
def test_numbers_of_axes_that_do_not_fit(source, text, ndim, message, target):
    mesh = ["--mesh", "2x4"] if source in ("dtensor", "partition-spec") else []
    call = ["convert", "--from", source, "--to", target, *mesh, "--ndim", ndim, text]
    code, told = failed(*call)
    assert code == 1 and message in told


@pytest.mark.parametrize(
    ("source", "text", "target", "code", "message"),
    [
        ("dtensor", "[Shard(0)]", "shardy", 2, "the placements '[Shard(0)]' name no mesh. Give it"),
        ("partition-spec", "x, x", "shardy", 2, "mesh_x occurs more than once"),
        ("partition-spec", "x", "dtensor", 1, "placements: the sharding has no mesh"),
        (
            "partition-spec",
            "x",
            "meshfuse",
            1,
            "the splits of a tensor are on a mesh, which is not",
        ),
        ("shardy", '#sdy.sharding<@mesh, [{"x":(1)2}]>', "dtensor", 2, "is a part of a mesh axis"),
        ("meshfuse", "hello", "dtensor", 2, "convert: cannot read 'hello': parseIr: line 1"),
        ("meshfuse", "s0: f32", "dtensor", 2, "convert: 's0: f32' is not one tensor."),
        ("meshfuse", "a: f32[]\nb: f32[]", "dtensor", 2, "is more than one tensor. Write a tensor"),
    ],
)
def test_what_cannot_be_converted(source, text, target, code, message):
    found, told = failed("convert", "--from", source, "--to", target, text)
    assert found == code and message in told


@pytest.mark.parametrize(
    "text", ["Shard(", "print(1)", "Shard(x)", "Shard", "Shard()", "[]", "__import__('os')"]
)
def test_wrong_placements(text):
    call = ["convert", "--from", "dtensor", "--to", "shardy", "--mesh", "2", text]
    code, told = failed(*call)
    assert code == 2
    assert "Write one placement per mesh dim" in told or "Give one placement per mesh dim" in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[Shard(10000000000)]", "names axis 10000000000 of a tensor of at most 64 axes"),
        ("-" * 5000 + "x", f"cannot read '{'-' * 120}... (5001 characters)'"),
        ("-" * 500 + "x", f"cannot read '{'-' * 120}... (501 characters)'"),
    ],
)
@pytest.mark.parametrize("target", ["shardy", "partition-spec", "meshfuse"])
def test_huge_placements(text, message, target):
    code, told = failed("convert", "--from", "dtensor", "--to", target, "--mesh", "2", "--", text)
    assert code == 2 and message in told


@pytest.mark.parametrize("ndim", ["65", "1000000000"])
def test_too_many_axes(ndim):
    call = ["convert", "--from", "partition-spec", "--to", "shardy", "x", "--ndim", ndim]
    code, told = failed(*call)
    assert code == 2 and f"{ndim} is not in the range 0<=x<=64" in told


def test_two_divisions_of_one_axis():
    call = ["convert", "--from", "dtensor", "--to", "shardy", "--mesh", "2x2", "--ndim", "1"]
    code, told = failed(*call, "[Shard(-1), Shard(0)]")
    assert code == 1 and "axes -1 and 0 of the tensor, which has 1 axes, are the same" in told


@pytest.mark.parametrize("mesh", ["99999999999", "2048x2048", "a=1048577", "9" * 5000])
def test_meshes_that_are_too_large(mesh):
    code, told = failed(
        "convert", "--from", "partition-spec", "--to", "dtensor", "--mesh", mesh, "x"
    )
    assert code == 2 and "a mesh has at most 1048576 devices." in " ".join(told.split())


def test_mesh_that_differs_from_the_tensors():
    call = ["convert", "--from", "meshfuse", "--to", "dtensor", "--mesh", "2", TENSOR]
    assert failed(*call)[1].endswith("but --mesh is DeviceMesh{0 1}. Leave --mesh out.")


def test_unknown_forms():
    code, told = failed("convert", "--from", "gspmd", "--to", "dtensor", "x")
    assert code == 2 and re.search(r"'gspmd' is not one of 'dtensor'", told)
