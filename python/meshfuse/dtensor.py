# SPDX-License-Identifier: BSD-3-Clause
"""Programs on torch's DTensors."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from . import failure
from ._C import DeviceMesh, FusionExecutorCache, TensorView, communicator
from .axis_layout import axis_sizes, devices_of
from .definition import FusionDefinition
from .dtensor_inputs import local_part, program_for
from .dtensor_placements import mesh_of
from .executor_cache import compiled_outputs
from .tensor_sharding import constant, sharding_of

# By default process group, which the groups of a mesh belong to.
_made_meshes: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def execute_with_dtensors(fd: FusionDefinition, in_dtensors: Iterable[Any]) -> list[Any]:
    """Execute a program on the local parts of DTensors; return DTensors.

    The mesh axis ``mesh_x`` is the last dim of a device mesh. Inputs must be divided as the program
    says; nothing is redistributed before it. A program without any mesh takes the placements of
    its inputs, and what follows from them for the rest.

    Args:
        fd: The definition.
        in_dtensors: One DTensor per tensor input, all with the same names of mesh dims; numbers
            for scalar inputs.

    Raises:
        AssertionError: the names of mesh dims differ.
        ValueError: there is no DTensor, so no device mesh.
        TypeError: ``fd`` is not a definition, or a tensor is not a DTensor.
        meshfuse.Error: an input is divided otherwise than the program says, or partial; or
            placements cannot express how a result is divided.
    """
    communicator()  # started, so that the other ranks can be told of whatever fails
    try:
        inputs, meshes = _checked(fd, in_dtensors)
        program = program_for(fd, inputs)
        local = [local_part(value) for value in inputs]
    except Exception as error:
        failure.report(error, "executing a fusion on DTensors", _on_a_mesh(fd))
        raise
    outputs = program.execute(local)
    tensors = compiled_outputs(program.fec)
    return [_wrapped(out, tv, meshes) for out, tv in zip(outputs, tensors, strict=True)]


def _checked(fd: FusionDefinition, in_dtensors: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return the inputs and the device meshes of those that are DTensors."""
    from torch.distributed.tensor import DTensor

    if not isinstance(fd, FusionDefinition):
        raise TypeError(
            "execute_with_dtensors: fd must be a FusionDefinition, but it is a "
            f"{type(fd).__name__}."
        )
    if not isinstance(in_dtensors, Iterable) or isinstance(in_dtensors, torch.Tensor):
        raise TypeError(
            "execute_with_dtensors: in_dtensors must be a list with one DTensor per tensor input, "
            f"but it is a {type(in_dtensors).__name__}."
        )
    inputs = list(in_dtensors)
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
            raise TypeError(
                f"execute_with_dtensors: input {position} is a torch.Tensor. Make it a DTensor by "
                "distribute_tensor or DTensor.from_local, so that its placement is known."
            )
    meshes = [value.device_mesh for value in inputs if isinstance(value, DTensor)]
    if not meshes:
        raise ValueError("execute_with_dtensors: there are no inputs. Give at least one DTensor.")
    names = {mesh.mesh_dim_names for mesh in meshes}
    listed = ", ".join(sorted(map(str, names)))
    assert len(names) == 1, (
        f"All DTensor inputs must have the same mesh dim names, but they have {listed}"
    )
    return inputs, meshes


def _on_a_mesh(fd: Any) -> FusionExecutorCache | None:
    """Return a program whose ranks are known.

    Those of one without a mesh depend on its inputs, which may be what is wrong.
    """
    cache = getattr(fd, "_cache", None)
    if not isinstance(cache, FusionExecutorCache):
        return None
    return cache if any(tv.has_device_mesh() for tv in cache.fusion().tensors()) else None


def _wrapped(out: torch.Tensor, tv: TensorView | None, meshes: list[Any]) -> Any:
    """Return a local result as a DTensor."""
    from torch.distributed.tensor import DTensor, Replicate

    if tv is None or not tv.has_device_mesh():  # the same on every device
        replicated = [Replicate()] * meshes[0].ndim
        return DTensor.from_local(out, meshes[0], replicated, run_check=False)
    sharding = sharding_of(tv)
    sizes = axis_sizes(tv.get_device_mesh())
    shape, uneven = list(out.shape), False
    for axis, layout in sharding.axes:
        parts = math.prod(sizes[p] for p in devices_of(layout))
        declared = constant(tv, axis)
        shape[axis] = shape[axis] * parts if declared is None else declared
        uneven = uneven or shape[axis] % parts != 0
    mesh = _device_mesh(tv.get_device_mesh(), meshes)
    placements = sharding.placements(shape)
    if not uneven:
        return DTensor.from_local(out, mesh, placements, run_check=False)
    return DTensor.from_local(
        out,
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=_dense_strides(shape, out.stride()),
    )


def _dense_strides(shape: list[int], local: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a global tensor whose axes are in memory as those of the local one."""
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda k: (local[k], -k)):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def _device_mesh(mesh: DeviceMesh, known: list[Any]) -> Any:
    """Return an input's device mesh where it has the same devices, else a new one."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh as TorchMesh

    for device_mesh in known:
        if mesh_of(device_mesh) == mesh:
            return device_mesh
    names = mesh.names or known[0].mesh_dim_names or ()
    names = tuple(names) if len(names) == len(mesh.shape) else None
    # Groups are made once: it takes all ranks, and they are never freed.
    made = _made_meshes.setdefault(dist.group.WORLD, {})
    key = (known[0].device_type, mesh, names)
    if key not in made:
        devices = torch.tensor(mesh.devices).reshape(mesh.shape)
        made[key] = TorchMesh(known[0].device_type, devices, mesh_dim_names=names)
    return made[key]
