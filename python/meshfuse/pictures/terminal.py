# SPDX-License-Identifier: BSD-3-Clause
"""The program as text for a terminal, in colours where ``rich`` is installed."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .cells import SLICES
from .dot import communication_text, shard_text
from .ownership import MeshShape
from .palette import TERMINAL_TINTS

_NAMED = 4  #: most devices that a cell names

#: Devices of a cell, the first ones by number, and how many there are.
Owners = tuple[list[int], int]
#: Pieces of a line: text and the style that ``rich`` gives it.
Line = list[tuple[str, str]]


def terminal_text(model: dict[str, Any], colour: bool) -> str:
    """Return the steps of a program, then who holds what of every tensor."""
    lines: list[Line] = []
    names = {tensor["name"]: tensor for tensor in model["tensors"]}
    for name, number in model["assumed"].items():
        lines.append([(f"{name} is open and drawn as {number}", "italic")])
    for node in model["nodes"]:
        lines.append(_step(node, names))
    meshes = [_shape(mesh) for mesh in model["meshes"]]
    numbers = {device: k for k, device in enumerate(_numbers(model["devices"]))}
    for tensor in model["tensors"]:
        where = model["meshes"][tensor["mesh"]]["text"]
        head = f": {tensor['dtype']}{shard_text(tensor)} {where}"
        lines += [[], [(tensor["name"], "bold"), (head, "")]]
        lines += _tensor(tensor, meshes[tensor["mesh"]], numbers)
    if not model["tensors"]:
        lines += [[], [("no tensors", "dim")]]
    return _coloured(lines) if colour else _plain(lines)


def _step(node: dict[str, Any], tensors: dict[str, Any]) -> Line:
    shapes = ", ".join(shard_text(tensors[name]) for name in node["names"] if name in tensors)
    line = [(", ".join(node["names"]), "bold"), (f" = {node['text']}  ", "")]
    line.append((shapes or "scalar", "cyan"))
    if node["communication"] is not None:
        line.append((f"  <- {communication_text(node['communication'])}", "bold dark_orange"))
    return line


def _shape(mesh: Mapping[str, Any]) -> MeshShape:
    return MeshShape(mesh["axes"], mesh["sizes"], (), tuple(_numbers(mesh["devices"])))


def _numbers(devices: int | Sequence[int]) -> Sequence[int]:
    return range(devices) if isinstance(devices, int) else devices


def _tensor(tensor: dict[str, Any], mesh: MeshShape, numbers: Mapping[int, int]) -> Iterator[Line]:
    if 0 in tensor["shape"]:
        yield [("  no elements", "dim")]
        return
    segments, outer = tensor["segments"], tensor["outer"]
    whole = [[k for k, segment in enumerate(segments[dim]) if not segment[2]] for dim in outer]
    for at in itertools.islice(itertools.product(*whole), SLICES):
        fixed = dict(zip(outer, at, strict=True))
        if outer:
            texts = [
                _range(segments[dim][fixed[dim]]) if dim in fixed else ":"
                for dim in range(len(segments))
            ]
            yield [(f"  [{', '.join(texts)}]", "dim")]
        yield from _slice(tensor, fixed, mesh, numbers)
    count = math.prod(len(segments[dim]) for dim in outer)
    left = count - min(math.prod(map(len, whole)), SLICES)
    if left > 0:
        yield [(f"  and {left} more slice{'' if left == 1 else 's'}", "dim")]


def _slice(
    tensor: dict[str, Any], fixed: Mapping[int, int], mesh: MeshShape, numbers: Mapping[int, int]
) -> Iterator[Line]:
    segments, across = tensor["segments"], tensor["plane"]
    rows = segments[across[0]] if len(across) > 1 else [None]
    columns = segments[across[-1]] if across else [None]
    heads = ["" if column is None else _range(column) for column in columns]
    sides = ["" if row is None else _range(row) for row in rows]

    def owners_at(*place: int) -> Owners | None:
        shown = zip(across, place[2 - len(across) :], strict=True)
        return _owners(tensor, {**fixed, **dict(shown)}, mesh)

    cells = [[owners_at(r, c) for c in range(len(columns))] for r in range(len(rows))]
    texts = [[_who(tensor, owners) for owners in line] for line in cells]
    width = max(map(len, itertools.chain(heads, *texts))) + 2
    left = max(map(len, sides)) + 2
    if across:
        yield [(" " * (left + 2) + "".join(f"{head:^{width}} " for head in heads), "dim")]
    for side, owners, line in zip(sides, cells, texts, strict=True):
        row: Line = [(f"{side:>{left}}  ", "dim")]
        for who, text in zip(owners, line, strict=True):
            row += [(f"{text:^{width}}", _style(who, numbers)), (" ", "")]
        yield row


def _owners(tensor: dict[str, Any], at: Mapping[int, int], mesh: MeshShape) -> Owners | None:
    """Return the devices that hold a cell; None: it stands for what is left out."""
    segments = tensor["segments"]
    if any(segments[dim][k][2] for dim, k in at.items()):
        return None
    wanted: dict[str, int] = {}
    for group in tensor["groups"]:
        k = 0
        for dim in group["dims"]:
            gaps = [segment[2] for segment in segments[dim]]
            k = k * gaps.count(False) + gaps[: at[dim]].count(False)
        wanted |= group["places"][k]
    sizes = dict(zip(mesh.axes, mesh.sizes, strict=True))
    count = math.prod(size for axis, size in sizes.items() if axis not in wanted)
    return list(itertools.islice(mesh.at(wanted), _NAMED)), count


def _who(tensor: dict[str, Any], owners: Owners | None) -> str:
    if owners is None:
        return "..."
    first, count = owners
    text = " ".join(map(str, first)) if count <= _NAMED else f"{count} devices"
    return f"+{text}" if tensor["partial"] else text


def _style(owners: Owners | None, numbers: Mapping[int, int]) -> str:
    if owners is None:
        return "dim"
    if owners[1] != 1:
        return "black on grey78"
    tint = TERMINAL_TINTS[numbers[owners[0][0]] % len(TERMINAL_TINTS)]
    return f"black on color({tint})"


def _range(segment: Sequence[int]) -> str:
    start, stop, gap = segment
    return "..." if gap else f"{start}" if stop - start == 1 else f"{start}:{stop}"


def _plain(lines: list[Line]) -> str:
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _coloured(lines: list[Line]) -> str:
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return _plain(lines)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="256", width=10_000)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True, highlight=False)
    return out.getvalue()
