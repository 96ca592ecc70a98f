# SPDX-License-Identifier: BSD-3-Clause
"""Suggestions of fd.explain(suggest=True), and that they keep what they promise."""

from __future__ import annotations

import json

import pytest
import torch
from programs import place, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, plan_costs

FOUR = DeviceMesh(range(4))
GRID = DeviceMesh(torch.arange(8).reshape(2, 4))
NAMED = DeviceMesh(torch.arange(8).reshape(2, 4), names=["dp", "tp"])


@pytest.fixture(autouse=True)
def _published_figures(monkeypatch, tmp_path):
    """Use the same figures on every machine."""
    monkeypatch.delenv("MESHFUSE_LINKS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def mlp(annotated, extra="", mesh=FOUR, hidden=1024, rows=8, **options):
    """relu(x w1) w2, with some annotations {tensor: axis} over mesh_x, and lines of Python."""
    with FusionDefinition(**options) as fd:
        x, w1, w2 = (fd.define_tensor(s) for s in ([rows, hidden], [hidden, 2048], [2048, hidden]))
        h = fd.ops.matmul(x, w1)
        y = fd.ops.matmul(fd.ops.relu(h), w2)
        fd.add_output(y)
        tensors = {tv.name: tv for tv in fd.fusion.tensors()}
        for name, axis in annotated.items():
            place(mesh, tensors[name])
            if axis is not None:
                shard(tensors[name], axis, mesh.shape[-1])
        exec(extra, {"torch": torch, "meshfuse": meshfuse, **tensors})
    return fd


def kinds_and_bytes(cost):
    return [(c.kind, c.bytes) for c in cost.communications]


WHOLE = {"T0": None, "T5": None}
CASES = {
    "missing": ({**WHOLE, "T1": 1}, FOUR),  # rows of w2 are forgotten
    "wrong": ({**WHOLE, "T1": 1, "T2": 1}, FOUR),
    "nothing": (WHOLE, FOUR),
    "two_axes": ({**WHOLE, "T1": 1}, GRID),
}


@pytest.mark.parametrize("case", CASES)
def test_written_literally_it_costs_what_was_promised(case):
    annotated, mesh = CASES[case]
    fd = mlp(annotated, mesh=mesh)
    found = fd.explain(suggest=True).suggestions
    assert found
    assert found[0].cost.time_us <= plan_costs(fd).time_us
    for suggestion in found:
        rest = dict(annotated)
        if suggestion.change != "add":
            del rest[suggestion.tensor]
        changed = mlp(rest, suggestion.text, mesh=mesh)
        assert plan_costs(changed) == suggestion.cost
        told = [(c.kind, c.bytes) for c in changed.explain().communications]
        assert told == kinds_and_bytes(suggestion.cost)
    times = [s.cost.time_us for s in found]
    assert times == sorted(times)


def test_the_forgotten_annotation_is_found():
    (best, *_) = mlp({**WHOLE, "T1": 1}).explain(suggest=True).suggestions
    assert (best.tensor, best.change) == ("T2", "add")
    assert best.text.splitlines() == [
        "T2.set_device_mesh(meshfuse.DeviceMesh(range(4)))",
        "T2.outer_split(0, 4)",
        "T2.axis(0).parallelize(meshfuse.ParallelType.mesh_x)",
    ]
    assert [c.kind for c in best.cost.communications] == ["all-reduce"]


def test_the_wrong_annotation_is_replaced():
    found = mlp({**WHOLE, "T1": 1, "T2": 1}).explain(suggest=True)
    best = next(s for s in found.suggestions if s.tensor == "T2")
    assert best.change == "replace"
    assert best.leave_out is not None
    assert "programs.py:" in best.leave_out or "test_planner_suggest.py:" in best.leave_out
    assert "leave out what is at" in str(found)


def test_results_that_then_lie_differently_are_named():
    found = mlp({"T0": None, "T1": 1, "T2": 0}).explain(suggest=True).suggestions
    texts = [line for s in found for line in s.results]
    assert any("T5 is divided along axis" in line for line in texts)


def test_nothing_to_suggest():
    fd = mlp({**WHOLE, "T1": 1, "T2": 0})
    explained = fd.explain(suggest=True)
    assert [s for s in explained.suggestions if not s.results] == []
    assert fd.explain().suggestions is None


def test_dict_and_text():
    explained = mlp({**WHOLE, "T1": 1}).explain(suggest=True)
    facts = json.loads(json.dumps(explained.to_dict()))
    assert facts["suggestions"][0]["tensor"] == "T2"
    assert facts["cost"]["time_us"] == explained.cost.time_us
    text = str(explained)
    assert "suggestions:" in text
    assert "T2.outer_split(0, 4)" in text
    assert "% less" in text


def test_cost_is_that_of_plan_costs():
    fd = mlp({**WHOLE, "T1": 1})
    assert fd.explain().cost == plan_costs(fd)
    assert "modelled:" in str(fd.explain())


def test_open_sizes():
    fd = mlp({**WHOLE, "T1": 1}, rows=-1)
    assert mlp({"T0": None}, rows=-1).explain().cost is None
    found = fd.explain(suggest=True, sizes={"T0.0": 8}).suggestions
    assert (found[0].tensor, found[0].text.splitlines()[1]) == ("T2", "T2.outer_split(0, 4)")
    with pytest.raises(meshfuse.Error, match="program leaves open"):
        fd.explain(suggest=True)


def test_strict_programs_get_suggestions():
    fd = mlp({**WHOLE, "T1": 1}, strict=True)
    assert fd.explain(suggest=True).suggestions[0].tensor == "T2"


def test_without_a_mesh():
    explained = mlp({}).explain(suggest=True)
    assert explained.suggestions == []
    assert "no tensor has a mesh: give one with set_device_mesh first" in str(explained)


def test_program_of_views_that_takes_no_time():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        fd.add_output(fd.ops.permute(x, [1, 0]))
        x.set_device_mesh(DeviceMesh([0, 1]))
    (found, *_) = fd.explain(suggest=True).suggestions
    assert found.now.time_us == 0
    assert "0.0 us modelled instead of 0.0 (0 % less)" in str(found)


FIRST, SECOND = DeviceMesh([0, 1]), DeviceMesh([2, 3])
STAGES = {"T0": FIRST, "T1": FIRST, "T2": SECOND, "T3": FIRST, "T4": SECOND, "T5": SECOND}


def stages(annotated):
    """relu(x w1) on one mesh, times w2 on another; {tensor: axis}, None where it is whole."""
    with FusionDefinition() as fd:
        x, w1, w2 = (fd.define_tensor(s) for s in ([8, 512], [512, 1024], [1024, 512]))
        y = fd.ops.matmul(fd.ops.relu(fd.ops.matmul(x, w1)), w2)
        fd.add_output(y)
        for tv in fd.fusion.tensors():
            if tv.name in annotated:
                place(STAGES[tv.name], tv)
                if annotated[tv.name] is not None:
                    shard(tv, annotated[tv.name], 2)
    return fd


@pytest.mark.parametrize(
    "annotated",
    [
        {"T0": None, "T2": None, "T4": None},
        {"T0": None, "T1": 1, "T2": 1, "T5": None},
        {"T0": 1, "T4": 0, "T5": None},
    ],
    ids=str,
)
def test_on_several_meshes(annotated):
    """Every annotation of one tensor, on the mesh that it is on, written by hand."""
    found = stages(annotated).explain(suggest=True).suggestions
    now = plan_costs(stages(annotated))
    costs = [now]
    for name in STAGES:
        rest = {tensor: axis for tensor, axis in annotated.items() if tensor != name}
        for changed in (rest, *(rest | {name: axis} for axis in (None, 0, 1))):
            try:
                costs.append(plan_costs(stages(changed)))
            except meshfuse.Error:
                continue
    best = min(costs, key=lambda c: (round(c.time_us, 4), c.peak_memory))
    told = (found[0].cost if found else now).time_us, (found[0].cost if found else now).peak_memory
    assert told == (pytest.approx(best.time_us, abs=1e-4), best.peak_memory)
    assert found and found[0].cost.time_us < now.time_us


def test_the_same_program_is_listed_once():
    """The result of a product and that of relu after it: either divides both."""
    found = mlp(WHOLE).explain(suggest=True).suggestions
    changed = []
    for suggestion in found:
        rest = {n: a for n, a in WHOLE.items() if n != suggestion.tensor}
        changed.append(mlp(rest, suggestion.text).compiled_ir())
    assert len(set(changed)) == len(found)
    (same,) = (s for s in found if s.tensor == "T3")
    assert same.equal == ["add T4"] and str(same).endswith("\n  the same program: add T4")


@pytest.mark.parametrize("mesh", [FOUR, GRID, NAMED], ids=["one", "grid", "named"])
def test_written_as_the_script_does(mesh):
    """By set_sharding, which costs what was promised, too."""

    def program(extra=""):
        with FusionDefinition() as fd:
            shapes = ([8, 1024], [1024, 2048], [2048, 1024])
            x, w1, w2 = (fd.define_tensor(s) for s in shapes)
            y = fd.ops.matmul(fd.ops.relu(fd.ops.matmul(x, w1)), w2)
            fd.add_output(y)
            last = "tp" if mesh is NAMED else "x"
            for tv, spec in ((x, "None, None"), (w1, f"None, {last}"), (y, "None, None")):
                tv.set_sharding(
                    meshfuse.from_partition_spec(spec, mesh=mesh),
                )
            tensors = {tv.name: tv for tv in fd.fusion.tensors()}
            exec(extra, {"torch": torch, "meshfuse": meshfuse, **tensors})
        return fd

    found = [s for s in program().explain(suggest=True).suggestions if s.change == "add"]
    assert found
    for suggestion in found:
        assert suggestion.text.startswith(f"{suggestion.tensor}.set_sharding(meshfuse.from_parti")
        assert plan_costs(program(suggestion.text)) == suggestion.cost
    if mesh is FOUR:
        assert found[0].text == (
            "T2.set_sharding(meshfuse.from_partition_spec('x, None', "
            "mesh=meshfuse.DeviceMesh(range(4))))"
        )


def test_nothing_better():
    """One suggestion after the other is followed until there is none."""
    annotated, extra = {**WHOLE, "T1": 1}, ""
    while better := mlp(annotated, extra).explain(suggest=True).suggestions:
        extra += better[0].text + "\n"
    assert extra and str(mlp(annotated, extra).explain(suggest=True)).endswith(
        "no single annotation is modelled to take less time, or as much with less memory"
    )
