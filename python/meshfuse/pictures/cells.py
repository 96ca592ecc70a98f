# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as grids of cells: single elements of small tensors, blocks of one owner of others.

A tensor of any size and number of axes has a bounded number of cells. What is left out is a cell of
its own, a gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .ownership import Ownership

ELEMENTS = 16  #: longest axis whose elements are shown one by one
RUNS = 12  #: most blocks of an axis that are shown
TOGETHER = 4096  #: most cells of axes that merges tie together
SLICES = 6  #: most slices of a tensor that are shown at once


@dataclass(frozen=True)
class Segment:
    """Indices ``start`` to ``stop - 1`` of an axis; all elements of it have one owner, or a gap."""

    start: int
    stop: int
    gap: bool = False


@dataclass(frozen=True)
class Group:
    """Axes that are divided together, and the places along mesh axes for each of their cells.

    ``places`` is row-major over the segments of ``dims`` that are no gaps.
    """

    dims: tuple[int, ...]
    places: list[dict[str, int]]


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
    segments: dict[int, list[Segment]] = {}
    groups = []
    for dims in groups_of(own):
        if len(dims) == 1:
            segments[dims[0]] = _runs(own, dims[0])
        else:
            segments |= _tied(own, dims)
        groups.append(Group(dims, list(_places(own, dims, segments))))
    return [segments[k] for k in range(len(own.dims))], groups


def _places(
    own: Ownership, dims: Sequence[int], segments: Mapping[int, Sequence[Segment]]
) -> Iterator[dict[str, int]]:
    whole = [[segment for segment in segments[k] if not segment.gap] for k in dims]
    for cell in itertools.product(*whole):
        yield own.places({own.dims[k]: s.start for k, s in zip(dims, cell, strict=True)})


def plane(
    segments: Sequence[Sequence[Segment]], groups: Sequence[Group]
) -> tuple[list[int], list[int]]:
    """Return the dims that a slice shows, rows and columns, and the others.

    These are the last two if there are few slices; otherwise divided ones as far as there are some.
    Of the others divided ones come last: slices that follow each other differ there.
    """
    ndim = len(segments)
    if math.prod(len(line) for line in segments[:-2]) <= SLICES:
        return list(range(ndim))[-2:], list(range(ndim))[:-2]
    divided = {k for group in groups for k in _varying(group, segments)}
    by_need = sorted(range(ndim), key=lambda k: (k in divided, len(segments[k]) > 1, k))
    return sorted(by_need[-2:]), by_need[:-2]


def _varying(group: Group, segments: Sequence[Sequence[Segment]]) -> Iterator[int]:
    """Yield the dims along which the owners of a group change."""
    stride = len(group.places)
    for k in group.dims:
        n = sum(not segment.gap for segment in segments[k])
        block, stride = stride, stride // max(n, 1)
        if any(
            place != group.places[i - stride]
            for i, place in enumerate(group.places)
            if i % block >= stride
        ):
            yield k


def _tied(own: Ownership, dims: Sequence[int]) -> dict[int, list[Segment]]:
    """Return the segments of dims that are divided together, most of them where owners change."""
    if any(own.shape[k] == 0 for k in dims):
        return {k: _elements(own.shape[k]) for k in dims}
    first = dict.fromkeys((own.dims[k] for k in dims), 0)
    ends = {k: own.places({**first, own.dims[k]: own.shape[k] - 1}) for k in dims}
    changing = [k for k in dims if ends[k] != own.places(first)]
    room = TOGETHER
    found: dict[int, list[Segment]] = {}
    for ks in (changing, [k for k in dims if k not in changing]):
        fits = (
            m for m in (ELEMENTS, 8, 4, 2, 1) if math.prod(min(own.shape[k], m) for k in ks) <= room
        )
        most = next(fits)
        found |= {k: _elements(own.shape[k], most) for k in ks}
        room //= math.prod(min(own.shape[k], most) for k in ks)
    return found


def _elements(n: int, most: int = ELEMENTS) -> list[Segment]:
    if n <= most:
        return [Segment(i, i + 1) for i in range(n)]
    if most == 1:
        return [Segment(0, 1), Segment(1, n, gap=True)]
    kept = min(RUNS, most - 1)
    first = [Segment(i, i + 1) for i in range(kept)]
    rest = [Segment(kept, n - 1, gap=True)] if kept < n - 1 else []
    return [*first, *rest, Segment(n - 1, n)]


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
