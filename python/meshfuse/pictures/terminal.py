# SPDX-License-Identifier: BSD-3-Clause
"""The program as text for a terminal, in colours where ``rich`` is installed."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from .dot import communication_text, shard_text

_TINTS = ("sky_blue1", "orange1", "light_green", "pink1", "plum2", "khaki1", "turquoise2", "tan")
_SLICES = 4  #: most slices of a tensor

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
    for tensor in model["tensors"]:
        lines += [[], *_tensor(tensor, model["devices"])]
    return _coloured(lines) if colour else _plain(lines)


def _step(node: dict[str, Any], tensors: dict[str, Any]) -> Line:
    shapes = ", ".join(shard_text(tensors[name]) for name in node["names"] if name in tensors)
    line = [(", ".join(node["names"]), "bold"), (f" = {node['text']}  ", ""), (shapes, "cyan")]
    if node["communication"] is not None:
        line.append((f"  <- {communication_text(node['communication'])}", "bold dark_orange"))
    return line


def _tensor(tensor: dict[str, Any], devices: Sequence[int]) -> Iterator[Line]:
    where = tensor["mesh"] or "on no mesh"
    yield [(tensor["name"], "bold"), (f": {tensor['dtype']}{shard_text(tensor)} {where}", "")]
    if 0 in tensor["shape"]:
        yield [("  no elements", "dim")]
        return
    segments = tensor["segments"]
    outer = list(itertools.product(*(range(len(s)) for s in segments[:-2])))
    for at in outer[:_SLICES]:
        if at:
            ranges = [_range(segments[dim][s]) for dim, s in enumerate(at)]
            yield [(f"  [{', '.join([*ranges, ':', ':'])}]", "dim")]
        yield from _slice(tensor, at, devices)
    if len(outer) > _SLICES:
        yield [(f"  and {len(outer) - _SLICES} more slices", "dim")]


def _slice(
    tensor: dict[str, Any], outer: tuple[int, ...], devices: Sequence[int]
) -> Iterator[Line]:
    segments, ndim = tensor["segments"], len(tensor["segments"])
    rows = segments[-2] if ndim > 1 else [None]
    columns = segments[-1] if ndim else [None]
    heads = ["" if column is None else _range(column) for column in columns]
    sides = ["" if row is None else _range(row) for row in rows]
    cells = [
        [_owners(tensor, (*outer, r, c) if ndim > 1 else (c,)) for c in range(len(columns))]
        for r in range(len(rows))
    ]
    texts = [[_who(tensor, owners) for owners in line] for line in cells]
    width = max(map(len, itertools.chain(heads, *texts))) + 2
    left = max(map(len, sides)) + 2
    if ndim:
        yield [(" " * (left + 2) + "".join(f"{head:^{width}} " for head in heads), "dim")]
    for side, owners, line in zip(sides, cells, texts, strict=True):
        row: Line = [(f"{side:>{left}}  ", "dim")]
        for who, text in zip(owners, line, strict=True):
            row += [(f"{text:^{width}}", _style(who, devices)), (" ", "")]
        yield row


def _owners(tensor: dict[str, Any], at: Sequence[int]) -> list[int] | None:
    """Return the devices that hold a cell; None: it stands for what is left out."""
    wanted: dict[str, int] = {}
    for group in tensor["groups"]:
        k = 0
        for dim in group["dims"]:
            k = k * len(tensor["segments"][dim]) + at[dim]
        if group["places"][k] is None:
            return None
        wanted |= group["places"][k]
    coordinates = tensor["coordinates"]
    return [d for d in tensor["devices"] if wanted.items() <= coordinates[str(d)].items()]


def _who(tensor: dict[str, Any], owners: list[int] | None) -> str:
    if owners is None:
        return "..."
    text = " ".join(map(str, owners)) if len(owners) <= 4 else f"{len(owners)} devices"
    return f"+{text}" if tensor["partial"] else text


def _style(owners: list[int] | None, devices: Sequence[int]) -> str:
    if owners is None:
        return "dim"
    if len(owners) != 1:
        return "black on grey78"
    return f"black on {_TINTS[devices.index(owners[0]) % len(_TINTS)]}"


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
