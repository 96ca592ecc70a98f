# SPDX-License-Identifier: BSD-3-Clause
"""Time of running a compiled program, of compiling one, and of the import.

Usage: PYTHONPATH=python python benchmarks/bench_execute.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import harness
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType


class ColumnParallel(FusionDefinition):
    """x [batch, sequence, hidden] @ w [hidden, devices * hidden], the columns of w divided."""

    def __init__(self, devices: int, shape: list[int], columns: int) -> None:
        """Describe the product of a tensor of ``shape`` and a weight of ``columns`` per device."""
        super().__init__()
        self._devices, self._shape, self._columns = devices, shape, devices * columns

    def definition(self) -> None:
        """Write the product."""
        self.x = self.define_tensor(self._shape)
        self.w = self.define_tensor([self._shape[-1], self._columns])
        self.y = self.ops.matmul(self.x, self.w)
        self.add_output(self.y)

    def multidevice_schedule(self) -> None:
        """Divide the columns over the mesh."""
        mesh = DeviceMesh(range(self._devices))
        for t in (self.x, self.w, self.y):
            self.sched._set_device_mesh(t, mesh)
        for t, columns in ((self.w, -1), (self.y, -2)):
            self.sched.split(t, columns, self._devices, False)
            self.sched.parallelize(t, columns - 1, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(t)


def dtensor_matmul(x: torch.Tensor, w: torch.Tensor) -> harness.Contenders:
    """Return the same product of DTensors as a contender; none where no group can be made."""
    try:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        path = Path(tempfile.mkdtemp()) / "store"
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        dx: Any = distribute_tensor(x, mesh, [Replicate()])
        dw: Any = distribute_tensor(w, mesh, [Shard(1)])
        product: Any = torch.matmul(dx, dw)
        torch.testing.assert_close(product.to_local(), x @ w)
    except Exception as error:
        harness.note(f"DTensor is left out: {type(error).__name__}: {error}")
        return {}
    return {"torch.matmul of DTensors": lambda: torch.matmul(dx, dw)}


def tiny() -> str:
    """Warm execution of an 8x8 product, where all that counts is the way to torch and back."""
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    fd = ColumnParallel(1, [8, 8], 8)
    inputs = [x, w]
    torch.testing.assert_close(fd.execute(inputs)[0], x @ w)
    contenders: harness.Contenders = {
        "torch.matmul": lambda: torch.matmul(x, w),
        "fd.execute": lambda: fd.execute(inputs),
    }
    contenders |= dtensor_matmul(x, w)
    return harness.table(harness.contest(contenders, turns=151, turn_ms=1))


def seed_program() -> str:
    """Warm execution of 2x1024x768 @ 768x768, where the product takes nearly all of the time."""
    x, w = torch.randn(2, 1024, 768), torch.randn(768, 768)
    fd = ColumnParallel(1, [2, 1024, 768], 768)
    torch.testing.assert_close(fd.execute([x, w])[0], x @ w)
    contenders: harness.Contenders = {
        "torch.matmul": lambda: torch.matmul(x, w),
        "fd.execute": lambda: fd.execute([x, w]),
    }
    return harness.table(harness.contest(contenders))


def new_definition() -> str:
    """Definition, schedule, passes and plan of the seed program; meta tensors compute nothing."""
    x, w = torch.randn(2, 1024, 768, device="meta"), torch.randn(768, 768, device="meta")

    def first() -> Any:
        return ColumnParallel(1, [2, 1024, 768], 768).execute([x, w])

    compiled = ColumnParallel(1, [2, 1024, 768], 768)
    contenders: harness.Contenders = {
        "a later execute": lambda: compiled.execute([x, w]),
        "definition and first execute": first,
    }
    return harness.table(harness.contest(contenders, turns=51, turn_ms=2))


FRESH_PROCESS = """
import time
start = time.perf_counter()
import torch
torch_in = time.perf_counter()
import meshfuse
meshfuse_in = time.perf_counter()
import sys
sys.path.insert(0, {folder!r})
import bench_execute
x, w = torch.randn(2, 1024, 768, device="meta"), torch.randn(768, 768, device="meta")
x @ w
before = time.perf_counter()
bench_execute.ColumnParallel(1, [2, 1024, 768], 768).execute([x, w])
after = time.perf_counter()
print(torch_in - start, meshfuse_in - torch_in, after - before)
"""


def fresh_process(turns: int = harness.MIN_TURNS) -> str:
    """Import time, and the first program of a process, each turn in a new process."""
    script = FRESH_PROCESS.format(folder=str(harness.ROOT / "benchmarks"))
    rows = []
    for _ in range(turns):
        out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        rows.append([1e3 * float(word) for word in out.stdout.split()])
    names = ("import torch", "import meshfuse after it", "first definition and execute")
    lines = ["| What | Median, ms | Fastest, ms | Slowest, ms |", "|---|--:|--:|--:|"]
    for name, times in zip(names, zip(*rows, strict=True), strict=True):
        lines.append(
            f"| {name} | {statistics.median(times):.1f} | {min(times):.1f} | {max(times):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run all of them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Communicator.instance()  # before torch.distributed has a group
    parts = [
        ("A warm 8x8 float32 product with a DID loop split, mesh of 1", tiny),
        ("The seed program: 2x1024x768 @ 768x768 float32, mesh of 1", seed_program),
        ("Compiling the seed program", new_definition),
        ("A fresh process", fresh_process),
    ]
    text = "\n\n".join(
        f"### {title}\n\n{measure.__doc__}\n\n{measure()}" for title, measure in parts
    )
    harness.save("bench_execute", "Executing and compiling", text)


if __name__ == "__main__":
    main()
