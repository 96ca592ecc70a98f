# SPDX-License-Identifier: BSD-3-Clause
"""Speeds on one GPU; writes their table to docs/benchmarks.md. Needs CUDA.

A turn is a number of calls in a row, and then waits for the device: tiny calls are bound by what
the host does, large ones by the device.

Usage: PYTHONPATH=python python benchmarks/bench_cuda.py [--smoke] [--out FILE]
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from typing import Any

import torch
from torch.nn import functional

import harness
import page
import rows
import workloads
from harness import Call, Contenders, Effort
from meshfuse import DataType, DeviceMesh, FusionDefinition
from rows import Figure, Row

BATCH, SEQUENCE, HIDDEN, HEADS = 8, 1024, 2048, 16
BLOCK = f"GPT block, bf16, batch {BATCH}, sequence {SEQUENCE}, hidden {HIDDEN}"
ROWS = [
    Row("C1", "warm `execute`, 8x8 product, DID loop split, mesh of 1", rows.MATMUL, 1.2, 1.0),
    Row("C2", "chain of 1,000 local ops, 8x8", "torch eager", 1.0, 0.8),
    Row("C3", "8192x8192 by 8192x8192, bf16, DID loop split, mesh of 1", rows.MATMUL, 1.01, 1.0),
    Row("C4 float32", "seed program, 2x1024x768 by 768x768", rows.MATMUL, 1.02, 1.01),
    Row("C4 bf16", "the same in bf16", rows.MATMUL, 1.1, 1.02),
    Row("C5", BLOCK, "torch eager", 1.02, 0.9),
    Row("C6", "peak of memory of that block", "torch eager", 1.05, 1.0),
    Row("C7", "replay of a captured chain of 1,000 local ops, 8x8", "torch's captured", 1.02, 1.0),
]
CHAIN = 1000


def turn(call: Call, calls: int) -> float:
    """Return microseconds per call, the end of the work on the device included."""
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / 1e3 / calls


def contest(contenders: Contenders, effort: Effort) -> harness.Result:
    """Time contenders in turns."""
    return harness.measure(contenders, effort, turn)


def product(effort: Effort, key: str, shape: list[int], columns: int, dtype: torch.dtype) -> Figure:
    """A product with divided columns, over that of torch."""
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    w = torch.randn(shape[-1], columns, device="cuda", dtype=dtype)
    fd = divided_columns(shape, columns, dtype)
    torch.testing.assert_close(fd.execute([x, w])[0], x @ w)
    contenders: Contenders = {
        "torch.matmul": lambda: torch.matmul(x, w),
        "execute": lambda: fd.execute([x, w]),
    }
    others = {}
    if key == "C1":
        contenders |= tiny_contenders(x, w)
        others = {name: 0.0 for name in list(contenders)[2:]}
    result = contest(contenders, effort.of(31, 60))
    others = {name: result.ratio(name) for name in others}
    return result.figure(key, result.ratio("execute"), others)


def divided_columns(shape: list[int], columns: int, dtype: torch.dtype) -> FusionDefinition:
    """Return x [*shape] @ w [shape[-1], columns]."""
    from meshfuse.pytorch_utils import torch_dtype_to_meshfuse_dtype

    kind = torch_dtype_to_meshfuse_dtype(dtype)
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape, dtype=kind)
        w = fd.define_tensor([shape[-1], columns], dtype=kind)
        fd.add_output(fd.ops.matmul(x, w))
        workloads.divide(x, 1, None)
        workloads.divide(w, 1, 1)
    return fd


def tiny_contenders(x: torch.Tensor, w: torch.Tensor) -> Contenders:
    """DTensor on a mesh of one, and torch.compile."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cuda", (1,))
    dx, dw = distribute_tensor(x, mesh, [Replicate()]), distribute_tensor(w, mesh, [Shard(1)])
    compiled = torch.compile(torch.matmul)
    return {
        "DTensor": lambda: torch.matmul(dx, dw),
        "torch.compile": lambda: compiled(x, w),
    }


