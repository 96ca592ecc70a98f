# SPDX-License-Identifier: BSD-3-Clause
"""Advice of the command line names options, and the command that was called."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_programs import ROW_PARALLEL, failed, run, written

from meshfuse.cli.wording import REPLACED

OPEN = ROW_PARALLEL.replace("i0{4}", "i0{T0.0}")
TWO_MESHES = """\
T0: f32[i0{4}, i1{4}] { i2{2}@x, i3{2} = split i0 outer 2 } mesh(x=2)
T1 = set(T0): f32[i0{4}, i1{4}] { i2{2}@x, i3{2} = split i0 outer 2 } mesh(x=2: 2 3)
return T1
"""
SIZES = "Give each, as in --size T0.0=4."


@pytest.mark.parametrize(
    ("content", "call", "message"),
    [
        (OPEN, ["explain", "FILE", "--suggest"], SIZES),
        (OPEN, ["plan", "FILE"], f"plan: time and memory depend on the size T0.0, .*{SIZES}"),
        (OPEN, ["explain", "FILE", "--size", "T5=2x3"], "explain: --size names 'T5'"),
        (OPEN, ["plan", "FILE", "--size", "T5=2x3"], "plan: --size names 'T5'"),
        (OPEN, ["plan", "FILE", "--mesh", "3"], "mesh 3: plan: axis 1 of T0, of which 16 elements"),
        (
            OPEN,
            ["explain", "FILE", "--size", "T0=4x8"],
            "axis 1 of T0 is given the size 8 but declared with 16. Give global sizes, not those",
        ),
        (
            OPEN,
            ["explain", "FILE", "--size", "T0=4x16", "--size", "T0.0=8"],
            "axis 0 of T0, as --size says, .*|--size T0.0",
        ),
        (
            TWO_MESHES,
            ["plan", "FILE", "--mesh", "2"],
            "plan: the program has 2 meshes .* Leave --mesh out, to keep its own meshes.",
        ),
        (TWO_MESHES, ["check", "FILE", "--mesh", "2"], "check: the program has 2 meshes .* --mesh"),
        (
            None,
            ["convert", "--from", "partition-spec", "--to", "dtensor", "x, None"],
            "the number of placements is not known. Give one, as in --mesh 2x4.",
        ),
        (
            None,
            ["convert", "--from", "partition-spec", "--to", "dtensor", "dp, tp"],
            "give a mesh with names to use those, as in --mesh dp=2,tp=4.",
        ),
    ],
)
def test_advice_names_options(tmp_path, content, call, message):
    file = written(tmp_path, "model.mf", content or "")
    told = failed(*(file if word == "FILE" else word for word in call))[1]
    assert re.search(message, told), told
    assert not re.search(r"\b(sizes|mesh|inputs)=", told), told


def test_meshes_of_its_own_can_be_kept(tmp_path):
    """What the message about several meshes advises works."""
    file = written(tmp_path, "two.mf", TWO_MESHES)
    for command in ("plan", "check"):
        assert run(command, file).exit_code == 0


UNEVEN = "T0: f32[i0{5}] { i1{2}@x, i2{3} = split i0 outer 2 } mesh(x=2)\nreturn T0\n"


def test_text_that_is_read_with_uneven(tmp_path):
    file = written(tmp_path, "uneven.mf", UNEVEN)
    code, told = failed("explain", file)
    assert code == 2
    assert told.endswith("A program with uneven=True is read by --uneven, and this one can be.")


@pytest.mark.parametrize("written", REPLACED)
def test_sources_have_what_is_replaced(written):
    """A message that changes has to change in the table, too."""
    root = Path(__file__).resolve().parents[2]
    files = [*root.glob("csrc/meshfuse/**/*.cpp"), *root.glob("python/meshfuse/**/*.py")]
    texts = (re.sub(r'"\s*f?"', "", f.read_text()) for f in files if f.name != "wording.py")
    assert any(written in text or written.removesuffix(".") in text for text in texts)
