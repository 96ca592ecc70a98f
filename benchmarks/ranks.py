# SPDX-License-Identifier: BSD-3-Clause
"""Contests of contenders that communicate: all ranks make the same calls, as many, in one order."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import harness

if TYPE_CHECKING:
    from mpi4py import MPI

MPIRUN = harness.ROOT / "tools" / "mpirun"


def start(ranks: int) -> int:
    """Start this program again on ranks; return the exit code."""
    mine = Path(sys.executable).parent / "mpirun"
    environment = {"MPIEXEC": str(mine)} if mine.exists() else {}
    return subprocess.run(
        [str(MPIRUN), "-np", str(ranks), sys.executable, *sys.argv],
        env=environment | os.environ,
        check=False,
    ).returncode


def contest(
    comm: MPI.Comm,
    contenders: harness.Contenders,
    turns: int = harness.MIN_TURNS,
    turn_ms: float = 20,
) -> list[harness.Result]:
    """Time contenders in turns; a call takes as long as on the slowest rank.

    As ``harness.contest``, except that what is measured once more is decided by the first
    contender: when its turns differ by more than MAX_SPREAD, the machine was busy.
    """
    calls = {name: _calls_per_turn(comm, call, turn_ms) for name, call in contenders.items()}
    results = _measure(comm, contenders, calls, turns)
    if results[0].spread > harness.MAX_SPREAD:
        again = _measure(comm, contenders, calls, turns)
        results = min(results, again, key=lambda r: r[0].spread)
    return results


def _measure(
    comm: MPI.Comm, contenders: harness.Contenders, calls: dict[str, int], turns: int
) -> list[harness.Result]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(turns):
        for name in order:
            times[name].append(_turn(comm, contenders[name], calls[name]))
        order.append(order.pop(0))
    return [harness.Result(name, times[name]) for name in contenders]


def _calls_per_turn(comm: MPI.Comm, call: Callable[[], object], turn_ms: float) -> int:
    call()
    calls = 1
    while (took := _turn(comm, call, calls) * calls / 1e3) < turn_ms / 4:
        calls *= 4
    return max(1, round(calls * turn_ms / took))


def _turn(comm: MPI.Comm, call: Callable[[], object], calls: int) -> float:
    """Return microseconds per call, on the slowest rank; the same number on all ranks."""
    from mpi4py import MPI

    repeat = range(calls)
    comm.Barrier()
    begin = time.perf_counter_ns()
    for _ in repeat:
        call()
    took = time.perf_counter_ns() - begin
    slowest: int = comm.allreduce(took, op=MPI.MAX)
    return slowest / 1e3 / calls
