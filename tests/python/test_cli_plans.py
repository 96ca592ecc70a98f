# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse plan`` and ``meshfuse visualize``, on stand-ins for the modules behind them."""

from __future__ import annotations

import json
import sys
import types

import pytest
from cli_programs import ROW_PARALLEL, failed, ok, ok_json, run, written

import meshfuse
from meshfuse import FusionDefinition
from meshfuse.cli import plan
from meshfuse.planner.links import Links


@pytest.fixture
def text(tmp_path):
    return written(tmp_path, "model.mf", ROW_PARALLEL)


class Cost:
    def __init__(self, fd, mesh, sizes):
        assert isinstance(fd, FusionDefinition)
        if 16 % mesh.size:
            raise meshfuse.Error(f"plan_costs: 16 elements cannot be divided by {mesh.size}.")
        self.mesh, self.sizes = mesh, sizes

    def to_dict(self):
        return {
            "mesh": list(self.mesh.shape),
            "communications": [{"kind": "all-reduce"}],
            "bytes": 2048 * self.mesh.size,
            "peak_memory": 3 << 20,
            "time_us": 100 / self.mesh.size,
            "computed": 1.0,
            "repeated_over": [],
        }


@pytest.fixture
def planner(monkeypatch):
    module = types.ModuleType("meshfuse.planner")
    module.plan_costs = lambda fd, mesh, *, sizes=None, links=None: Cost(fd, mesh, sizes)
    monkeypatch.setitem(sys.modules, "meshfuse.planner", module)


@pytest.mark.usefixtures("planner")
def test_plan(text):
    lines = ok("plan", text, "--mesh", "8", "--mesh", "2x2").splitlines()
    assert lines[0].split("  ")[0] == "mesh"
    assert "sent, KiB   peak memory, MiB   time, us" in lines[0]
    assert lines[2].split() == ["8", "*", "1", "16.00", "3.00", "12.5", "1", "x"]
    assert lines[3].split() == ["2x2", "1", "8.00", "3.00", "25.0", "1", "x"]
    assert lines[4] == "* the least time"


@pytest.mark.usefixtures("planner")
def test_plan_as_json(text):
    """A list with an object per mesh."""
    found = ok_json("plan", text, "--mesh", "8", "--mesh", "dp=2,tp=4")
    assert [entry["mesh"] for entry in found] == ["8", "dp=2,tp=4"]
    assert set(found[0]) == {
        *("mesh", "communications", "bytes", "peak_memory", "time_us"),
        *("computed", "repeated_over", "links"),
    }


@pytest.mark.usefixtures("planner")
def test_plan_on_a_mesh_that_does_not_fit(text):
    """The others are shown."""
    result = run("plan", text, "--mesh", "3", "--mesh", "8")
    assert result.exit_code == 1 and "12.5" in result.stdout
    assert result.stderr == "meshfuse: mesh 3: plan: 16 elements cannot be divided by 3.\n"
    result = run("plan", text, "--mesh", "3", "--json")
    assert result.exit_code == 1 and set(json.loads(result.stdout)[0]) == {"mesh", "error", "links"}


def test_plan_on_the_mesh_of_the_program(text):
    (own,), (two,) = ok_json("plan", text), ok_json("plan", text, "--mesh", "2")
    assert own == two and own["mesh"] == "2"


def test_plan_that_repeats_work(text):
    """The splits are over mesh_x alone."""
    lines = ok("plan", text, "--mesh", "2x4", "--mesh", "8").splitlines()
    assert lines[2].split()[-2:] == ["2", "x"] and lines[3].split()[-2:] == ["1", "x"]
    assert lines[-2] == (
        "mesh 2x4: no operation is divided over mesh_y; the same is computed 2 times"
    )


def test_least_time_that_repeats_work(text, planner, monkeypatch):
    """The star says so."""
    found = Cost.to_dict
    monkeypatch.setattr(
        Cost, "to_dict", lambda self: found(self) | {"computed": self.mesh.size / 4}
    )
    lines = ok("plan", text, "--mesh", "8", "--mesh", "4").splitlines()
    assert "* the least time, though mesh 8 computes the same 2 times" in lines


