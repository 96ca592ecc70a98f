# SPDX-License-Identifier: BSD-3-Clause
"""``fd.visualize()``: what the page says of a program, and that a browser shows it."""

from __future__ import annotations

import html
import itertools
import json
import math
import os
import re
import shutil
import subprocess

import pytest
import torch
from programs import X, Y, lay, mlp, mlp_inputs, place, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, PythonProfiler
from meshfuse.pictures.extents import evaluate

BROWSER = os.environ.get("MESHFUSE_BROWSER") or shutil.which("chromium")


def model_of(page: str) -> dict:
    """The picture inside a page."""
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1]
    )


def tensor_of(model: dict, name: str) -> dict:
    return next(tensor for tensor in model["tensors"] if tensor["name"] == name)


def column_parallel() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(x, w))
        place(DeviceMesh(range(2)), x, w)
        shard(w, -1, 2)
    return fd


def two_axes() -> FusionDefinition:
    mesh = DeviceMesh(torch.arange(4).view(2, 2), names=("data", "model"))
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 6, 8]), fd.define_tensor([8, 10])
        fd.add_output(fd.ops.matmul(x, w))
        lay(x, mesh, [(0, Y), (2, X)])
        lay(w, mesh, [(0, X)])
    return fd


def profiled() -> tuple[FusionDefinition, meshfuse.FusionProfile]:
    fd = mlp(DeviceMesh(range(4)), out_seq=True)
    with meshfuse.simulate(4) as sim, PythonProfiler() as prof:
        sim.run(fd, mlp_inputs(4))
    return fd, prof.profile


def test_page_is_written_and_needs_no_network(tmp_path):
    path = tmp_path / "picture.html"
    text = column_parallel().visualize(path)
    assert path.read_text(encoding="utf-8") == text
    assert text.startswith("<!DOCTYPE html>")
    links = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", text)
    assert links == ["data:,"]
    assert re.findall(r"https?://[^\"\s]+", text) == ["http://www.w3.org/2000/svg"]


def test_communications_are_marked_in_the_graph():
    model = model_of(mlp(DeviceMesh(range(4)), out_seq=True).visualize())
    assert (model["communications"], model["bytes"]) == (1, 576)
    (node,) = [n for n in model["nodes"] if n["communication"]]
    assert (node["names"], node["op"]) == (["T8"], "sum")
    facts = node["communication"]
    assert (facts["kind"], facts["mesh_axis"], facts["bytes"]) == ("reduce-scatter", "mesh_x", 576)
    assert (facts["among"], facts["local"]) == ("{0 1 2 3}", [[4, 8, 6], [4, 2, 6]])
    assert all("programs.py:" in line for line in facts["lines"])
    operands = {
        n["names"][0]: [model["nodes"][k]["names"][0] for k in n["operands"]]
        for n in model["nodes"]
    }
    assert sorted(operands["T6"]) == ["T10", "T5"]


@pytest.mark.parametrize("axis", [0, 1])
def test_local_shapes_are_those_of_the_largest_part(axis):
    with FusionDefinition(uneven=True) as fd:
        x = fd.define_tensor([7, 10])
        y = fd.ops.relu(x)
        fd.add_output(y)
        place(DeviceMesh(range(4)), x, y)
        shard(x, axis, 4)
    with meshfuse.simulate(4) as sim:
        part = sim.shard_tensor(torch.empty(7, 10), x)[0]
    model = model_of(fd.visualize())
    assert tensor_of(model, "T0")["local"] == list(part.shape)
    (node,) = [n for n in model["nodes"] if n["communication"]]
    assert node["communication"]["local"] == [list(part.shape), [7, 10]]


def test_parts_of_merged_axes_have_no_shape():
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4], contiguity=True)
        y = fd.ops.set(x)
        fd.add_output(y)
        place(DeviceMesh(range(2)), x, y)
        for tv in (x, y):
            tv.merge(0, 1)
            shard(tv, 0, 2)
    tensor = tensor_of(model_of(fd.visualize()), "T0")
    assert (tensor["on_mesh"], tensor["local"]) == ({"x": 0}, None)


