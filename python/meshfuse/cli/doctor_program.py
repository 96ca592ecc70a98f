# SPDX-License-Identifier: BSD-3-Clause
"""The program that ``meshfuse doctor`` runs: a product with a sum over two devices.

``python -m meshfuse.cli.doctor_program`` runs it on two ranks that a launcher started.
"""

from __future__ import annotations

import sys

import torch

from .._C import Communicator, DeviceMesh, ParallelType
from ..definition import FusionDefinition
from ..simulation import simulate

RANKS = 2


def program() -> FusionDefinition:
    """Return the program; its inner axis is divided over two devices."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 8]), fd.define_tensor([8, 6])
        fd.add_output(fd.ops.matmul(x, w))
        for t, axis in ((x, 1), (w, 0)):
            t.set_device_mesh(DeviceMesh(range(RANKS)))
            t.outer_split(axis, RANKS)
            t.axis(axis).parallelize(ParallelType.mesh_x)
    return fd


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the global inputs."""
    return torch.arange(32.0).reshape(4, 8) / 8, torch.arange(48.0).reshape(8, 6) / 16


def product_on_simulated_mesh() -> float:
    """Return the largest difference from torch's product."""
    x, w = inputs()
    with simulate(RANKS) as sim:
        (y,) = sim.run(program(), [x, w])
    return float((y - x @ w).abs().max())


def main() -> int:
    """Run on this rank; print a line that says who it is and whether the result is right."""
    communicator = Communicator.instance()
    rank, size = communicator.rank(), communicator.size()
    right = False
    if size == RANKS:
        x, w = inputs()
        parts = [x.chunk(RANKS, 1)[rank].contiguous(), w.chunk(RANKS, 0)[rank].contiguous()]
        (y,) = program().execute(parts)
        right = bool((y - x @ w).abs().max() < 1e-4)
    line = (
        f"meshfuse-doctor rank {rank} of {size} {communicator.backend()} {'ok' if right else '-'}\n"
    )
    sys.stdout.write(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
