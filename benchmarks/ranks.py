# SPDX-License-Identifier: BSD-3-Clause
"""Contests of contenders that communicate: all ranks make the same calls, as many, in one order."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import harness

if TYPE_CHECKING:
    from mpi4py import MPI

MPIRUN = harness.ROOT / "tools" / "mpirun"


def command(ranks: int, arguments: list[str]) -> list[str]:
    """Return the command that runs Python with these arguments on ranks."""
    return [str(MPIRUN), "-np", str(ranks), sys.executable, *arguments]


def environment() -> dict[str, str]:
    """Return the environment of that command: the mpirun next to this Python comes first."""
    mine = Path(sys.executable).parent / "mpirun"
    return ({"MPIEXEC": str(mine)} if mine.exists() else {}) | dict(os.environ)


def contest(
    comm: MPI.Comm, contenders: harness.Contenders, effort: harness.Effort
) -> harness.Result:
    """Time contenders in turns as ``harness.contest``; a call takes as long as on the slowest."""
    from mpi4py import MPI

    def turn(call: harness.Call, calls: int) -> float:
        """Return microseconds per call, the same number on all ranks."""
        repeat = range(calls)
        comm.Barrier()
        begin = time.perf_counter_ns()
        for _ in repeat:
            call()
        took = time.perf_counter_ns() - begin
        slowest: int = comm.allreduce(took, op=MPI.MAX)
        return slowest / 1e3 / calls

    return harness.measure(contenders, effort, turn)


def join_gloo(comm: MPI.Comm) -> None:
    """Give torch.distributed a group of gloo over the same ranks."""
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size
    )