def title_of(fd: FusionDefinition) -> str:
    return html.unescape(re.search(r"<title>(.*?)</title>", fd.visualize())[1])


def test_titles_say_which_program_it_is():
    assert title_of(column_parallel()) == "test_pictures_page.py: T2 = matmul on a mesh of 2"
    assert title_of(two_axes()) == "test_pictures_page.py: T2 = matmul on a mesh of 2x2"
    text = meshfuse.parse_ir(two_axes().ir())
    assert title_of(text) == "T2 = matmul on a mesh of 2x2"
    with FusionDefinition() as fd:
        fd.add_output(fd.define_scalar(dtype=meshfuse.DataType.Double))
    assert title_of(fd) == "s0 = input"


def test_every_communication_of_two_mesh_axes_has_a_node():
    mesh = DeviceMesh(torch.arange(4).view(2, 2))
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 8])
        y, z = fd.ops.set(x), fd.ops.set(x)
        fd.add_output(y)
        fd.add_output(z)
        lay(x, mesh, [(0, Y), (1, X)])
        lay(y, mesh, [(0, X)])
        lay(z, mesh)
    model = model_of(fd.visualize())
    assert model["communications"] == len(fd.explain().communications) > 1
    assert sum(n["communication"] is not None for n in model["nodes"]) == model["communications"]


def test_partial_sums_are_said_to_be_so():
    fd = two_axes()
    model = model_of(fd.visualize())
    partial = [tensor for tensor in model["tensors"] if tensor["partial"]]
    assert [(t["name"], t["partial"], t["shape"]) for t in partial] == [
        ("T3", ["mesh_x"], [4, 6, 10])
    ]
    assert tensor_of(model, "T0")["on_mesh"] == {"y": 0, "x": 2}


def test_tensors_have_the_line_that_made_them():
    fd = two_axes()
    model = model_of(fd.visualize())
    made = {name: tensor_of(model, name)["made_at"] for name in ("T0", "T2")}
    line = two_axes.__code__.co_firstlineno
    assert made == {"T0": f"{__file__}:{line + 3}", "T2": f"{__file__}:{line + 4}"}


def test_open_sizes_are_drawn_with_a_number_that_is_said():
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 6])
        fd.add_output(fd.ops.matmul(x, w))
        place(DeviceMesh(range(4)), x, w)
        shard(x, 1, 4)
        shard(w, 0, 4)
    model = model_of(fd.visualize())
    assert model["assumed"]["T0.1"] % 4 == 0 and model["bytes"] is None
    assert all(c["communication"]["bytes"] is None for c in model["nodes"] if c["communication"])
    model = model_of(fd.visualize(inputs=[torch.empty(5, 8, device="meta"), torch.empty(8, 6)]))
    assert (model["assumed"], tensor_of(model, "T0")["shape"]) == ({}, [5, 8])
    assert model["bytes"] == fd.explain(sizes={"T0": (5, 8)}).bytes
    with pytest.raises(meshfuse.Error, match="sizes names 'T9', which is no tensor input"):
        fd.visualize(sizes={"T9": (1, 2)})


def open_product() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 6])
        fd.add_output(fd.ops.matmul(x, w))
        place(DeviceMesh(range(4)), x, w)
        shard(x, 1, 4)
        shard(w, 0, 4)
    return fd


@pytest.mark.parametrize("run", ["global", "local"])
def test_open_sizes_are_those_of_a_profile(run):
    fd = open_product()
    inputs = [torch.ones(5, 8), torch.ones(8, 6)]
    with meshfuse.simulate(4) as sim, PythonProfiler() as prof:
        sim.run(fd, [torch.ones(2, 12), torch.ones(12, 6)])
        sim.run(fd, inputs) if run == "global" else sim.execute(fd, sim.shard(fd, inputs))
    model = model_of(fd.visualize(profile=prof.profile))
    assert (model["assumed"], tensor_of(model, "T0")["shape"]) == ({}, [5, 8])  # of the last one
    assert model["bytes"] == fd.explain(sizes={"T0": (5, 8)}).bytes
    model = model_of(fd.visualize(profile=prof.profile, sizes={"T0": (3, 4)}))
    assert tensor_of(model, "T0")["shape"] == [3, 4]
    other = model_of(open_product().visualize(profile=prof.profile))
    assert tensor_of(other, "T0")["shape"] == [8, 8]  # the profile is not of this program
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([-1, 4])))
    for rows in (3, 5):  # compiled anew, and run again
        fd.execute([torch.ones(rows, 4)], profile=True)
        assert tensor_of(model_of(fd.visualize()), "T0")["shape"] == [rows, 4]


