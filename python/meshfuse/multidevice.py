# SPDX-License-Identifier: BSD-3-Clause
"""Meshes, ranks, and the parts of global tensors that they hold."""

from __future__ import annotations

import os

import torch

from . import _C, options
from ._C import Communicator, CommunicatorBackend, DeviceMesh, TensorView
from .multidevice_executor import MultiDeviceExecutor, MultiDeviceExecutorParams
from .sharding import Sharding
from .simulation import Simulation, simulate

__all__ = [
    "Communicator",
    "CommunicatorBackend",
    "DeviceMesh",
    "MultiDeviceExecutor",
    "MultiDeviceExecutorParams",
    "Sharding",
    "Simulation",
    "shard_tensor",
    "simulate",
]


if "multidevice" in options.environment("DISABLE"):
    os.environ["MESHFUSE_BACKEND"] = "single"  # read when the communicator starts


def _instance() -> Communicator:
    """Return the communicator of this process; the first call starts it."""
    return _C.communicator()


Communicator.instance = staticmethod(_instance)  # type: ignore[method-assign]


def shard_tensor(tensor: torch.Tensor, tv: TensorView) -> torch.Tensor:
    """Return this rank's part of ``tensor`` as ``tv`` is sharded, contiguous.

    Nothing is communicated. A rank outside the mesh gets size 0 on every sharded dim.

    Raises:
        meshfuse.Error: ``tv`` has no mesh, or a sharded dim is not divisible by its mesh axis.

    Example:
        >>> import torch
        >>> from meshfuse import DeviceMesh, FusionDefinition, ParallelType, multidevice
        >>> with FusionDefinition() as fd:
        ...     x = fd.define_tensor([4, 6])
        ...     x.set_device_mesh(DeviceMesh([0]))
        ...     _ = x.outer_split(0, 1)
        ...     x.axis(0).parallelize(ParallelType.mesh_x)
        >>> multidevice.shard_tensor(torch.ones(4, 6), x).shape
        torch.Size([4, 6])
    """
    return _C.shard_tensor(tensor, tv, _instance().rank())
