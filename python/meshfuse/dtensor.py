# SPDX-License-Identifier: BSD-3-Clause
"""Programs on torch's DTensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._C import ParallelType, Sharding

if TYPE_CHECKING:
    from .definition import FusionDefinition

_MESH_AXES = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


def execute_with_dtensors(fd: FusionDefinition, in_dtensors: Iterable[Any]) -> list[Any]:
    """Execute a program on the local parts of DTensors; return DTensors.

    The mesh axis ``mesh_x`` is the last dim of a device mesh. The program's meshes and splits must
    be those of the inputs; nothing is redistributed before it.

    Args:
        fd: The definition.
        in_dtensors: One DTensor per input, all with the same names of mesh dims.

    Raises:
        AssertionError: the names of mesh dims differ.
        ValueError: there is no input, so no device mesh.
    """
    from torch.distributed.tensor import DTensor

    inputs = list(in_dtensors)
    if not inputs:
        raise ValueError("execute_with_dtensors: there are no inputs. Give at least one DTensor.")
    names = {tensor.device_mesh.mesh_dim_names for tensor in inputs}
    listed = ", ".join(sorted(map(str, names)))
    assert len(names) == 1, (
        f"All DTensor inputs must have the same mesh dim names, but they have {listed}"
    )
    outputs = fd.execute([tensor.to_local() for tensor in inputs])
    shardings = fd.fec.get_output_shardings()
    meshes = [tensor.device_mesh for tensor in inputs]
    if not shardings:
        return [DTensor.from_local(out, meshes[0], run_check=False) for out in outputs]
    return [
        DTensor.from_local(
            out, _device_mesh(sharding, meshes), _placements(sharding), run_check=False
        )
        for out, sharding in zip(outputs, shardings, strict=True)
    ]


def _device_mesh(sharding: Sharding, known: list[Any]) -> Any:
    """Return an input's device mesh where it has the same devices, else a new one."""
    from torch.distributed.device_mesh import init_device_mesh

    shape = tuple(sharding.mesh.shape)
    if not shape:  # a result that the program puts on no mesh
        return known[0]
    for mesh in known:
        if (
            tuple(mesh.mesh.shape) == shape
            and mesh.mesh.flatten().tolist() == sharding.mesh.devices
        ):
            return mesh
    return init_device_mesh(known[0].device_type, shape, mesh_dim_names=known[0].mesh_dim_names)


def _placements(sharding: Sharding) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    axes = [sharding.axis_sharded_on(p) for p in _MESH_AXES[: max(1, len(sharding.mesh.shape))]]
    return [Replicate() if axis < 0 else Shard(axis) for axis in reversed(axes)]