@pytest.mark.parametrize(
    ("counts", "unit", "shown"),
    [
        ([0, 512], "B", ["0", "512"]),
        ([2048, 3 << 20], "KiB", ["2.00", "3072.00"]),
        ([1 << 19, 3 << 20], "MiB", ["0.50", "3.00"]),
        ([], "B", []),
    ],
)
def test_one_unit_for_a_column(counts, unit, shown):
    found = plan._Unit(counts)
    assert (found.name, [found.write(count) for count in counts]) == (unit, shown)


def test_figures_of_links(text, tmp_path, monkeypatch):
    """It is said which are used: published ones, those that were measured, or those given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MESHFUSE_LINKS", raising=False)
    shown = "figures of links: shared-memory, published; measure those of this machine by meshfuse"
    assert shown in ok("plan", text).splitlines()[-1]
    slow, quick = (ok_json("plan", text, *o)[0] for o in ((), ("--links", "nvlink")))
    assert quick["links"] == "nvlink, published" and quick["time_us"] != slow["time_us"]
    path = Links.preset("nvlink").save()
    measured = ok_json("plan", text)[0]
    assert measured["time_us"] == quick["time_us"]
    assert measured["links"].startswith(f"{path}, published: NVLink 4")
    assert ok_json("plan", text, "--links", path)[0] == measured


def test_links_that_are_missing(text):
    code, told = failed("plan", text, "--links", "carrier-pigeon")
    assert code == 2
    assert "'carrier-pigeon' is neither a file nor one of shared-memory, " in " ".join(told.split())


def test_plan_of_a_program_without_a_mesh(tmp_path):
    file = written(tmp_path, "alone.mf", "T0: f32[i0{4}]\nT1 = neg(T0): f32[i0{4}]\nreturn T1\n")
    assert ok("plan", file).splitlines()[2].split()[:2] == ["none", "0"]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (["plan", "FILE", "--mesh", "8"], "planner.plan_costs"),
        (["visualize", "FILE"], "pictures.terminal"),
    ],
)
def test_not_available(text, call, name, monkeypatch):
    """A build without the module says so."""
    monkeypatch.setitem(sys.modules, f"meshfuse.{name.split('.')[0]}", types.ModuleType("empty"))
    code, told = failed(*(text if word == "FILE" else word for word in call))
    assert (code, told) == (
        1,
        f"{call[0]}: not available in this build of meshfuse, which has no meshfuse.{name}. "
        "Install a newer version.",
    )


@pytest.fixture
def pictures(monkeypatch):
    module = types.ModuleType("meshfuse.pictures")
    module.terminal = lambda fd, sizes, colour: "colours" if colour else "picture"
    monkeypatch.setitem(sys.modules, "meshfuse.pictures", module)
    monkeypatch.setattr(
        FusionDefinition,
        "visualize",
        lambda self, path=None, sizes=None: path.write_text("<html>"),
        raising=False,
    )


@pytest.mark.usefixtures("pictures")
def test_visualize(text, tmp_path):
    page = tmp_path / "out.html"
    assert ok("visualize", text, "-o", page) == f"{page}: 6 bytes\n"
    assert ok_json("visualize", text, "-o", page) == {"path": str(page), "bytes": 6}
    assert ok("visualize", text) == "picture\n"
    assert ok_json("visualize", text) == {"text": "picture"}


@pytest.mark.usefixtures("pictures")
def test_visualize_into_a_folder_that_is_missing(text, tmp_path):
    code, told = failed("visualize", text, "-o", tmp_path / "none" / "out.html")
    assert (code, told) == (1, f"visualize: there is no folder {tmp_path / 'none'}. Make it first.")


OPEN = ROW_PARALLEL.replace("i0{4}", "i0{T0.0}")


def test_visualize_with_sizes(tmp_path):
    file = written(tmp_path, "open.mf", OPEN)
    assert ok("visualize", file).startswith("T0.0 is open and drawn as 4\nT0")
    assert ok("visualize", file, "--size", "T0.0=6").startswith("T0 = input  [6, 16@x]\n")
    page = tmp_path / "open.html"
    ok("visualize", file, "--size", "T0=6x16", "-o", page)
    assert '"assumed":{}' in page.read_text().replace(" ", "")