@pytest.mark.parametrize("inner", [False, True])
def test_large_tensors_have_few_cells(inner):
    with FusionDefinition() as fd:
        x = fd.define_tensor([1 << 20, 4096])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(8)), x)
        shard(x, 0, 8, inner=inner)
    page = fd.visualize()
    assert len(page) < 100_000
    rows, columns = tensor_of(model_of(page), "T0")["segments"]
    assert columns == [[0, 4096, False]]
    if inner:
        assert rows[:2] == [[0, 1, False], [1, 2, False]]
        assert [row for row in rows if row[2]] == [[rows[-2][0], (1 << 20) - 1, True]]
    else:
        assert rows == [[k << 17, (k + 1) << 17, False] for k in range(8)]


def test_segments_cover_axes_and_have_one_owner_each():
    """Blocks of axes too long for single elements, also uneven ones and blocks of blocks."""
    from meshfuse.pictures.cells import grid
    from meshfuse.pictures.ownership import Ownership
    from meshfuse.program_text import parse

    with FusionDefinition(uneven=True) as fd:
        x, y = fd.define_tensor([103, 48]), fd.define_tensor([96])
        fd.add_output(fd.ops.relu(x))
        fd.add_output(fd.ops.relu(y))
        place(DeviceMesh(range(4)), x, y)
        shard(x, 0, 4)
        y.split(0, 3, False)
        shard(y, 1, 4)
    for name in ("T0", "T1"):
        own = Ownership(parse(fd.compiled_ir()).tensors()[name], int)
        segments, _ = grid(own)
        for k, line in enumerate(segments):
            covered = [
                i
                for start, stop, _ in ((s.start, s.stop, s.gap) for s in line)
                for i in range(start, stop)
            ]
            assert covered == list(range(own.shape[k]))
            for segment in line:
                places = [own.places({own.dims[k]: i}) for i in range(segment.start, segment.stop)]
                assert all(p == places[0] for p in places)


def test_uneven_parts_of_a_large_tensor_are_found_fast():
    with FusionDefinition(uneven=True) as fd:
        x = fd.define_tensor([(1 << 22) + 1, 3])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(4)), x)
        shard(x, 0, 4)
    parts = tensor_of(model_of(fd.visualize()), "T0")["memory"]
    counts = [part["count"] for part in parts]
    assert counts == [3 * ((1 << 20) + 1)] * 3 + [3 * ((1 << 20) - 2)]
    assert [len(part["cells"]) for part in parts] == [48] * 4


def test_pages_of_many_axes_are_small():
    """Also where merges tie all axes together, so that owners depend on each of them."""
    with FusionDefinition() as fd:
        x, tied = fd.define_tensor([16] * 20), fd.define_tensor([16] * 8, contiguity=True)
        y = fd.ops.set(tied)
        fd.add_output(fd.ops.relu(x))
        fd.add_output(y)
        place(DeviceMesh(range(2)), x, tied, y)
        shard(x, 3, 2)
        for tv in (tied, y):
            for _ in range(7):
                tv.merge(0, 1)
            shard(tv, 0, 2)
    page = fd.visualize()
    assert len(page) < 300_000
    x_cells, tied_cells = (tensor_of(model_of(page), name) for name in ("T0", "T1"))
    assert (x_cells["plane"], tied_cells["plane"]) == ([3, 19], [0, 7])
    rows = len(tied_cells["groups"][0]["places"]) // len(tied_cells["segments"][0])
    owners = [place["x"] for place in tied_cells["groups"][0]["places"][::rows]]
    assert owners == [0] * 8 + [1] * 8


