# SPDX-License-Identifier: BSD-3-Clause
"""Rows 1, 3, 8 (one device), 9, 10 and 14: running a program in one process.

Usage: PYTHONPATH=python python benchmarks/bench_execute.py [--smoke] [--out FILE]
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import harness
import meshfuse
from harness import Effort
from meshfuse import Communicator, FusionDefinition
from rows import Figure
from workloads import ColumnParallel


def seed_shape(effort: Effort) -> tuple[list[int], int]:
    """Return the shape of x, and the columns of w per device."""
    return ([2, 8, 16], 16) if effort.smoke else ([2, 1024, 768], 768)


def dtensor_matmul(x: torch.Tensor, w: torch.Tensor) -> harness.Contenders:
    """Return the same product of DTensors on a mesh of 1; none where no group can be made."""
    try:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        path = Path(tempfile.mkdtemp()) / "store"
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    except Exception as error:
        harness.note(f"DTensor is left out: {type(error).__name__}: {error}")
        return {}
    mesh = init_device_mesh("cpu", (1,))
    dx: Any = distribute_tensor(x, mesh, [Replicate()])
    dw: Any = distribute_tensor(w, mesh, [Shard(1)])
    product: Any = torch.matmul(dx, dw)
    torch.testing.assert_close(product.to_local(), x @ w)
    return {"DTensor": lambda: torch.matmul(dx, dw)}


def tiny(effort: Effort) -> Figure:
    """Row 1: all that counts is the way to torch and back."""
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    fd = ColumnParallel(1, [8, 8], 8)
    inputs = [x, w]
    torch.testing.assert_close(fd.execute(inputs)[0], x @ w)
    contenders: harness.Contenders = {
        "torch.matmul": lambda: torch.matmul(x, w),
        "execute": lambda: fd.execute(inputs),
    }
    dtensor = dtensor_matmul(x, w)
    result = harness.contest(contenders | dtensor, effort.of(151, 1))
    others = {name: result.ratio(name) for name in dtensor}
    return result.figure("1", result.ratio("execute"), others)


def local_chain(effort: Effort) -> Figure:
    """Row 3: additions, products, negations and relu of 8x8 tensors, without a mesh."""
    repeats = 5 if effort.smoke else 250
    a, b = torch.rand(8, 8), torch.rand(8, 8)
    with FusionDefinition() as fd:
        x, shift, factor = (fd.define_tensor([8, 8]) for _ in range(3))
        y: Any = x
        for _ in range(repeats):
            y = fd.ops.relu(fd.ops.neg(fd.ops.mul(fd.ops.add(y, shift), factor)))
        fd.add_output(y)

    def eager(y: torch.Tensor) -> torch.Tensor:
        for _ in range(repeats):
            y = torch.relu(torch.neg(torch.mul(torch.add(y, a), b)))
        return y

    given = torch.randn(8, 8)
    torch.testing.assert_close(fd.execute([given, a, b])[0], eager(given))
    contenders: harness.Contenders = {
        "torch": lambda: eager(given),
        "execute": lambda: fd.execute([given, a, b]),
    }
    result = harness.contest(contenders, effort.of(51, 5))
    return result.figure("3", result.ratio("execute"))


def seed_program(effort: Effort) -> Figure:
    """Row 8, one device: the product takes nearly all of the time."""
    shape, columns = seed_shape(effort)
    x, w = torch.randn(shape), torch.randn(shape[-1], columns)
    fd = ColumnParallel(1, shape, columns)
    torch.testing.assert_close(fd.execute([x, w])[0], x @ w)
    contenders: harness.Contenders = {
        "torch.matmul": lambda: torch.matmul(x, w),
        "execute": lambda: fd.execute([x, w]),
    }
    result = harness.contest(contenders, effort.of(31, 100))
    return result.figure("8 d=1", result.ratio("execute"))


def new_sizes(effort: Effort) -> Figure:
    """Row 9: a turn is 16 sizes that were never seen, or the 16 that were seen last."""
    w = torch.randn(8, 8)
    fd = ColumnParallel(1, [-1, -1, -1, 8], 8)
    memory = torch.randn(8 * 23**3)
    unseen = itertools.product(range(2, 24), repeat=3)  # enough, though turns are taken again
    views = (memory[: 8 * math.prod(size)].view(*size, 8) for size in unseen)
    queue = list(zip(*[views] * 16, strict=False))
    seen: list[torch.Tensor] = []

    def first() -> None:
        seen[:] = queue.pop(0)
        for x in seen:
            fd.execute([x, w])

    def warm() -> None:
        for x in seen:
            fd.execute([x, w])

    first()
    result = harness.contest({"warm": warm, "first": first}, effort.of(31, 0))
    turns = {name: [time / 16 for time in times] for name, times in result.turns.items()}
    each = harness.Result(turns, result.repeated)
    return each.figure("9", each.above("first"))


def first_call(effort: Effort) -> Figure:
    """Row 10: definition, schedule, passes, plan and first call; meta tensors compute nothing."""
    shape, columns = seed_shape(effort)
    x = torch.empty(shape, device="meta")
    w = torch.empty(shape[-1], columns, device="meta")
    compiled = ColumnParallel(1, shape, columns)
    contenders: harness.Contenders = {
        "later": lambda: compiled.execute([x, w]),
        "first": lambda: ColumnParallel(1, shape, columns).execute([x, w]),
    }
    result = harness.contest(contenders, effort.of(51, 2))
    return result.figure("10", result.above("first") / 1e3)


def simulated(
    effort: Effort, devices: int, shape: list[int], columns: int, turn_ms: float
) -> harness.Result:
    """Row 14: a mesh in one process, inputs already divided, and a loop of torch.matmul."""
    x = torch.randn(shape)
    given = [[x, torch.randn(shape[-1], columns)] for _ in range(devices)]
    fd = ColumnParallel(devices, shape, columns)

    def plain() -> list[torch.Tensor]:
        return [torch.matmul(x, w) for x, w in given]

    with meshfuse.simulate(devices) as sim:
        for own, expected in zip(sim.execute(fd, given), plain(), strict=True):
            torch.testing.assert_close(own[0], expected)
        contenders: harness.Contenders = {
            "torch.matmul": plain,
            "execute": lambda: sim.execute(fd, given),
        }
        return harness.contest(contenders, effort.of(15 if turn_ms > 100 else 101, turn_ms))


def simulated_seed(effort: Effort) -> Figure:
    """Row 14 at seed size, 8 devices."""
    result = simulated(effort, 8, *seed_shape(effort), turn_ms=200)
    return result.figure("14 seed", result.ratio("execute"))


def simulated_tiny(effort: Effort) -> Figure:
    """Row 14 at a tiny size, 4 devices."""
    result = simulated(effort, 4, [8, 8], 8, turn_ms=2)
    return result.figure("14 tiny", result.above("execute"))


MEASURES: list[Callable[[Effort], Figure]] = [
    tiny,
    local_chain,
    seed_program,
    new_sizes,
    first_call,
    simulated_seed,
    simulated_tiny,
]


def main() -> None:
    """Measure all of them."""
    options = harness.options(__doc__)
    Communicator.instance()  # before torch.distributed has a group
    harness.report([measure(options.effort) for measure in MEASURES], options.out)


if __name__ == "__main__":
    main()
