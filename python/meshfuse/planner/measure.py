# SPDX-License-Identifier: BSD-3-Clause
"""``measure_links``: figures of the present machine for the cost model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _C, launchers
from .._C import Error
from .collectives import algorithms
from .links import Device, Link, Links, Rate

__all__ = ["measure_links"]

_TIMEOUT_S = 300


def measure_links(ranks: int = 2) -> Links:
    """Return what communications and operations cost on this machine, measured with real ranks.

    Under a launcher the ranks of the job measure, and all of them must call it. In a process of its
    own it starts ranks on this machine: by mpirun, or over torch.distributed where there is none.
    Takes about ten seconds. ``.save()`` writes the figures where later estimates find them, but not
    those of a machine so busy that they cannot be right.

    Args:
        ranks: How many to start.

    Raises:
        meshfuse.Error: the ranks could not be started, or fewer than two were.

    Example:
        >>> import meshfuse
        >>> links = meshfuse.measure_links()  # doctest: +SKIP
        >>> print(links.save())  # doctest: +SKIP
        /home/me/.cache/meshfuse/links.json
    """
    launched = _C.launched_as()
    if (launched is not None and launched[1] > 1) or _C.is_distributed():
        from .rank_times import rank_times

        return _fitted(rank_times())
    if ranks < 2:
        raise Error(f"measure_links: ranks is {ranks}. Two at least are needed to communicate.")
    return _fitted(_started(ranks))


def _started(ranks: int) -> dict[str, Any]:
    """Start ranks that measure, and return what they print."""
    from .rank_times import MARK

    module = ["-m", "meshfuse.planner.rank_times"]
    kinds = ["mpirun", "torchrun"] if launchers.find_mpirun() else ["torchrun"]
    commands = [launchers.launch(kind, ranks, module).command for kind in kinds]
    said = ""
    for command in commands:
        done = launchers.run_quietly(command, _TIMEOUT_S, only=_environment())
        if done.code is None:
            said = f"they did not end in {_TIMEOUT_S} s."
            continue
        for line in done.output.splitlines():
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                if found["ranks"] == ranks:
                    return found
        said = done.error[-2000:] or f"the exit status was {done.code}"
    raise Error(
        f"measure_links: {ranks} ranks could not be started by {commands[-1][0]}: {said} "
        "Start this script by mpirun or torchrun, where measure_links uses the ranks that run."
    )


def _environment() -> dict[str, str]:
    """Return an environment in which ranks may be more than cores, with one thread each."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    return dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **launchers.ALLOW,
        **launchers.SHARE,
    }


def _fitted(times: dict[str, Any]) -> Links:
    ranks = int(times["ranks"])
    kinds = {kind: _rate(kind, ranks, points) for kind, points in times["communications"].items()}
    source = f"measured with {ranks} ranks, backend {times['backend']}"
    message = kinds["all-gather"]
    link = Link(f"{times['backend']} ranks", message, kinds, source)
    return Links(link, _device(times["operations"], int(times["narrow"]), source), measured=True)


def _rate(kind: str, ranks: int, points: Sequence[Sequence[float]]) -> Rate:
    """Fit alpha and beta by the least squares of relative errors, for the formulas of the kind."""
    best: tuple[float, Rate] | None = None
    for index in range(len(algorithms(kind, ranks, 1.0))):
        rows = [(algorithms(kind, ranks, n)[index], time) for n, time in points]
        rate = _least_squares([(w.messages, w.volume, time) for w, time in rows])
        error = sum(
            (min(rate.time_us(w.messages, w.volume) for w in algorithms(kind, ranks, n)) / t - 1)
            ** 2
            for n, t in points
        )
        if best is None or error < best[0]:
            best = error, rate
    if best is None:
        raise Error(f"measure_links: {ranks} rank does not communicate. Start two at least.")
    return best[1]


def _least_squares(rows: Sequence[tuple[float, float, float]]) -> Rate:
    """Return alpha and beta for (messages, bytes, microseconds), every row weighed by its time."""
    aa = sum((m / t) ** 2 for m, _, t in rows)
    ab = sum(m * v / t**2 for m, v, t in rows)
    bb = sum((v / t) ** 2 for _, v, t in rows)
    a = sum(m / t for m, _, t in rows)
    b = sum(v / t for _, v, t in rows)
    determinant = aa * bb - ab * ab
    alpha = max(0.01, (a * bb - b * ab) / determinant)
    beta = max(1e-9, (b - alpha * ab) / bb)
    return Rate(alpha, 1 / (beta * 1e3))


def _device(operations: dict[str, Sequence[Sequence[float]]], rows: int, source: str) -> Device:
    start = operations["start"][0][1] / 2  # of two operations
    (_, small), (cached, in_cache), (large, in_memory) = operations["traffic"]
    del small
    cache_rate = cached / max(in_cache - start, 1e-3) / 1e3
    cache_bytes = float(1 << 20)
    beyond = max(in_memory - start - cache_bytes / (cache_rate * 1e3), 1e-3)
    memory_rate = min((large - cache_bytes) / beyond / 1e3, cache_rate)
    gflops = {
        name.removeprefix("flops "): points[0][0] / max(points[0][1] - start, 1e-3) / 1e3
        for name, points in operations.items()
        if name.startswith("flops ")
    }
    elements, took = operations["function"][0]
    ((flops, narrow),) = operations["narrow f32"]
    half_size = max(0.0, rows * (narrow * gflops["f32"] * 1e3 / flops - 1))
    return Device(
        "rank",
        gflops | {"other": min(gflops.values())},
        memory_rate,
        start,
        1e3 * max(took - start, 1e-3) / elements,
        cache_bytes,
        cache_rate,
        half_size,
        source,
    )