@pytest.mark.parametrize(("axes", "plane"), [([1], [1, 3]), ([1, 2], [1, 2]), ([], [2, 3])])
def test_slices_show_the_axes_that_are_divided(axes, plane):
    mesh = DeviceMesh(torch.arange(4).view(2, 2))
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 8, 4, 8])
        fd.add_output(fd.ops.relu(x))
        lay(x, mesh, list(zip(axes, (Y, X), strict=False)))
    tensor = tensor_of(model_of(fd.visualize()), "T0")
    assert (tensor["plane"], sorted(tensor["plane"] + tensor["outer"])) == (plane, [0, 1, 2, 3])


def test_meshes_of_many_devices():
    """What is drawn of a mesh does not grow with it, unless its devices are in another order."""
    count = 1 << 20
    with FusionDefinition() as fd:
        x = fd.define_tensor([count, 8])
        fd.add_output(fd.ops.relu(x))
        mesh = DeviceMesh(torch.arange(count).view(count // 2, 2))
        lay(x, mesh, [(0, Y), (1, X)])
    page = fd.visualize()
    model = model_of(page)
    assert len(page) < 100_000
    assert (model["devices"], model["meshes"][0]["devices"]) == (count, count)
    assert [part["devices"] for part in tensor_of(model, "T0")["memory"]] == [
        [k] for k in range(16)
    ]
    with FusionDefinition() as fd:
        x = fd.define_tensor([8])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(99, -1, -1)), x)
    model = model_of(fd.visualize())
    assert model["meshes"][0]["text"].startswith("mesh(x=100: 99 98 ")
    assert model["meshes"][0]["text"].endswith(" 69 ... 0)")
    assert model["meshes"][0]["devices"] == list(range(99, -1, -1))
    (part,) = tensor_of(model, "T0")["memory"]
    assert (part["devices"][:2], part["replicas"]) == ([99, 98], 100)


def memory_texts(fd: FusionDefinition, name: str) -> list[list[str]]:
    memory = tensor_of(model_of(fd.visualize()), name)["memory"]
    return [[text for text, _ in part["cells"]] for part in memory]


def test_memory_of_strided_parts_has_their_steps():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 48], contiguity=True)
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(2)), x)
        shard(x, 1, 2, inner=True)
    assert memory_texts(fd, "T0") == [
        ["0,0:47:2", "1,0:47:2", "2,0:47:2", "3,0:47:2"],
        ["0,1:48:2", "1,1:48:2", "2,1:48:2", "3,1:48:2"],
    ]


