# SPDX-License-Identifier: BSD-3-Clause
"""Writes the drawings of docs/concepts as SVG files; who holds what is asked of meshfuse.

Usage: PYTHONPATH=python python tools/gen_pictures.py [--check]

With --check nothing is written; the exit code is 1 when a file is out of date. Colours are chosen
to be read on light and on dark pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import torch

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType, TensorView
from meshfuse.pictures.palette import TINTS

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "concepts"
X, Y = ParallelType.mesh_x, ParallelType.mesh_y
PLAIN, ANNOTATED, SENT = "#d3d8de", "#7db8f5", "#ffb184"
STYLE = """<style>
text { font: 13px ui-monospace, monospace; fill: #14171a; text-anchor: middle; }
.label { fill: #767e87; text-anchor: start; } .middle { fill: #767e87; }
.title { fill: #767e87; text-anchor: start; font-weight: bold; }
.cell { stroke: #14171a; stroke-opacity: .35; }
.none { fill: none; stroke: #767e87; stroke-opacity: .5; }
.line { stroke: #767e87; stroke-width: 1.4; fill: none; } .arrow { marker-end: url(#head); }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
orient="auto"><path d="M0 0L8 4L0 8z" fill="#767e87"/></marker>
<pattern id="sum" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="2" height="6" fill="#14171a" fill-opacity=".45"/></pattern></defs>
"""


class Drawing:
    """An SVG picture under construction; y grows downwards."""

    def __init__(self, width: int, height: int) -> None:
        """Begin an empty picture."""
        self.size = (width, height)
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "label") -> None:
        """Write a line of text with its baseline at y."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def line(self, *points: float, arrow: bool = False) -> None:
        """Draw a line through points x, y, x, y, ..."""
        pairs = " ".join(f"{v:g}" for v in points)
        kind = "line arrow" if arrow else "line"
        self.parts.append(f'<polyline class="{kind}" points="{pairs}"/>')

    def box(
        self, x: float, y: float, size: tuple[float, float], fill: str | None, text: str = ""
    ) -> None:
        """Draw a rectangle, filled with a colour or empty, and a text in its middle."""
        kind, colour = ("none", "") if fill is None else ("cell", f' fill="{fill}"')
        width, height = size
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2"'
        self.parts.append(f'<rect class="{kind}" {shape}{colour}/>')
        if text:
            self.text(x + width / 2, y + height / 2 + 4.5, text, "middle" if fill is None else "in")

    def cell(self, x: float, y: float, side: float, devices: Sequence[int], name: bool) -> None:
        """Draw one element in the colours of the devices that hold it."""
        width = side / max(len(devices), 1)
        for i, device in enumerate(devices):
            self.box(x + i * width, y, (width, side), TINTS[device])
        if not devices:
            self.box(x, y, (side, side), None)
        elif name:
            self.text(x + side / 2, y + side / 2 + 4.5, f"d{devices[0]}", "in")

    def grid(
        self,
        x: float,
        y: float,
        owners: Sequence[Sequence[Sequence[int]]],
        side: float,
        *,
        name: bool = False,
        partial: bool = False,
    ) -> None:
        """Draw the elements of a matrix; terms of a sum are hatched."""
        for i, row in enumerate(owners):
            for j, devices in enumerate(row):
                self.cell(x + j * side, y + i * side, side, devices, name)
                if partial and devices:
                    self.box(x + j * side, y + i * side, (side, side), "url(#sum)")

    def svg(self) -> str:
        """Return the file."""
        width, height = self.size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        head += f'width="{width}" height="{height}">\n'
        return head + STYLE + "\n".join(self.parts) + "\n</svg>\n"


Schedule = Callable[[TensorView], None]


def owners(shape: list[int], mesh: DeviceMesh, schedule: Schedule) -> list[list[list[int]]]:
    """Return the devices that hold each element of a matrix under a schedule."""
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape)
        fd.add_output(fd.ops.set(t))
        t.set_device_mesh(mesh)
        schedule(t)
    found: list[list[list[int]]] = [[[] for _ in range(shape[1])] for _ in range(shape[0])]
    numbers = torch.arange(shape[0] * shape[1]).reshape(shape)
    with meshfuse.simulate(mesh.size) as sim:
        for device, part in enumerate(sim.shard_tensor(numbers, t)):
            for number in part.flatten().tolist():
                found[number // shape[1]][number % shape[1]].append(device)
    return found


def divide(axis: int, parallel_type: ParallelType = X, parts: int = 2) -> Schedule:
    """Return a schedule that puts the outer part of an axis on the mesh."""

    def schedule(t: TensorView) -> None:
        t.outer_split(axis, parts)
        t.axis(axis).parallelize(parallel_type)

    return schedule


def whole(t: TensorView) -> None:
    """Leave a tensor whole."""


def mesh() -> str:
    """Two meshes, with the names of their axes."""
    d = Drawing(640, 170)
    d.text(20, 22, "DeviceMesh(range(4))", "title")
    d.grid(20, 64, [[[0], [1], [2], [3]]], 42, name=True)
    d.text(20, 48, "mesh_x")
    d.line(78, 44, 188, 44, arrow=True)
    d.text(270, 22, "DeviceMesh(torch.arange(6).reshape(2, 3))", "title")
    d.grid(350, 64, [[[0], [1], [2]], [[3], [4], [5]]], 42, name=True)
    d.text(350, 48, "mesh_x")
    d.line(408, 44, 476, 44, arrow=True)
    d.text(270, 76, "mesh_y")
    d.line(336, 64, 336, 148, arrow=True)
    return d.svg()


def tree(d: Drawing, x: float, y: float, levels: list[tuple[str, str]]) -> None:
    """Draw an axis of 8 and its splits, each of the inner half of the one before."""
    size = (62.0, 24.0)
    d.box(x + 46, y, size, PLAIN, "i{8}")
    for i, (outer, inner) in enumerate(levels):
        step, middle = y + 48 * (i + 1), x + 77
        for place, name in ((middle - 70, outer), (middle + 8, inner)):
            d.line(middle, step - 24, place + 31, step)
            d.box(place, step, size, ANNOTATED if "@" in name else PLAIN, name)
        x += 39


def did_loop_split() -> str:
    """Axes split and put on the mesh in several ways, and who then holds which column."""
    two, grid = DeviceMesh(range(2)), DeviceMesh(torch.arange(4).reshape(2, 2))

    def cyclic(t: TensorView) -> None:
        t.inner_split(1, 2)
        t.axis(2).parallelize(X)

    def blocks_of_blocks(t: TensorView) -> None:
        t.outer_split(1, 2)
        t.outer_split(2, 2)
        t.axis(2).parallelize(X)

    def y_then_x(t: TensorView) -> None:
        divide(1, Y)(t)
        divide(2, X)(t)

    again, last = ("i{2}", "i{4}"), ("i{2}@x", "i{2}")
    panels: list[tuple[str, DeviceMesh, Schedule, list[tuple[str, str]]]] = [
        ("outer half: blocks", two, divide(1), [("i{2}@x", "i{4}")]),
        ("inner half: cyclic", two, cyclic, [("i{4}", "i{2}@x")]),
        ("blocks of blocks", two, blocks_of_blocks, [again, last]),
        ("on a mesh 2x2: y, then x", grid, y_then_x, [("i{2}@y", "i{4}"), last]),
    ]
    d = Drawing(700, 460)
    for k, (title, on, schedule, levels) in enumerate(panels):
        x, y = 20 + 350 * (k % 2), 20 + 185 * (k // 2)
        d.text(x, y, title, "title")
        tree(d, x + 40, y + 14, levels)
        row = owners([1, 8], on, schedule)
        bottom = y + 18 + 48 * (len(levels) + 1)
        d.grid(x, bottom, row, 34, name=True)
        for j in range(8):
            d.text(x + 34 * j + 17, bottom + 50, str(j), "middle")
    return d.svg()


def domains() -> str:
    """The four lists of the partial sums of a product: each list follows from the one before."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        y = fd.ops.matmul(x, w)
        y.outer_split(-1, 2)
        p = y.rfactor([-1])
        p.set_device_mesh(DeviceMesh(range(2)))
        p.outer_split(1, 2)
        p.axis(1).parallelize(X)
        fd.add_output(y)
    lists = {
        "root": ["i{4}", "i{8}", "r{6}"],
        "logical": ["i{4}", "i{8}", "i{2}", "r{3}"],
        "loop": ["i{4}", "i{2}@x", "i{4}", "i{2}", "r{3}"],
        "allocation": ["i{4}", "i{2}@x", "i{4}", "i{2}", "r{3}"],
    }
    sizes = [p.get_root_domain(), p.get_logical_domain(), p.get_loop_domain()]
    for name, domain in zip(lists, sizes, strict=False):
        extents = [str(i).partition("{")[2].partition("}")[0] for i in domain]
        assert extents == [axis.partition("{")[2].partition("}")[0] for axis in lists[name]], name
    notes = ["as the op made them", "as torch sees them", "as the schedule runs"]
    notes += ["as it lies in memory"]
    edges = [[(0, 0), (1, 1), (2, 2), (2, 3)], [(0, 0), (1, 1), (1, 2), (2, 3), (3, 4)]]
    edges.append([(i, i) for i in range(5)])
    steps = ["rfactor", "split, parallelize", ""]
    d = Drawing(760, 260)
    for k, (name, axes) in enumerate(lists.items()):
        left = 20 + 195 * k
        d.text(left, 22, name, "title")
        d.text(left, 40, notes[k])
        for i, axis in enumerate(axes):
            d.box(left, 58 + 38 * i, (76, 26), ANNOTATED if "@" in axis else PLAIN, axis)
        for a, b in edges[k] if k < 3 else []:
            d.line(left + 76, 71 + 38 * a, left + 195, 71 + 38 * b)
        if k < 3:
            d.text(left + 135, 256, steps[k], "middle")
    return d.svg()


def factors() -> str:
    """A product with each of its factors divided over two devices."""
    two = DeviceMesh(range(2))
    cases: list[tuple[str, Schedule, Schedule, Schedule]] = [
        ("m over mesh_x: local", divide(0), whole, divide(0)),
        ("n over mesh_x: local", whole, divide(1), divide(1)),
        ("k over mesh_x: each device has a partial sum", divide(1), divide(0), whole),
    ]
    d = Drawing(700, 460)
    for k, (title, *schedules) in enumerate(cases):
        top = 20 + 150 * k
        d.text(20, top, title, "title")
        places = ((20, [4, 6], "x [m, k]"), (220, [6, 4], "w [k, n]"), (380, [4, 4], "y [m, n]"))
        for (left, shape, name), schedule in zip(places, schedules, strict=True):
            sums = schedule is whole and left == 380
            d.grid(left, top + 12, owners(shape, two, schedule), 15, partial=sums)
            d.text(left, top + 26 + 15 * shape[0], name)
        d.text(170, top + 46, "@")
        d.text(320, top + 46, "=")
    d.text(480, 50, "blue: d0, orange: d1")
    d.text(480, 68, "both: on each of them")
    d.text(480, 350, "hatched: terms of")
    d.text(480, 368, "a sum, one per device")
    return d.svg()


def resharding() -> str:
    """What each of four devices has before and after a communication."""
    four = DeviceMesh(range(4))
    rows, columns = owners([4, 4], four, divide(0, X, 4)), owners([4, 4], four, divide(1, X, 4))
    full = owners([4, 4], four, whole)
    cases = [
        ("slice", full, False, rows, "no message"),
        ("all-gather", rows, False, full, ""),
        ("all-to-all", rows, False, columns, ""),
        ("all-reduce", full, True, full, "partial sums"),
        ("reduce-scatter", full, True, rows, "partial sums"),
    ]
    d = Drawing(720, 440)
    for k in range(4):
        d.text(158 + 64 * k, 20, f"d{k}", "middle")
        d.text(498 + 64 * k, 20, f"d{k}", "middle")
    for row, (name, before, partial, after, note) in enumerate(cases):
        top = 34 + 82 * row
        d.text(8, top + 30, name, "title")
        d.text(8, top + 48, note)
        for device in range(4):
            for left, held, hatched in ((132, before, partial), (472, after, False)):
                mine = [[[device] if device in cell else [] for cell in line] for line in held]
                d.grid(left + 64 * device, top, mine, 13, partial=hatched)
        d.line(398, top + 26, 458, top + 26, arrow=True)
    return d.svg()


def propagation() -> str:
    """Two annotated weights, what follows from them, and the one communication."""
    with FusionDefinition() as fd:
        x, w1, w2 = fd.define_tensor([8, 6]), fd.define_tensor([6, 16]), fd.define_tensor([16, 6])
        fd.add_output(fd.ops.matmul(fd.ops.gelu(fd.ops.matmul(x, w1)), w2))
        for t, axis in ((w1, 1), (w2, 0)):
            t.set_device_mesh(DeviceMesh(range(4)))
            divide(axis, X, 4)(t)
    assert [c.kind for c in fd.explain().communications] == ["all-reduce"]
    d = Drawing(760, 240)
    boxes = {  # middle, top, colour, text
        "x": (70, 130, PLAIN, "x [8, 6]"),
        "w1": (190, 30, ANNOTATED, "w1 [6, 16@x]"),
        "h": (220, 130, PLAIN, "h [8, 16@x]"),
        "g": (380, 130, PLAIN, "g [8, 16@x]"),
        "w2": (520, 30, ANNOTATED, "w2 [16@x, 6]"),
        "p": (545, 130, SENT, "partial sums"),
        "y": (695, 130, PLAIN, "y [8, 6]"),
    }
    for middle, top, colour, text in boxes.values():
        d.box(middle - 56, top, (112, 28), colour, text)
    arrows = (("x", "h", ""), ("h", "g", "gelu"), ("g", "p", ""), ("p", "y", "all-reduce"))
    for a, b, name in arrows:
        left, right = boxes[a][0] + 56, boxes[b][0] - 56
        d.line(left, 144, right, 144, arrow=True)
        d.text((left + right) / 2, 122, name, "middle")
    for a, b in (("w1", "h"), ("w2", "p")):
        d.line(boxes[a][0], 58, boxes[b][0], 130, arrow=True)
    d.text(220, 184, "matmul", "middle")
    d.text(545, 184, "matmul", "middle")
    legend = ((ANNOTATED, "annotated"), (PLAIN, "follows"), (SENT, "communicates"))
    for k, (colour, text) in enumerate(legend):
        d.box(20 + 150 * k, 208, (16, 16), colour)
        d.text(44 + 150 * k, 221, text)
    return d.svg()


def main() -> int:
    """Write the drawings, or check them."""
    drawings = (mesh, domains, did_loop_split, factors, propagation, resharding)
    texts = {FOLDER / f"{drawing.__name__}.svg": drawing() for drawing in drawings}
    stale = [p for p, text in texts.items() if not p.exists() or p.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is out of date: run tools/gen_pictures.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(texts[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
