# SPDX-License-Identifier: BSD-3-Clause
"""Compares the cost model with measured times of programs on ranks of this machine.

``python benchmarks/bench_cost_model.py`` starts two ranks; they calibrate the model
(``measure_links``), then run each program. Prints a table; ``--out FILE`` writes it as JSON too. A
machine that does other work meanwhile gives no usable figures: look at the load that is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import meshfuse
from meshfuse import Communicator, FusionDefinition
from meshfuse.planner import Links, rank_times
from ranks import command, environment
from workloads import (
    all_gather,
    all_reduce,
    column_parallel_linear,
    divide,
    row_parallel_linear,
)

_MARK = "MESHFUSE_BENCH_COST_MODEL"


def megatron_mlp(devices: int, rows: int, hidden: int) -> FusionDefinition:
    """Return gelu(x w1) w2: columns of w1 and rows of w2 divided."""
    with FusionDefinition() as fd:
        x, w1 = fd.define_tensor([rows, hidden]), fd.define_tensor([hidden, 4 * hidden])
        w2 = fd.define_tensor([4 * hidden, hidden])
        fd.add_output(fd.ops.matmul(fd.ops.gelu(fd.ops.matmul(x, w1)), w2))
        for tensor, axis in ((x, None), (w1, 1), (w2, 0)):
            divide(tensor, devices, axis)
    return fd


def all_to_all(devices: int, rows: int) -> FusionDefinition:
    """Return a square tensor whose columns are divided, after its rows were."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, rows])
        y = fd.ops.set(x)
        fd.add_output(y)
        divide(x, devices, 0)
        divide(y, devices, 1)
    return fd


def programs(d: int) -> Iterator[tuple[str, Any]]:
    """Return names and definitions."""
    for rows, hidden in ((8, 256), (64, 512), (256, 512), (128, 1024)):
        yield f"Megatron MLP, {rows} rows of {hidden}", megatron_mlp(d, rows, hidden)
    for rows, inner in ((8, 512), (64, 512), (256, 1024)):
        yield f"column linear, {rows} x {inner}", column_parallel_linear(d, [rows], inner, inner)
        yield f"row linear, {rows} x {inner}", row_parallel_linear(d, [rows], inner // d, inner)
    for count in (16384, 262144, 2097152):
        yield f"all-reduce of {count}", all_reduce(d, count)
        yield f"all-gather of {count}", all_gather(d, count)
    for rows in (128, 512, 1024):
        yield f"all-to-all of {rows} x {rows}", all_to_all(d, rows)


def on_ranks(links: Links | None) -> list[dict[str, Any]]:
    """Return a row per program; every rank calls it."""
    communicator = Communicator.instance()
    torch.manual_seed(communicator.rank())
    figures = links or meshfuse.measure_links()
    if communicator.rank() == 0:
        print(figures, "\n", flush=True)
    rows = []
    for name, fd in programs(communicator.size()):
        inputs = [
            meshfuse.multidevice.shard_tensor(torch.randn([int(str(n)) for n in tv.shape()]), tv)
            for tv in fd.fusion.inputs()
        ]
        measured = min(
            rank_times.slowest(lambda fd=fd, inputs=inputs: fd.execute(inputs), communicator)
            for _ in range(3)
        )
        modelled = meshfuse.plan_costs(fd, links=figures).time_us
        rows.append({"program": name, "modelled_us": modelled, "measured_us": measured})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with the error of each row."""
    lines = ["| Program | modelled, µs | measured, µs | error |", "|---|--:|--:|--:|"]
    for row in rows:
        error = 100 * (row["modelled_us"] / row["measured_us"] - 1)
        lines.append(
            f"| {row['program']} | {row['modelled_us']:.0f} | {row['measured_us']:.0f} "
            f"| {error:+.0f} % |"
        )
    return "\n".join(lines)


def main() -> int:
    """Start ranks, or be one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--links", type=Path, help="figures to use instead of measuring them")
    parser.add_argument("--out", type=Path, help="write the rows to this JSON file, too")
    given = parser.parse_args()
    if _MARK not in os.environ:
        env = environment() | {_MARK: "1"}
        return subprocess.run(command(given.ranks, sys.argv), env=env, check=False).returncode
    torch.set_num_threads(1)
    rows = on_ranks(Links.load(given.links) if given.links else None)
    if Communicator.instance().rank() == 0:
        print(table(rows))
        print(f"\nload of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        if given.out:
            given.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