def test_memory_of_steps_of_steps():
    """On one mesh axis every second piece of four, on the other every second element of it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 32], contiguity=True)
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(torch.arange(4).view(2, 2)), x)
        x.split(1, 4, True)
        x.split(2, 2, True)
        x.axis(3).parallelize(X)
        x.split(1, 2, True)
        x.axis(2).parallelize(Y)
    texts = [line[:3] for line in memory_texts(fd, "T0")]
    assert texts[0] == ["0,0:3:2", "0,8:11:2", "0,16:19:2"]
    assert texts[3] == ["0,5:8:2", "0,13:16:2", "0,21:24:2"]


def test_memory_of_merged_axes_that_is_no_box_has_its_ends():
    from meshfuse.pictures.memory import block_text
    from meshfuse.pictures.ownership import Block

    rows = Block(6, lambda k: (k // 3, k % 3))
    other = Block(6, lambda k: (k % 2, k // 2))
    every_second = Block(6, lambda k: divmod(2 * k, 3))
    texts = [block_text(block, [0, 1], False) for block in (rows, other, every_second)]
    assert texts == ["0:2,0:3", "0,0 \u2026 1,2", "0,0 \u2026 3,1"]


def test_text_cannot_end_the_script():
    mesh = DeviceMesh(range(2), names=["</script><b>"])
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.relu(x))
        place(mesh, x)
    page = fd.visualize()
    assert page.count("</script>") == 2 and "<b>" not in page
    assert '"</script><b>"' in model_of(page)["meshes"][0]["text"]


def test_steps_of_a_profile():
    fd, profile = profiled()
    steps = model_of(fd.visualize(profile=profile))["steps"]
    assert [step["name"] for step in steps] == [s.name for s in profile.kernel_profiles]
    assert {step["devices"] for step in steps} == {4}
    for before, after in itertools.pairwise(steps):
        assert before["start"] + before["ms"] <= after["start"] + 1e-9
    single = column_parallel()
    assert model_of(single.visualize())["steps"] == []
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([4])))
    fd.execute([torch.ones(4)], profile=True)
    assert len(model_of(fd.visualize())["steps"]) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("T0.0", 10),
        ("(ceilDiv(T0.0, 4))", 3),
        ("(add(mul(T0.0, 2), neg(3)))", 17),
        ("(max(floorDiv(T0.0, 3:index), mod(T0.0, 4)))", 3),
        ("(add(cast(s0, index), 1))", 6),
    ],
)
def test_size_expressions(text, value):
    assert evaluate(text, {"T0.0": 10, "s0": 5}) == value


def oklab(colour: str) -> torch.Tensor:
    """Where a colour lies for the eye: the distance of two is how different they look."""
    rgb = torch.tensor([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = torch.tensor(
        [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    )
    axes = torch.tensor(
        [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    )
    return axes @ (cones @ linear) ** (1 / 3)


def test_devices_have_colours_that_differ():
    """0.02 is about the least that is seen side by side."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([32])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(32)), x)
    tints = model_of(fd.visualize())["tints"]
    assert len(tints) == 32
    for a, b in itertools.combinations(map(oklab, tints), 2):
        assert torch.dist(a, b) > 0.065


# ---- in a browser

PROBE = """<script>
addEventListener("load", () => {
  const box = (e) => {
    const b = e.getBoundingClientRect();
    return [b.left, b.top, b.width, b.height];
  };
  const all = (query) => [...document.querySelectorAll(query)].map(box);
  const wide = (e) => e.scrollWidth > e.clientWidth + 1;
  const overflow = [...document.querySelectorAll("td.cell, .strip .cell")].filter(wide).length;
  const texts = [...document.querySelectorAll("svg g.node")].filter((g) => {
    const right = g.querySelector("rect").getBoundingClientRect().right;
    return [...g.querySelectorAll("text")].some((t) => t.getBoundingClientRect().right > right);
  }).length;
  const owners = [...new Set([...document.querySelectorAll("td.cell")].map((e) => e.textContent))];
  const first = document.querySelector("td.cell");
  first.dispatchEvent(new MouseEvent("mousemove", { clientX: 10, clientY: 10 }));
  const tip = document.getElementById("tip");
  const tipText = tip.textContent, tips = [tip.hidden];
  first.click();
  tips.push(tip.hidden);
  first.dispatchEvent(new MouseEvent("mousemove", { clientX: 10, clientY: 10 }));
  dispatchEvent(new Event("scroll"));
  tips.push(tip.hidden);
  const tracks = [...document.querySelectorAll("#timeline .soft")].map((e) => e.textContent)
    .filter((text) => !text.endsWith(" ms"));
  const scrolled = [...document.querySelectorAll("#timeline .scroll")].filter(wide).length;
  const report = { summary: all("#summary, #legend li"), nodes: all("svg g.node"), tipText,
    cells: all("td.cell"), memory: all(".strip .cell"),
    axes: all("svg .box"), bars: all("svg .bar"),
    comm: all("svg g.comm"), owners, picks: all(".pick select"), overflow, texts, tips, scrolled,
    tracks, page: [document.body.scrollWidth, innerWidth] };
  document.documentElement.dataset.report = JSON.stringify(report);
});
</script>"""

needs_browser = pytest.mark.skipif(not BROWSER, reason="no chromium on PATH, nor MESHFUSE_BROWSER")


def shown(page: str, folder, width: int = 1400) -> dict:
    """What a browser made of a page; it must not complain."""
    path = folder / "page.html"
    path.write_text(page.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    return reported(path, folder, width)


def reported(path, folder, width: int = 1400) -> dict:
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--window-size={width},1600"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [*command, path.as_uri()],
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(re.search(r'data-report="([^"]*)"', done.stdout)[1]))


