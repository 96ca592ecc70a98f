# SPDX-License-Identifier: BSD-3-Clause
"""Times of communications and operations on the ranks of this job.

As a script (``python -m meshfuse.planner.rank_times``) it prints them as JSON on rank 0.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from .._C import Communicator, DeviceMesh, ParallelType, TensorView
from ..definition import FusionDefinition

__all__ = ["MARK", "rank_times", "slowest"]

#: A size, and a call whose time depends on it.
Timed = tuple[int, Callable[[], object]]
#: What the line of results begins with; launchers print lines of their own.
MARK = "meshfuse-rank-times "
_ELEMENTS = (64, 4096, 65536, 524288, 2097152)
_ROUNDS = 3
_TURNS = 8
_NARROW = 8
_BATCH_S = 0.004
_PATIENCE_S = 0.3  # for one figure, on a machine that others use too


def rank_times() -> dict[str, Any]:
    """Return microseconds per call on the slowest rank; every rank must call it.

    ``"communications"`` has for each kind the pairs of buffer bytes and microseconds,
    ``"operations"`` for each kind of operation the pairs of its size and microseconds.
    """
    communicator = Communicator.instance()
    ranks = communicator.size()
    pairs: dict[str, list[Timed]] = {
        kind: [_communication(kind, n, ranks) for n in _ELEMENTS]
        for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    }
    n = 384
    types = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
    operations: dict[str, list[Timed]] = {
        "start": [(0, _start)],
        "traffic": [(24 * n, _add(n)) for n in (4096, 32768, 4194304)],
        "function": [(65536, _exp(65536))],
        "narrow f32": [(2 * _NARROW * 512**2, _product(_NARROW, 512, torch.float32))],
        **{f"flops {name}": [(2 * n**3, _product(n, n, t))] for name, t in types.items()},
    }
    with torch.no_grad():
        communications = _timed(pairs, communicator)
        local = _timed(operations, communicator)
    return {
        "ranks": ranks,
        "backend": communicator.backend(),
        "communications": communications,
        "operations": local,
        "narrow": _NARROW,
    }


def _timed(pairs: dict[str, list[Timed]], communicator: Communicator) -> dict[str, Any]:
    """Return (size, microseconds): the best of rounds, so that no moment decides on a figure."""
    best = {kind: [math.inf] * len(calls) for kind, calls in pairs.items()}
    for _ in range(_ROUNDS):
        for kind, calls in pairs.items():
            for i, (_, call) in enumerate(calls):
                best[kind][i] = min(best[kind][i], slowest(call, communicator))
    return {
        kind: [[size, took] for (size, _), took in zip(calls, best[kind], strict=True)]
        for kind, calls in pairs.items()
    }


def _communication(kind: str, elements: int, ranks: int) -> Timed:
    """Return the buffer bytes of a program that is one communication, and how to run it."""
    elements = elements // ranks * ranks
    with FusionDefinition() as fd:
        if kind in ("all-reduce", "reduce-scatter"):
            x = fd.define_tensor([ranks, elements], contiguity=True)
            y = fd.ops.sum(x, [0])
            divided = [(x, 0), (y, 0 if kind == "reduce-scatter" else None)]
            local, buffer = torch.ones(1, elements), 4 * elements
        elif kind == "all-gather":
            x = fd.define_tensor([elements], contiguity=True)
            y = fd.ops.set(x)
            divided = [(x, 0), (y, None)]
            local, buffer = torch.ones(elements // ranks), 4 * elements
        else:
            x = fd.define_tensor([ranks * ranks, elements // ranks], contiguity=True)
            y = fd.ops.set(x)
            divided = [(x, 0), (y, 1)]
            local, buffer = torch.ones(ranks, elements // ranks), 4 * elements
        fd.add_output(y)
        for tensor, axis in divided:
            _divide(tensor, ranks, axis)
    return buffer, lambda: fd.execute([local])


def _divide(tensor: TensorView, ranks: int, axis: int | None) -> None:
    tensor.set_device_mesh(DeviceMesh(range(ranks)))
    if axis is not None:
        place = axis + sum(a.is_reduction() for a in tensor.get_loop_domain())
        tensor.outer_split(place, ranks)
        tensor.axis(place).parallelize(ParallelType.mesh_x)


def _start() -> None:
    _RELU.execute([_ONE])


def _add(elements: int) -> Callable[[], object]:
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(fd.ops.add(a, b))
    inputs = [torch.ones(2 * elements), torch.ones(2 * elements)]
    return lambda: fd.execute(inputs)


def _exp(elements: int) -> Callable[[], object]:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.tanh(fd.define_tensor([-1])))
    inputs = [torch.ones(elements)]
    return lambda: fd.execute(inputs)


def _product(rows: int, n: int, dtype: torch.dtype) -> Callable[[], object]:
    a, b = torch.ones(rows, n, dtype=dtype), torch.ones(n, n, dtype=dtype)
    return lambda: torch.matmul(a, b)


with FusionDefinition() as _RELU:
    _RELU.add_output(_RELU.ops.relu(_RELU.ops.relu(_RELU.define_tensor([4]))))
_ONE = torch.ones(4)


def slowest(call: Callable[[], object], communicator: Communicator) -> float:
    """Return microseconds of a call: the best of batches that all ranks begin together.

    The best, because other processes on the machine only ever make a batch slower.
    """
    call()
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    calls = max(1.0, _BATCH_S / _agreed(max(min(took), 1e-7), communicator))
    times: list[float] = []
    turns = min(_TURNS, max(3.0, _PATIENCE_S / _agreed(sum(took), communicator)))
    for _ in range(int(turns)):
        communicator.barrier()
        begin = time.perf_counter()
        for _ in range(int(calls)):
            call()
        times.append(1e6 * (time.perf_counter() - begin) / int(calls))
    return _agreed(min(times), communicator)


def _agreed(value: float, communicator: Communicator) -> float:
    """Return the greatest value of all ranks."""
    ranks = communicator.size()
    if ranks == 1:
        return value
    if ranks not in _GREATEST:
        with FusionDefinition() as fd:
            x = fd.define_tensor([ranks])
            fd.add_output(fd.ops.max(x, [0]))
            _divide(x, ranks, 0)
        _GREATEST[ranks] = fd
    (found,) = _GREATEST[ranks].execute([torch.tensor([value])])
    return float(found)


_GREATEST: dict[int, FusionDefinition] = {}


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = rank_times()
    if Communicator.instance().rank() == 0:
        print(MARK + json.dumps(result), flush=True)
    sys.exit(0)
