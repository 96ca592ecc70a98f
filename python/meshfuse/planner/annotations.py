# SPDX-License-Identifier: BSD-3-Clause
"""Annotations of tensors: which are possible, how they are made, and how they are written."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .._C import DeviceMesh, ParallelType, TensorView
from ..axis_layout import REST, Layout, axis_sizes, mesh_axes
from ..sharding import make_sharding
from ..tensor_sharding import tensor_axes

__all__ = [
    "Annotation",
    "annotate",
    "is_annotated",
    "possible_annotations",
    "python_text",
    "sharding_text",
]


@dataclass(frozen=True)
class Annotation:
    """How a tensor lies on the mesh.

    Attributes:
        axes: For each axis of the mesh, outermost first, the tensor axis that it divides; None for
            a mesh axis over which the tensor is whole.
    """

    axes: tuple[int | None, ...]

    @property
    def count(self) -> int:
        """Number of mesh axes that divide the tensor."""
        return sum(axis is not None for axis in self.axes)

    def by_mesh_axis(self) -> dict[str, int]:
        """Return the tensor axis by name of the mesh axis that divides it."""
        names = [f"mesh_{letter}" for letter in "xyz"[: len(self.axes)][::-1]]
        return {name: axis for name, axis in zip(names, self.axes, strict=True) if axis is not None}


def possible_annotations(
    tv: TensorView, mesh: DeviceMesh, sizes: Mapping[str, int]
) -> Iterator[Annotation]:
    """Return the annotations that divide a tensor evenly, from whole to most divided.

    Axes of open size are divided only where ``sizes`` has their value, since the annotation has to
    fit every size otherwise.
    """
    extents = [_extent(str(size), sizes) for size in tv.shape()]
    plain = [not axis.is_broadcast() for axis in tensor_axes(tv)]
    counts = mesh.shape
    choices: list[list[int | None]] = [
        [None] if count == 1 else [None, *(k for k, ok in enumerate(plain) if ok)]
        for count in counts
    ]
    for axes in itertools.product(*choices):
        parts = [
            math.prod(n for n, axis in zip(counts, axes, strict=True) if axis == k)
            for k in range(len(extents))
        ]
        if all(_fits(n, p) for n, p in zip(extents, parts, strict=True)):
            yield Annotation(axes)


def _fits(extent: int | None, parts: int) -> bool:
    return parts == 1 or (extent is not None and extent > 0 and extent % parts == 0)


def _extent(text: str, sizes: Mapping[str, int]) -> int | None:
    return int(text) if text.isdigit() else sizes.get(text)


def is_annotated(tv: TensorView) -> bool:
    """Whether the user has laid the tensor out: on a mesh, split, or divided."""
    loop = tv.get_loop_domain()
    serial = all(axis.get_parallel_type() == ParallelType.serial for axis in loop)
    return tv.has_device_mesh() or not serial or loop != tv.get_logical_domain()


def annotate(tv: TensorView, mesh: DeviceMesh, annotation: Annotation) -> None:
    """Make an annotation on a tensor that has none."""
    tv.set_device_mesh(mesh)
    for place, count, mesh_axis in _splits(tv, mesh, annotation):
        tv.outer_split(place, count)
        tv.axis(place).parallelize(mesh_axis)


def python_text(tv: TensorView, mesh: DeviceMesh, annotation: Annotation) -> str:
    """Return the Python lines of an annotation; the tensor is called as the IR names it."""
    lines = [f"{tv.name}.set_device_mesh({mesh_text(mesh)})"]
    for place, count, mesh_axis in _splits(tv, mesh, annotation):
        lines.append(f"{tv.name}.outer_split({place}, {count})")
        lines.append(f"{tv.name}.axis({place}).parallelize(meshfuse.ParallelType.{mesh_axis.name})")
    return "\n".join(lines)


def sharding_text(tv: TensorView, mesh: DeviceMesh, annotation: Annotation) -> str:
    """Return the same as a line of ``set_sharding``."""
    outer_first = list(zip(mesh_axes(mesh), annotation.axes, strict=True))
    layouts: dict[int, Layout] = {
        k: (*(mesh_axis for mesh_axis, axis in outer_first if axis == k), REST)
        for k in annotation.axes
        if k is not None
    }
    sharding = make_sharding(mesh, layouts, ndim=len(tensor_axes(tv)))
    spec = sharding.to_partition_spec()
    made = f"meshfuse.from_partition_spec({spec!r}, mesh={mesh_text(mesh)})"
    return f"{tv.name}.set_sharding({made})"


def mesh_text(mesh: DeviceMesh) -> str:
    """Return the Python expression of a mesh."""
    devices = list(mesh.devices)
    consecutive = devices == list(range(len(devices)))
    listed = f"torch.arange({len(devices)})" if consecutive else f"torch.tensor({devices})"
    names = f", names={list(mesh.names)}" if any(mesh.names) else ""
    if len(mesh.shape) > 1:
        return f"meshfuse.DeviceMesh({listed}.reshape{tuple(mesh.shape)}{names})"
    return f"meshfuse.DeviceMesh({f'range({len(devices)})' if consecutive else devices}{names})"


def _splits(
    tv: TensorView, mesh: DeviceMesh, annotation: Annotation
) -> list[tuple[int, int, ParallelType]]:
    """Return the outer splits in order: place in the loop domain, number of parts, mesh axis."""
    loop, logical = tv.get_loop_domain(), tensor_axes(tv)
    counts = axis_sizes(mesh)
    outer_first = list(zip(mesh_axes(mesh), annotation.axes, strict=True))
    splits = []
    for k in reversed(range(len(logical))):  # splits move the axes behind them
        place = loop.index(logical[k])
        for mesh_axis, axis in outer_first:
            if axis == k:
                splits.append((place, counts[mesh_axis], mesh_axis))
                place += 1
    return splits
