# SPDX-License-Identifier: BSD-3-Clause
"""Whether two shardings give every device the same elements, whatever the shapes of the meshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ._C import DeviceMesh, ParallelType
from .axis_layout import Layout, Sizes, axis_sizes, devices_of, mesh_axes, of_extent


class _Digit(NamedTuple):
    """Of an axis cut into ``outer * size`` equal pieces, those with ``i % size == place``."""

    outer: int
    size: int
    place: int


def same_parts(
    ours: Mapping[int, Layout],
    our_mesh: DeviceMesh,
    theirs: Mapping[int, Layout],
    their_mesh: DeviceMesh,
    shape: Sequence[int],
) -> list[int]:
    """Return the tensor axes that the two divide differently over the devices of ``our_mesh``.

    All devices of ``our_mesh`` are in ``their_mesh`` too.
    """
    if our_mesh == their_mesh:
        sizes = axis_sizes(our_mesh)
        return [
            k
            for k, extent in enumerate(shape)
            if _canonical(ours.get(k), sizes, extent) != _canonical(theirs.get(k), sizes, extent)
        ]
    return [
        k
        for k, extent in enumerate(shape)
        if any(
            _piece(ours.get(k), our_mesh, extent, device)
            != _piece(theirs.get(k), their_mesh, extent, device)
            for device in our_mesh.devices
        )
    ]


def _canonical(layout: Layout | None, sizes: Sizes, extent: int) -> Layout | None:
    if layout is None or extent == 0:
        return None
    layout = of_extent(layout, sizes, extent)
    return layout if devices_of(layout) else None


def _piece(layout: Layout | None, mesh: DeviceMesh, extent: int, device: int) -> list[_Digit]:
    """Return which pieces a device holds; neighbouring mesh axes count as one."""
    sizes = axis_sizes(mesh)
    layout = _canonical(layout, sizes, extent)
    if layout is None:
        return []
    coordinates = mesh.index_of(device)
    assert coordinates is not None  # the caller gives devices of the mesh
    index = dict(zip(mesh_axes(mesh), coordinates, strict=True))
    digits: list[_Digit] = []
    outer = 1
    for factor in layout[:-1]:  # the last is the rest
        if isinstance(factor, ParallelType):
            digits.append(_Digit(outer, sizes[factor], index[factor]))
        outer *= sizes[factor] if isinstance(factor, ParallelType) else factor or 1
    # Chunks of chunks are not the chunks of a longer axis where sizes do not divide.
    return _joined(digits) if extent % outer == 0 else digits


def _joined(digits: Sequence[_Digit]) -> list[_Digit]:
    result: list[_Digit] = []
    for digit in digits:
        if result and result[-1].outer * result[-1].size == digit.outer:
            last = result.pop()
            place = last.place * digit.size + digit.place
            digit = _Digit(last.outer, last.size * digit.size, place)
        result.append(digit)
    return result
