# SPDX-License-Identifier: BSD-3-Clause
"""The memory of devices as strips of cells: single elements of small parts, blocks of others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from .ownership import Block, Index, Ownership, product

MEMORY_CELLS = 48  #: most cells of one device's memory
MEMORY_DEVICES = 16  #: most different parts whose memory is shown
NAMED = 8  #: most replicas of a part that are named
_LOOKS = 64  #: elements of a block that are compared with those of a box


def memory_model(own: Ownership, shown: Sequence[int]) -> list[dict[str, Any]]:
    """Return what devices have in memory, in order; a cell is its text and its first element.

    Devices with the same elements share an entry.
    """
    axes = [ref for ref in own.memory_axes() if own.extent[ref] != 1]
    total = math.prod(own.extent[ref] for ref in axes)
    within = axes[-1:] if total > MEMORY_CELLS else []
    divided = [axis for axis in own.mesh.axes if axis in own.on_mesh]
    sizes = dict(zip(own.mesh.axes, own.mesh.sizes, strict=True))
    ranges = [range(sizes[axis]) for axis in divided]
    result = []
    for places in itertools.islice(product(ranges), MEMORY_DEVICES):
        replicas = own.mesh.at(dict(zip(divided, places, strict=True)))
        devices = list(itertools.islice(replicas, NAMED))
        blocks = own.memory_blocks(devices[0], within)
        cells = []
        for block in itertools.islice(blocks, MEMORY_CELLS):
            text = block_text(block, shown, bool(within) and _is_linear(own, within[0]))
            cells.append([text, _kept(block.at(0), shown)])
        result.append(
            {
                "devices": devices,
                "replicas": own.mesh.size // math.prod(map(len, ranges)),
                "count": own.count(devices[0]),
                "cells": cells,
                "more": next(blocks, None) is not None,
            }
        )
    return result


def block_text(block: Block, shown: Sequence[int], linear: bool) -> str:
    """Return a block as slices, ``3,0:47:2``; as its ends, where slices do not say it.

    Args:
        block: What lies together.
        shown: Dims that the text has.
        linear: Whether each step in memory goes as far along one dim.
    """
    first, last = _kept(block.at(0), shown), _kept(block.at(block.count - 1), shown)
    spans = [b - a for a, b in zip(first, last, strict=True)]
    moving = [k for k, span in enumerate(spans) if span]
    steps = [1] * len(spans)
    if linear and moving:
        steps[moving[0]] = spans[moving[0]] // (block.count - 1)
    elif not _is_box(block, shown, first, spans):
        return f"{_slices(first, first, steps)} \u2026 {_slices(last, last, steps)}"
    return _slices(first, last, steps)


def _slices(first: Sequence[int], last: Sequence[int], steps: Sequence[int]) -> str:
    parts = []
    for a, b, step in zip(first, last, steps, strict=True):
        parts.append(f"{a}" if a == b else f"{a}:{b + 1}" + (f":{step}" if step > 1 else ""))
    return ",".join(parts) or "\u00b7"


def _is_box(block: Block, shown: Sequence[int], first: Sequence[int], spans: list[int]) -> bool:
    """Return whether a block is all elements between its ends, in row-major order."""
    if any(span < 0 for span in spans) or math.prod(span + 1 for span in spans) != block.count:
        return False
    step = max(block.count // _LOOKS, 1)
    for k in itertools.islice(range(0, block.count, step), _LOOKS):
        here, left = [], k
        for start, span in zip(reversed(first), reversed(spans), strict=True):
            left, place = divmod(left, span + 1)
            here.append(start + place)
        if _kept(block.at(k), shown) != here[::-1]:
            return False
    return True


def _is_linear(own: Ownership, ref: str) -> bool:
    """Return whether an axis comes from one logical axis by splits alone."""
    for transform in reversed(own.schedule):
        if any(axis.ref == ref for axis in transform.made):
            if transform.words[0] == "merge":
                return False
            ref = transform.words[1]
    return True


def _kept(index: Index, shown: Sequence[int]) -> list[int]:
    return [index[k] for k in shown]
