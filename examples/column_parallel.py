# SPDX-License-Identifier: BSD-3-Clause
"""Matrix product with the columns of the weight, and so of the result, spread over devices.

Every device holds all of ``x`` and its own columns of ``w``; no communication is needed.

    mpirun -np 2 python examples/column_parallel.py        two processes
    python examples/column_parallel.py --simulate 4        four devices inside one process
"""

from __future__ import annotations

import argparse
import sys

import torch

import meshfuse
from embeddings import load_demo_tensors
from meshfuse import Communicator, DataType, DeviceMesh, FusionDefinition, ParallelType

SENTENCES = [
    "A mesh is a grid of devices.",
    "Each device holds some columns of the weight, and computes the same columns of the result.",
    "Nothing has to be sent.",
]
# Both sides add 384 products in float32, in an order of their own.
TOLERANCE = 1e-4


class ColumnParallel(FusionDefinition):
    """``y = x @ w`` with the last axis of ``w`` and of ``y`` split over ``mesh``."""

    def __init__(self, mesh: DeviceMesh, inner: int, columns: int) -> None:
        """Remember the mesh and the sizes that don't change from run to run."""
        super().__init__()
        self.mesh, self.inner, self.columns = mesh, inner, columns

    def definition(self) -> None:
        """Say what is computed, in global sizes; -1 is known only when it runs."""
        self.x = self.define_tensor([-1, -1, self.inner], contiguity=True, dtype=DataType.Float)
        self.w = self.define_tensor(
            [self.inner, self.columns], contiguity=True, dtype=DataType.Float
        )
        self.y = self.ops.matmul(self.x, self.w)  # axes: sentence, token, column, r{inner}
        self.add_output(self.y)

    def multidevice_schedule(self) -> None:
        """Say where it is computed: the outer part of the column axis becomes the device axis."""
        for tensor in (self.x, self.w, self.y):
            self.sched._set_device_mesh(tensor, self.mesh)
        for tensor, column_axis in ((self.w, -1), (self.y, -2)):
            self.sched.split(tensor, column_axis, self.mesh.size, False)
            self.sched.parallelize(tensor, column_axis - 1, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(tensor)


def run_on_ranks() -> bool:
    """Run as one of the processes of a launcher, or alone; return whether the result is right."""
    comm = Communicator.instance()
    rank = comm.rank()
    mesh = DeviceMesh(range(comm.size()))
    x, w, source = load_demo_tensors(SENTENCES)
    fd = ColumnParallel(mesh, *w.shape)
    (y,) = fd.execute([x, mesh.shard_tensor(w, 1, rank)])

    if rank == 0:
        print_head(x, w, source, mesh, fd)
    right = False
    for turn in range(comm.size()):
        comm.barrier()
        if turn == rank:
            right = print_device(rank, mesh.size, y, x @ w)
    comm.barrier()
    return right


def run_simulated(size: int) -> bool:
    """Run ``size`` devices in this process; return whether every device's result is right."""
    x, w, source = load_demo_tensors(SENTENCES)
    with meshfuse.simulate(size) as sim:
        mesh = DeviceMesh(range(size))
        fd = ColumnParallel(mesh, *w.shape)
        (whole,) = sim.run(fd, [x, w])
        print_head(x, w, source, mesh, fd)
        right = [
            print_device(device, size, sim.local(output=0, device=device), x @ w)
            for device in range(size)
        ]
    return all(right) and torch.allclose(whole, x @ w, rtol=0, atol=TOLERANCE)


def print_head(
    x: torch.Tensor, w: torch.Tensor, source: str, mesh: DeviceMesh, fd: FusionDefinition
) -> None:
    """Print what is computed, its three forms, and the head of the table."""
    print(f"x {tuple(x.shape)} @ w {tuple(w.shape)} on {mesh}, from {source}")
    print(f"\nThe definition as scheduled:\n{fd.ir()}")
    print(f"\nAfter the passes:\n{fd.compiled_ir()}")
    print(f"\nThe plan:\n{fd.plan()}\n")
    print(f"{'device':6}  {'columns':>13}  {'local shape':>16}  {'strides':>16}  max abs error")
    sys.stdout.flush()


def print_device(device: int, devices: int, local: torch.Tensor, expected: torch.Tensor) -> bool:
    """Print one line of the table; return whether ``local`` is that part of ``expected``."""
    columns = expected.shape[-1] // devices
    first = device * columns
    part = expected[..., first : first + columns]
    right = local.shape == part.shape
    error = (local - part).abs().max().item() if right else float("inf")
    right = right and error <= TOLERANCE
    print(
        f"{device:6}  {f'{first}..{first + columns - 1}':>13}  {tuple(local.shape)!s:>16}"
        f"  {local.stride()!s:>16}  {error:.1e}{'' if right else '  WRONG'}",
        flush=True,
    )
    return right


def main() -> int:
    """Return 0 when the result equals that of plain torch, else 1."""
    parser = argparse.ArgumentParser(description="Column-parallel matrix product.")
    parser.add_argument("--simulate", type=int, metavar="N", help="N devices in this process")
    arguments = parser.parse_args()
    right = run_on_ranks() if arguments.simulate is None else run_simulated(arguments.simulate)
    if not right:
        print("The result differs from plain torch.", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
