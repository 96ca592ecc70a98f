# SPDX-License-Identifier: BSD-3-Clause
"""Placements of torch's DTensors, one per mesh dim, as layouts of tensor axes and back."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._C import DeviceMesh, ParallelType
from .axis_layout import (
    REST,
    Layout,
    axis_sizes,
    cut,
    devices_of,
    mesh_axes,
    of_extent,
    split_factors,
)
from .exceptions import Error
from .limits import MAX_AXES, MAX_SIZE

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

# Torch works the devices of a mesh out anew each time that it is asked for them.
_known_meshes: weakref.WeakKeyDictionary[Any, DeviceMesh] = weakref.WeakKeyDictionary()

# Reductions of partial values that both torch and meshfuse have.
REDUCE_OPS = ("sum", "avg", "product", "max", "min", "band", "bor", "bxor")


def mesh_of(device_mesh: Any, caller: str = "from_placements") -> DeviceMesh:
    """Return the mesh with the devices and the names of a mesh of torch.

    Args:
        device_mesh: A mesh of torch, or one of meshfuse, which is returned.
        caller: What messages begin with.

    Raises:
        meshfuse.Error: it has more than three dims.
        TypeError: it is not a mesh.
    """
    if isinstance(device_mesh, DeviceMesh):
        return device_mesh
    if not hasattr(device_mesh, "mesh_dim_names"):
        raise TypeError(
            f"{caller}: expected a DeviceMesh of torch.distributed or of meshfuse, but got "
            f"{type(device_mesh).__name__}"
        )
    if device_mesh not in _known_meshes:
        _known_meshes[device_mesh] = _read_mesh(device_mesh, caller)
    return _known_meshes[device_mesh]


def _read_mesh(device_mesh: Any, caller: str) -> DeviceMesh:
    devices = device_mesh.mesh
    if devices.dim() > 3:
        raise Error(
            f"{caller}: {device_mesh} has {devices.dim()} dims, but a mesh has at most 3: "
            "mesh_z, mesh_y and mesh_x. Flatten dims that divide no tensor by themselves."
        )
    names = device_mesh.mesh_dim_names or ()
    reserved = any(name.startswith("mesh_") for name in names)
    return DeviceMesh(devices, names=() if reserved else tuple(names))


def read_placements(
    placements: Iterable[Any], mesh: DeviceMesh, ndim: int | None
) -> tuple[dict[int, Layout], dict[ParallelType, str]]:
    """Return the layouts of the divided axes, and the reductions of mesh axes that are partial.

    Raises:
        meshfuse.Error: a placement cannot be expressed.
    """
    from torch.distributed.tensor import Partial, Replicate

    given = list(placements)
    axes, sizes = mesh_axes(mesh), axis_sizes(mesh)
    if len(given) != len(axes):
        raise Error(
            f"from_placements: {len(given)} placements were given for {mesh!r}, which has "
            f"{len(axes)} dims. Give one placement per mesh dim."
        )
    layouts: dict[int, Layout] = {}
    partial: dict[ParallelType, str] = {}
    for number, (placement, mesh_axis) in enumerate(zip(given, axes, strict=True)):
        where = f"placement {number}, {placement!r} on {mesh_axis.name}"
        if isinstance(placement, Partial):
            partial[mesh_axis] = _reduce_op(placement, where)
        elif hasattr(placement, "dim"):
            dim = _axis(placement.dim, ndim, where)
            pieces = getattr(placement, "split_factor", 1)
            if not isinstance(pieces, int) or not 1 <= pieces <= MAX_SIZE // sizes[mesh_axis]:
                raise Error(
                    f"from_placements: {where} divides each of {pieces} pieces of axis {dim}, but "
                    f"split_factor is at least 1, and the product with the {sizes[mesh_axis]} "
                    f"devices at most {MAX_SIZE}. Give the number of pieces that later mesh dims "
                    "make."
                )
            try:
                layouts[dim] = cut(layouts.get(dim, (REST,)), mesh_axis, sizes[mesh_axis], pieces)
            except Error as error:
                raise Error(
                    f"from_placements: {where} cannot be expressed by splits of axis {dim}: "
                    f"{error}. Redistribute the tensor to Shard placements."
                ) from None
        elif not isinstance(placement, Replicate):
            raise Error(
                f"from_placements: {where} is not a placement that meshfuse knows. Use Shard, "
                "_StridedShard, Replicate or Partial."
            )
    return layouts, partial


def write_placements(
    layouts: Mapping[int, Layout],
    partial: Mapping[ParallelType, str],
    mesh: DeviceMesh,
    shape: Sequence[int] | None = None,
) -> tuple[Placement, ...]:
    """Return one placement per mesh dim. ``shape``: global sizes, if they are known.

    Raises:
        meshfuse.Error: an axis is divided in a way that placements cannot express.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    axes, sizes = mesh_axes(mesh), axis_sizes(mesh)
    result: dict[ParallelType, Placement] = {axis: Partial(op) for axis, op in partial.items()}
    for dim, given in layouts.items():
        layout = given
        if shape is not None and layout[-1] is not REST:
            layout = of_extent(layout, sizes, shape[dim])
        devices = devices_of(layout)
        try:
            factors = split_factors(layout, [axis for axis in axes if axis in devices], sizes)
        except Error as error:
            raise Error(
                f"placements: axis {dim} cannot be expressed by placements: {error}. Give its "
                "size: placements(shape=...)."
            ) from None
        for axis, pieces in factors.items():
            result[axis] = Shard(dim) if pieces == 1 else _StridedShard(dim, split_factor=pieces)
    return tuple(result.get(axis, Replicate()) for axis in axes)


def _reduce_op(placement: Any, where: str) -> str:
    from torch.distributed.tensor import Partial

    op = placement.reduce_op
    if type(placement) is not Partial or op not in REDUCE_OPS:
        raise Error(
            f"from_placements: {where} is a partial value that meshfuse cannot express. It has "
            f"Partial of {', '.join(REDUCE_OPS)}; redistribute the tensor first."
        )
    return str(op)


def _axis(dim: Any, ndim: int | None, where: str) -> int:
    """Return the axis, counted from the front where the number of axes is known."""
    if not isinstance(dim, int):
        raise Error(f"from_placements: {where} names no axis. Give a number, as in Shard(0).")
    known = MAX_AXES if ndim is None else ndim
    if not -known <= dim < known:
        has = f"with {known} axes" if ndim is not None else f"of at most {known} axes"
        raise Error(
            f"from_placements: {where} names axis {dim} of a tensor {has}. Use one from {-known} "
            f"to {known - 1}."
        )
    return dim if ndim is None else dim % ndim