def assert_seen(boxes: list[list[float]], count: int) -> None:
    assert len(boxes) == count
    assert all(width > 0 and height > 0 for _, _, width, height in boxes)


def assert_apart(boxes: list[list[float]]) -> None:
    for i, (left, top, width, height) in enumerate(boxes):
        for l2, t2, w2, h2 in boxes[:i]:
            across = min(left + width, l2 + w2) - max(left, l2)
            down = min(top + height, t2 + h2) - max(top, t2)
            assert across < 1 or down < 1


@needs_browser
@pytest.mark.parametrize("make", [column_parallel, two_axes], ids=lambda f: f.__name__)
def test_browser_shows_tensors_and_graph(make, tmp_path):
    fd = make()
    page = fd.visualize()
    model, report = model_of(page), shown(page, tmp_path)
    assert_seen(report["cells"], sum(math.prod(t["shape"]) for t in model["tensors"]))
    assert_seen(report["nodes"], len(model["nodes"]))
    assert_apart(report["nodes"])
    assert_apart(report["cells"])
    assert_apart(report["memory"])
    assert_seen(report["comm"], model["communications"])
    assert (report["overflow"], report["texts"]) == (0, 0)
    assert report["page"][0] <= report["page"][1]
    assert "T0[0, 0" in report["tipText"] and "bytes" not in report["tipText"].splitlines()[0]
    assert report["memory"] and report["axes"] and not report["bars"]


@needs_browser
def test_browser_shows_a_tensor(tmp_path):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(2)), x)
        shard(x, 0, 2)
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', x._repr_html_())[1])
    report = shown(page, tmp_path)
    assert_seen(report["cells"], 24)
    assert not report["nodes"] and report["memory"] and report["axes"]
    assert report["overflow"] == 0 and "T0[0, 0" in report["tipText"]


@needs_browser
@pytest.mark.parametrize("width", [900, 1300, 2000])
def test_browser_shows_a_profile(width, tmp_path):
    fd, profile = profiled()
    report = shown(fd.visualize(profile=profile), tmp_path, width)
    assert_seen(report["bars"], len(profile.kernel_profiles))
    assert (report["overflow"], report["texts"], report["scrolled"]) == (0, 0, 0)
    assert report["tracks"] == ["devices 0\u20133"]
    right = max(left + bar for left, _, bar, _ in report["bars"])
    assert right > 0.9 * min(width, 90 * 16)


@needs_browser
def test_tips_go_where_a_click_or_scrolling_moves_what_they_are_of(tmp_path):
    assert shown(column_parallel().visualize(), tmp_path)["tips"] == [False, True, True]


FRAME_PROBE = """<script>
addEventListener("load", () => {
  const frame = document.querySelector("iframe");
  const report = [frame.clientHeight, frame.contentDocument.documentElement.scrollHeight];
  document.documentElement.dataset.report = JSON.stringify(report);
});
</script>"""


@needs_browser
def test_frames_of_notebooks_are_as_high_as_their_pages(tmp_path):
    with FusionDefinition() as fd:
        x = fd.define_tensor([14, 20])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(2)), x)
        shard(x, 0, 2)
    path = tmp_path / "notebook.html"
    path.write_text(x._repr_html_() + FRAME_PROBE, encoding="utf-8")
    frame, page = reported(path, tmp_path)
    assert 420 < page <= frame < page + 20
    path.write_text(fd._repr_html_() + FRAME_PROBE, encoding="utf-8")
    assert reported(path, tmp_path)[0] == 1200  # a long page is scrolled


@needs_browser
def test_browser_shows_the_division_of_many_axes(tmp_path):
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 8, 6, 4, 4])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(4)), x)
        shard(x, 1, 4)
    report = shown(fd.visualize(), tmp_path)
    assert_seen(report["cells"], 2 * 8 * 4)
    assert report["owners"] == ["0", "1", "2", "3"]
    assert_seen(report["picks"], 2 * 5)  # rows and columns, and three more axes
    assert report["overflow"] == 0
