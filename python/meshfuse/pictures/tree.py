# SPDX-License-Identifier: BSD-3-Clause
"""The axes of a tensor as rows of boxes: logical, split and merged, loop, allocation."""

from __future__ import annotations

from typing import Any

from .ownership import Ownership


def tree_model(own: Ownership) -> dict[str, Any]:
    """Return the rows, each a list of boxes, and the lines between boxes of different rows.

    A box is ``{"ref", "extent", "kind", "mesh", "row", "place"}``, a line a pair of box numbers.
    """
    rows = _rows(own)
    boxes: list[dict[str, Any]] = []
    at: dict[tuple[int, str], int] = {}
    for r, (_, refs) in enumerate(rows):
        for place, ref in enumerate(refs):
            at[r, ref] = len(boxes)
            boxes.append(_box(own, ref) | {"row": r, "place": place})
    lines = []
    sources = {
        axis.ref: t.words[1:3] if t.words[0] == "merge" else t.words[1:2]
        for t in own.transforms
        for axis in t.made
    }
    for (r, ref), box in at.items():
        if (r - 1, ref) in at:
            lines.append([at[r - 1, ref], box])
            continue
        for source in sources.get(ref, ()):
            last = max((k for k in range(r) if (k, source) in at), default=None)
            if last is not None:
                lines.append([at[last, source], box])
    return {"rows": [name for name, _ in rows], "boxes": boxes, "lines": lines}


def _rows(own: Ownership) -> list[tuple[str, list[str]]]:
    rows = [("logical", own.logical)]
    if own.root != own.logical:
        rows.insert(0, ("root", own.root))
    current = own.logical
    for transform in own.schedule:
        merge = transform.words[0] == "merge"
        sources = transform.words[1:3] if merge else transform.words[1:2]
        if any(ref not in current for ref in sources):
            continue
        made = [axis.ref for axis in transform.made]
        at = current.index(sources[0])
        current = [
            ref
            for k, old in enumerate(current)
            for ref in (made if k == at else [] if old in sources else [old])
        ]
        rows.append(("", current))
    if rows[-1][0] == "" and sorted(rows[-1][1]) == sorted(own.loop):
        rows.pop()  # the same axes, in another order
    rows.append(("loop", own.loop))
    rows.append(("allocation", own.allocation))
    return [(name, list(refs)) for name, refs in rows]


def _box(own: Ownership, ref: str) -> dict[str, Any]:
    axis = own.axes[ref]
    mesh = f"mesh_{axis.parallel}" if axis.parallel in ("x", "y", "z") else axis.parallel
    return {"ref": ref, "extent": own.extent[ref], "kind": axis.kind, "mesh": mesh}
