# SPDX-License-Identifier: BSD-3-Clause
"""Time of collectives through a fusion, against mpi4py, and of a step on a simulated mesh.

Usage: PYTHONPATH=python python benchmarks/bench_communication.py        (it starts its two ranks)
"""

from __future__ import annotations

import os
import statistics
import sys
from typing import TYPE_CHECKING, Any

import torch

import harness
import meshfuse
import ranks
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = 2
SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "64 MB": 64 << 20}  # of the result on each rank
SIMULATED, STEPS = 8, 20


def all_reduce(comm: MPI.Comm, count: int) -> harness.Contenders:
    """Return the sum over the ranks of ``count`` elements each."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([comm.size, count])
        fd.add_output(fd.ops.sum(x, [0]))
        x.set_device_mesh(DeviceMesh(range(comm.size)))
        x.axis(0).parallelize(ParallelType.mesh_x)
    local = torch.randn(1, count)
    given = local.numpy()

    def plain() -> torch.Tensor:
        out = torch.empty(count)
        comm.Allreduce(given, out.numpy())
        return out

    torch.testing.assert_close(fd.execute([local])[0], plain())
    return {"mpi4py Allreduce": plain, "fd.execute": lambda: fd.execute([local])}


def all_gather(comm: MPI.Comm, count: int) -> harness.Contenders:
    """Return the parts of all ranks, ``count`` elements together."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([count])
        y = fd.ops.set(x)
        fd.add_output(y)
        for t in (x, y):
            t.set_device_mesh(DeviceMesh(range(comm.size)))
        x.outer_split(0, comm.size)
        x.axis(0).parallelize(ParallelType.mesh_x)
    local = torch.randn(count // comm.size)
    given = local.numpy()

    def plain() -> torch.Tensor:
        out = torch.empty(count)
        comm.Allgather(given, out.numpy())
        return out

    assert torch.equal(fd.execute([local])[0], plain())
    return {"mpi4py Allgather": plain, "fd.execute": lambda: fd.execute([local])}


def collectives(comm: MPI.Comm) -> str:
    """Run all of them; return the text."""
    parts = []
    for title, make in (("All-reduce", all_reduce), ("All-gather", all_gather)):
        for name, size in SIZES.items():
            results = ranks.contest(comm, make(comm, size // 4), turns=31)
            parts.append(
                f"### {title}, {name} float32 on {comm.size} ranks\n\n"
                f"Equal inputs, results into new memory; the time of the slower rank.\n\n"
                f"{harness.table(results)}"
            )
    return "\n\n".join(parts)


def chain(steps: int) -> FusionDefinition:
    """Return a program of ``steps`` element-wise operations on a divided tensor."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([SIMULATED, 4])
        y: Any = x
        for _ in range(steps):
            y = fd.ops.neg(y)
        fd.add_output(y)
        x.set_device_mesh(DeviceMesh(range(SIMULATED)))
        x.outer_split(0, SIMULATED)
        x.axis(0).parallelize(ParallelType.mesh_x)
    return fd


def simulated() -> str:
    """Time a chain of steps on tiny tensors, and torch's own calls for all devices."""
    inputs = [[torch.randn(1, 4)] for _ in range(SIMULATED)]

    def plain() -> None:
        for (x,) in inputs:
            for _ in range(STEPS):
                x = torch.neg(x)

    one, many = chain(1), chain(1 + STEPS)
    with meshfuse.simulate(SIMULATED) as sim:
        contenders: harness.Contenders = {
            f"torch, {STEPS} calls per device": plain,
            "sim.execute, 1 step": lambda: sim.execute(one, inputs),
            f"sim.execute, {1 + STEPS} steps": lambda: sim.execute(many, inputs),
        }
        results = harness.contest(contenders, turns=51, turn_ms=5)
    calls, short, long = (result.times for result in results)
    each = SIMULATED * STEPS
    whole = statistics.median((b - a) / each for a, b in zip(short, long, strict=True))
    above = statistics.median(
        (b - a - t) / each for a, b, t in zip(short, long, calls, strict=True)
    )
    return (
        f"### Steps on a simulated mesh of {SIMULATED} devices, 4 float32 elements each\n\n"
        f"A further step takes {whole:.2f} us per device, torch's operation included; that is "
        f"{above:.2f} us above the same call of torch from Python.\n\n{harness.table(results)}"
    )


def main() -> int:
    """Start the ranks, or be one of them."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ and "PMI_SIZE" not in os.environ:
        return ranks.start(RANKS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    from mpi4py import MPI

    Communicator.instance()
    text = collectives(MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        harness.save("bench_communication", "Communicating", f"{text}\n\n{simulated()}")
    Communicator.instance().barrier()
    return 0


if __name__ == "__main__":
    sys.exit(main())
