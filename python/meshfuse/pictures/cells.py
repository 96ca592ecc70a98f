# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as grids of cells: single elements of small tensors, blocks of one owner of others.

A tensor of any size has a bounded number of cells. What is left out is a cell of its own, a gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .ownership import Index, Ownership

ELEMENTS = 16  #: longest axis whose elements are shown one by one
RUNS = 12  #: most blocks of an axis that are shown, and most elements of axes that are merged
MEMORY_CELLS = 48  #: most cells of one device's memory
MEMORY_DEVICES = 16  #: most different parts whose memory is shown


@dataclass(frozen=True)
class Segment:
    """Indices ``start`` to ``stop - 1`` of an axis; all elements of it have one owner, or a gap."""

    start: int
    stop: int
    gap: bool = False


@dataclass(frozen=True)
class Group:
    """Axes that are divided together, and the places along mesh axes for each of their cells.

    ``places`` is row-major over the segments of ``dims``; None stands for a gap.
    """

    dims: tuple[int, ...]
    places: list[dict[str, int] | None]


def groups_of(own: Ownership) -> list[tuple[int, ...]]:
    """Return the dims that merges tie together, as a device axis depends on all of them."""
    tied: dict[str, set[str]] = {ref: {ref} for ref in own.logical}
    for transform in own.schedule:
        merge = transform.words[0] == "merge"
        sources = transform.words[1:3] if merge else transform.words[1:2]
        union = set().union(*(tied.get(ref, {ref}) for ref in sources))
        for axis in transform.made:
            tied[axis.ref] = union
    together = [
        tied[ref] & set(own.dims) for ref in own.on_mesh.values() if len(tied.get(ref, ())) > 1
    ]
    result: list[set[str]] = []
    for refs in [*({ref} for ref in own.dims), *together]:
        joined = set(refs).union(*(g for g in result if g & refs))
        result = [g for g in result if not g & refs] + [joined]
    return sorted(tuple(sorted(own.dims.index(ref) for ref in g)) for g in result)


def grid(own: Ownership) -> tuple[list[list[Segment]], list[Group]]:
    """Return the segments of every dim, and who holds them."""
    segments: list[list[Segment]] = [[] for _ in own.dims]
    groups = []
    for dims in groups_of(own):
        for k in dims:
            n = own.shape[k]
            segments[k] = _elements(n) if len(dims) > 1 else _runs(own, k)
        groups.append(Group(dims, list(_places(own, dims, segments))))
    return segments, groups


def _places(
    own: Ownership, dims: Sequence[int], segments: Sequence[Sequence[Segment]]
) -> Iterator[dict[str, int] | None]:
    for cell in itertools.product(*(segments[k] for k in dims)):
        gap = any(segment.gap for segment in cell)
        starts = {own.dims[k]: segment.start for k, segment in zip(dims, cell, strict=True)}
        yield None if gap else own.places(starts)


def _elements(n: int) -> list[Segment]:
    if n <= ELEMENTS:
        return [Segment(i, i + 1) for i in range(n)]
    first = [Segment(i, i + 1) for i in range(RUNS)]
    return [*first, Segment(RUNS, n - 1, gap=True), Segment(n - 1, n)]


def _runs(own: Ownership, dim: int) -> list[Segment]:
    n, ref = own.shape[dim], own.dims[dim]
    if n <= ELEMENTS:
        return _elements(n)
    runs: list[Segment] = []
    start = 0
    while start < n and len(runs) <= RUNS:
        stop = _end_of_run(own, ref, start, n)
        runs.append(Segment(start, stop))
        start = stop
    if start < n - 1:  # more than there is room for
        runs.append(Segment(start, n - 1, gap=True))
        start = n - 1
    return runs if start == n else [*runs, Segment(n - 1, n)]


def _end_of_run(own: Ownership, ref: str, start: int, n: int) -> int:
    """Return the first index behind ``start`` that another device holds."""
    here, at = own.places({ref: start}), start
    while at < n:
        at += _unchanged(own, ref, at, n)
        if at < n and own.places({ref: at}) != here:
            return at
    return n


def _unchanged(own: Ownership, ref: str, at: int, n: int) -> int:
    """Return for how many steps no split that leads to a device moves on to its next piece."""
    needed = set(own.on_mesh.values())
    for transform in reversed(own.schedule):
        if any(axis.ref in needed for axis in transform.made):
            needed.update(
                transform.words[1:3] if transform.words[0] == "merge" else transform.words[1:2]
            )
    steps, value = n - at, {ref: at}
    for transform in own.schedule:
        source = transform.words[1]
        if transform.words[0] != "split" or source not in value or source not in needed:
            continue
        outer, inner = (axis.ref for axis in transform.made)
        size = max(own.extent[inner], 1)
        value[inner] = value[source] % size  # moves on in step with the index, as its source does
        steps = min(steps, size - value[inner])
        if inner in own.on_mesh.values():
            return 1
        del outer  # moves on where the inner axis begins anew
    return max(steps, 1)


def memory_model(own: Ownership, shown: Sequence[int]) -> list[dict[str, Any]]:
    """Return what devices have in memory, in order; blocks are from first to last element.

    Devices with the same elements share an entry.
    """
    axes = [ref for ref in own.memory_axes() if own.extent[ref] != 1]
    total = math.prod(own.extent[ref] for ref in axes)
    within = axes[-1:] if total > MEMORY_CELLS else []
    replicas: dict[tuple[int, ...], list[int]] = {}
    for device in own.mesh.devices:
        places = own.mesh.coordinates(device)
        replicas.setdefault(tuple(places[axis] for axis in own.on_mesh), []).append(device)
    result = []
    for devices in list(replicas.values())[:MEMORY_DEVICES]:
        device = devices[0]
        blocks = own.memory_blocks(device, within)
        cells = [
            [_kept(first, shown), _kept(last, shown)]
            for first, last in itertools.islice(blocks, MEMORY_CELLS)
        ]
        more = next(blocks, None) is not None
        result.append(
            {"devices": devices, "count": own.count(device), "cells": cells, "more": more}
        )
    return result


def _kept(index: Index, shown: Sequence[int]) -> list[int]:
    return [index[k] for k in shown]
