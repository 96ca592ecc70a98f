# SPDX-License-Identifier: BSD-3-Clause
"""How one tensor axis is cut into factors, some of which are mesh axes.

A layout lists the factors of an axis, the outermost first: a mesh axis, a number, or ``REST``, the
one factor that is what remains. Blocks over mesh_x are ``(mesh_x, REST)``, a cyclic axis is
``(REST, mesh_x)``. A device holds the elements whose index along a mesh axis is the device's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ._C import DeviceMesh, ParallelType
from .exceptions import Error

REST = None
Factor: TypeAlias = ParallelType | int | None
Layout: TypeAlias = tuple[Factor, ...]
Sizes: TypeAlias = Mapping[ParallelType, int]

MESH_AXES = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


def mesh_axes(mesh: DeviceMesh) -> tuple[ParallelType, ...]:
    """Return the axes of a mesh, the outermost first: mesh_x is the last."""
    return MESH_AXES[mesh.rank - 1 :: -1]


def axis_sizes(mesh: DeviceMesh) -> dict[ParallelType, int]:
    """Return the size of each axis of a mesh."""
    return dict(zip(mesh_axes(mesh), mesh.shape, strict=True))


def devices_of(layout: Layout) -> list[ParallelType]:
    """Return the mesh axes in a layout, the outermost first."""
    return [factor for factor in layout if isinstance(factor, ParallelType)]


def simplified(factors: Sequence[Factor]) -> Layout:
    """Join serial factors that are next to each other; a number beside the rest is part of it."""
    result: list[Factor] = []
    for factor in factors:
        last = result[-1] if result else 1
        if factor == 1:
            continue
        if isinstance(factor, ParallelType) or not result or isinstance(last, ParallelType):
            result.append(factor)
        elif factor is REST or last is REST:
            result[-1] = REST
        else:
            result[-1] = last * factor
    return tuple(result) if REST in result else _with_rest(result)


def _with_rest(factors: Sequence[Factor]) -> Layout:
    """Make the innermost factor the rest, as the number of elements says its size."""
    serial = factors and not isinstance(factors[-1], ParallelType)
    return (*(factors[:-1] if serial else factors), REST)


def of_extent(layout: Layout, sizes: Sizes, extent: int) -> Layout:
    """Return the layout with its rest innermost, for an axis of so many elements.

    Two such layouts without mesh axes of size 1 are equal where the devices' elements are.
    """
    known = _product(layout, sizes)
    rest = -(-extent // known)
    filled = [rest if factor is REST else factor for factor in layout]
    kept = [f for f in filled if not isinstance(f, ParallelType) or sizes[f] != 1]
    return simplified(kept) if layout[-1] is not REST else simplified([*kept[:-1], REST])


def cut(layout: Layout, mesh_axis: ParallelType, size: int, split_factor: int) -> Layout:
    """Divide what every device holds into ``split_factor`` pieces and each over a mesh axis.

    Raises:
        meshfuse.Error: the pieces are not whole factors of the axis.
    """
    place = _open_at(layout, 0)
    left, factors = split_factor, list(layout)
    while left > 1:
        place = _take(factors, place, left)
        taken = factors[place]
        assert isinstance(taken, int)  # _take left a number
        left //= taken
        place = _open_at(factors, place + 1)
    if size == 1:  # no factor is needed for it
        return simplified([*factors[:place], mesh_axis, *factors[place:]])
    place = _take(factors, place, size)
    if factors[place] != size:
        raise Error(
            f"{size} devices of {mesh_axis.name} would hold pieces of an axis that other mesh axes "
            "cut between them"
        )
    factors[place] = mesh_axis
    return simplified(factors)


def _product(factors: Sequence[Factor], sizes: Sizes) -> int:
    """Return the product of all factors but the rest."""
    return math.prod(sizes[f] if isinstance(f, ParallelType) else f or 1 for f in factors)


def _open_at(factors: Sequence[Factor], start: int) -> int:
    """Return the next place that no mesh axis has; the rest is never used up."""
    return next(i for i in range(start, len(factors)) if not isinstance(factors[i], ParallelType))


def _take(factors: list[Factor], place: int, number: int) -> int:
    """Make the serial factor at ``place`` a divisor of a number, as great as it can be."""
    factor = factors[place]
    if factor is REST:
        factors[place : place + 1] = [number, REST]
    elif isinstance(factor, int) and factor > number and factor % number == 0:
        factors[place : place + 1] = [number, factor // number]
    elif not isinstance(factor, int) or number % factor != 0:
        raise Error(f"{factor} pieces do not divide into {number}, nor the reverse")
    return place


def split_factors(
    layout: Layout, order: Sequence[ParallelType], sizes: Sizes
) -> dict[ParallelType, int]:
    """Return for each mesh axis, cut in this order, the pieces that each device's part has before.

    Raises:
        meshfuse.Error: they depend on the number of elements.
    """
    factors, result = list(layout), {}
    for mesh_axis in order:
        place = factors.index(mesh_axis)
        before = factors[:place]
        if REST in before:
            raise Error(
                f"{mesh_axis.name} takes single elements in turn, so its pieces depend on the size "
                "of the axis"
            )
        result[mesh_axis] = _product(before, sizes)
        del factors[place]
    return result


def misfit(layout: Layout, sizes: Sizes, extent: int, *, uneven: bool) -> str | None:
    """Return why so many elements cannot be divided so, None where they can."""
    known = _product(layout, sizes)
    if extent % known == 0:
        return None
    over = " and ".join(f"{axis.name} ({sizes[axis]})" for axis in devices_of(layout))
    text = f"has size {extent}, which is not divisible by {known}, for {over}"
    blocks = len([f for f in layout if f is REST or isinstance(f, int) or sizes[f] > 1]) == 2
    if not blocks or layout[-1] is not REST:
        return (
            f"{text}; only the blocks of one mesh axis may be uneven. Choose a size that {known} "
            "divides"
        )
    if not uneven:
        return (
            f"{text}. Choose a size that {known} divides, or allow chunks of different sizes with "
            "FusionDefinition(uneven=True)"
        )
    return None
