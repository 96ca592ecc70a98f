# SPDX-License-Identifier: BSD-3-Clause
"""DTensors as inputs: whether they are divided as a program says."""

from __future__ import annotations

import math
import weakref
from typing import Any

from ._C import DeviceMesh, TensorView
from .axis_layout import axis_sizes, misfit
from .definition import FusionDefinition
from .device_parts import same_parts
from .exceptions import Error
from .sharding import Sharding, make_sharding, mesh_text, placed
from .tensor_sharding import constant, set_sharding, sharding_of, tensor_axes
from .translation import clone

# Copies of definitions without a mesh, by the shardings of their inputs.
_placed: weakref.WeakKeyDictionary[FusionDefinition, dict[Any, FusionDefinition]] = (
    weakref.WeakKeyDictionary()
)


def local_part(value: Any) -> Any:
    """Return this rank's part of a DTensor, complete; numbers as they are."""
    if not hasattr(value, "to_local"):
        return value
    part = value.to_local()
    return part.wait() if hasattr(part, "wait") else part  # a collective may be under way


def program_for(fd: FusionDefinition, inputs: list[Any]) -> FusionDefinition:
    """Return the definition, or a copy placed as the inputs are where it has no mesh.

    Raises:
        meshfuse.Error: an input is divided otherwise than the program says.
    """
    fusion = fd._executor().fusion()
    declared = [
        (k, tv, value)
        for k, (tv, value) in enumerate(zip(fusion.inputs(), inputs, strict=False))
        if isinstance(tv, TensorView) and hasattr(value, "to_local") and _fits(tv, value)
    ]
    given = {k: sharding_of_dtensor(k, value) for k, _, value in declared}
    meshes = {t.get_device_mesh() for t in fusion.tensors() if t.has_device_mesh()}
    if not meshes:
        placed = any(_is_placed(sharding) for sharding in given.values())
        return _placed_copy(fd, given) if placed else fd
    devices = sorted({device for mesh in meshes for device in mesh.devices})
    for k, tv, value in declared:
        _check(k, tv, value, given[k], devices)
    return fd


def sharding_of_dtensor(position: int, dtensor: Any) -> Sharding:
    """Return how a DTensor is divided.

    Raises:
        meshfuse.Error: it is partial, or placed in a way that has no name in meshfuse.
    """
    placements = placements_of(dtensor)
    try:
        sharding = placed(placements, dtensor.device_mesh, dtensor.dim())
    except Error as error:
        raise Error(f"execute_with_dtensors: input {position}: {error}") from None
    for mesh_axis, op in sharding.partial:
        raise Error(
            f"execute_with_dtensors: input {position} is partial ({op}) on {mesh_axis.name}: "
            f"placements {list(placements)}. An input holds whole values; call "
            "redistribute(placements=[...]) with Replicate() or Shard(dim) there first."
        )
    return sharding


def placements_of(dtensor: Any) -> tuple[Any, ...]:
    """Return placements that say in which order mesh dims cut an axis, which torch notes apart."""
    from torch.distributed.tensor.placement_types import _StridedShard

    placements = list(dtensor.placements)
    mesh = dtensor.device_mesh
    for dim, order in getattr(dtensor._spec, "shard_order", None) or ():
        for k, mesh_dim in enumerate(order):
            pieces = math.prod(mesh.size(i) for i in order[:k] if i > mesh_dim)
            if pieces > 1:
                placements[mesh_dim] = _StridedShard(dim, split_factor=pieces)
    return tuple(placements)


def _fits(tv: TensorView, value: Any) -> bool:
    """Whether the numbers of axes agree; if not, execute says so."""
    return len(tensor_axes(tv)) == int(value.dim())


def _is_placed(sharding: Sharding) -> bool:
    """Whether ranks hold different parts of a tensor, or some of them nothing."""
    import torch.distributed as dist

    assert sharding.mesh is not None
    if sharding.mesh.size < dist.get_world_size():
        return True
    sizes = axis_sizes(sharding.mesh)
    return any(sizes[axis] > 1 for axis in sizes if sharding.axis_sharded_on(axis) >= 0)


def _placed_copy(fd: FusionDefinition, given: dict[int, Sharding]) -> FusionDefinition:
    """Return a copy of a definition whose inputs are divided so."""
    copies = _placed.setdefault(fd, {})
    key = tuple(given.items())
    if key not in copies:
        copy = FusionDefinition()
        clone(fd, copy)
        fusion = copy._executor().fusion()
        for k, sharding in given.items():
            tv = fusion.inputs()[k]
            assert isinstance(tv, TensorView)
            _set(k, tv, sharding)
        copies[key] = copy
    return copies[key]


def _set(position: int, tv: TensorView, sharding: Sharding) -> None:
    try:
        set_sharding(tv, sharding)
    except Error as error:
        raise Error(f"execute_with_dtensors: input {position} has placements: {error}") from None


def _check(position: int, tv: TensorView, value: Any, given: Sharding, devices: list[int]) -> None:
    """Raise where devices hold other elements than the program takes them to hold."""
    declared = sharding_of(tv)
    declared.check_expressible("execute_with_dtensors")
    assert given.mesh is not None
    own = declared.mesh or given.mesh  # without one: the whole tensor, wherever it is used
    absent = sorted(set(own.devices if declared.mesh else devices) - set(given.mesh.devices))
    name = f"input {position} ({tv.name})"
    if absent:
        raise Error(
            f"execute_with_dtensors: the program needs {name} on devices {absent}, but the DTensor "
            f"is on {mesh_text(given.mesh)} alone. Distribute it on a mesh with these devices."
        )
    shape = list(value.shape)
    differing = same_parts(dict(declared.axes), own, dict(given.axes), given.mesh, shape)
    if differing:
        raise Error(_difference(name, differing, declared, given, value))
    for axis, layout in given.axes:
        uneven = tv.fusion().uneven and constant(tv, axis) is not None
        reason = misfit(layout, axis_sizes(given.mesh), shape[axis], uneven=uneven)
        if reason is not None:
            raise Error(f"execute_with_dtensors: axis {axis} of {name} {reason}.")


def _difference(name: str, axes: list[int], declared: Sharding, given: Sharding, value: Any) -> str:
    which = ", ".join(f"axis {axis}" for axis in axes)
    wanted = _wanted(declared, given, value)
    return (
        f"execute_with_dtensors: {which} of {name} is divided otherwise than the program says: the "
        f"DTensor's placements are {list(placements_of(value))} on {_where(given.mesh)}, the "
        f"program's {wanted}. Redistribute the DTensor to these, or put its own on the tensor: "
        "set_sharding(from_placements(x.placements, x.device_mesh))."
    )


def _wanted(declared: Sharding, given: Sharding, value: Any) -> str:
    sharding = declared if declared.mesh is not None else make_sharding(given.mesh, {})
    try:
        text = str(list(sharding.placements(list(value.shape))))
    except Error:
        text = repr(sharding)
    note = "" if declared.mesh is not None else ", as the tensor has no mesh"
    return f"{text} on {_where(sharding.mesh)}{note}"


def _where(mesh: DeviceMesh | None) -> str:
    return "no mesh" if mesh is None else mesh_text(mesh)