def local_chain() -> FusionDefinition:
    """Return CHAIN operations, one after the other."""
    with FusionDefinition() as fd:
        x = y = fd.define_tensor([8, 8])
        for _ in range(CHAIN // 2):
            y = fd.ops.relu(fd.ops.add(y, x))
        fd.add_output(y)
    return fd


def chain_by_torch(x: torch.Tensor) -> torch.Tensor:
    """Compute the same."""
    y = x
    for _ in range(CHAIN // 2):
        y = torch.relu(torch.add(y, x))
    return y


def chain(effort: Effort) -> list[Figure]:
    """The chain as calls, and as replays of graphs."""
    x, fd = torch.randn(8, 8, device="cuda") * 1e-3, local_chain()
    calls: Contenders = {"torch": lambda: chain_by_torch(x), "execute": lambda: fd.execute([x])}
    eager = contest(calls, effort.of(31, 60))
    graphs = captured_twice(calls)
    for both in graphs.values():
        for graph, outputs in both:
            x.normal_()
            graph.replay()
            torch.testing.assert_close(outputs(), chain_by_torch(x))

    def replay_both(name: str) -> None:
        for graph, _ in graphs[name]:
            graph.replay()

    replays: Contenders = {name: partial(replay_both, name) for name in graphs}
    replay = contest(replays, effort.of(31, 60))
    return [
        eager.figure("C2", eager.ratio("execute")),
        replay.figure("C7", replay.ratio("execute")),
    ]


def captured_twice(calls: Contenders) -> dict[str, list[tuple[torch.cuda.CUDAGraph, Any]]]:
    """Capture each call twice, the second time in reverse order.

    One and the same graph takes 3 % longer or shorter by its place among those captured.
    """
    first = {name: captured(call) for name, call in calls.items()}
    second = {name: captured(calls[name]) for name in reversed(calls)}
    return {name: [first[name], second[name]] for name in calls}


def captured(call: Call) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture a call; return the graph, and what gives its result."""
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result: Any = call()
    return graph, lambda: result[0] if isinstance(result, list) else result


def block(effort: Effort) -> list[Figure]:
    """A transformer block forward, over eager torch and torch.compile; and its memory."""
    sys.path.insert(0, str(harness.ROOT / "examples"))
    from layers import Model
    from transformer import GptBlock, Sizes

    batch, sequence, hidden = (2, 16, 64) if effort.smoke else (BATCH, SEQUENCE, HIDDEN)
    heads = 4 if effort.smoke else HEADS
    with FusionDefinition() as fd:
        model = Model(fd, DeviceMesh([0]), DataType.BFloat16)
        x = fd.define_tensor([-1, -1, hidden], contiguity=True, dtype=DataType.BFloat16)
        sizes = Sizes(hidden=hidden, heads=heads, inner=4 * hidden)
        fd.add_output(GptBlock(model, sizes).forward(x))

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    given = random(batch, sequence, hidden)
    p = [0.02 * random(*parameter.shape) for parameter in model.parameters.values()]

    def by_torch(x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        qkv = functional.linear(functional.layer_norm(x, [h], p[0], p[1]), p[4], p[5])
        q, k, v = qkv.view(b, s, heads, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.linear(y.transpose(1, 2).reshape(b, s, h), p[6], p[7])
        y = functional.linear(functional.layer_norm(x, [h], p[2], p[3]), p[8], p[9])
        return x + functional.linear(functional.gelu(y, approximate="tanh"), p[10], p[11])

    (have,) = fd.execute([given, *p])
    torch.testing.assert_close(have, by_torch(given), rtol=3e-2, atol=6e-2)
    compiled = torch.compile(by_torch)
    contenders: Contenders = {
        "torch": lambda: by_torch(given),
        "execute": lambda: fd.execute([given, *p]),
        "torch.compile": lambda: compiled(given),
    }
    result = contest(contenders, effort.of(31, 100))
    peaks = {name: peak(call) for name, call in contenders.items()}
    return [
        result.figure("C5", result.ratio("execute"), {"compile": result.ratio("torch.compile")}),
        Figure(
            "C6",
            peaks["execute"] / peaks["torch"],
            others={"compile": peaks["torch.compile"] / peaks["torch"]},
        ),
    ]


def peak(call: Call) -> int:
    """Return the most bytes that a call allocates at a time."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    """Measure all of them."""
    options = harness.options(__doc__)
    effort = options.effort
    big = 64 if effort.smoke else 8192
    seed = [2, 1024, 768]
    figures = [
        product(effort, "C1", [8, 8], 8, torch.float32),
        product(effort, "C3", [big, big], big, torch.bfloat16),
        product(effort, "C4 float32", seed, 768, torch.float32),
        product(effort, "C4 bf16", seed, 768, torch.bfloat16),
        *chain(effort),
        *block(effort),
    ]
    for figure in figures:
        for name, times in figure.turns.items():
            harness.note(f"{figure.key} {name}: {statistics.median(times):.2f} µs per call")
    harness.report(figures, options.out)
    table = rows.table(figures, ROWS)
    harness.note(table)
    if not effort.smoke:
        page.write(table, "benchmarks/bench_cuda.py", [])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
