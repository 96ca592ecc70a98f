# SPDX-License-Identifier: BSD-3-Clause
"""Rows 2, 11, 12 and 13: compiling, from Python and in C++, and what a step costs in C++.

Rows 2, 12 and 13 come from the C++ program (its path: MESHFUSE_BENCH), whose turns are in random
order.

Usage: PYTHONPATH=python python benchmarks/bench_compile.py [--smoke] [--out FILE]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import torch

import harness
import meshfuse
from harness import Effort
from rows import Figure, missing
from workloads import sharded_chain

PROGRAM = "MESHFUSE_BENCH"  # environment variable: where the C++ program is
IN_CPP = ["2", "12 n", "12 mesh", "12 half", "12 3-D", "13"]
# Name of the row, the benchmark, and the one that it is compared with.
GROWTH = [
    ("12 n", "ops_100000", "ops_1000"),
    ("12 mesh", "mesh_64", "mesh_2"),
    ("12 half", "half_annotated", "ops_1000"),
    ("12 3-D", "mesh_2x2x2", "ops_1000"),
]


def ready_to_run(effort: Effort) -> Figure:
    """Row 11: definition and first call less a later call, all 8 devices in this process."""
    devices, ops, outer = 8, 40 if effort.smoke else 1000, 4
    inner = 2
    given = [torch.randn(2, outer)]
    for _ in range(ops // 4):
        shapes = [(outer, inner), (inner,), (inner, outer), (outer,)]
        given += [torch.randn(*shape) for shape in shapes]
    per_device = [given] * devices
    compiled = sharded_chain(devices, ops, outer)
    with meshfuse.simulate(devices) as sim:
        contenders: harness.Contenders = {
            "later": lambda: sim.execute(compiled, per_device),
            "first": lambda: sim.execute(sharded_chain(devices, ops, outer), per_device),
        }
        result = harness.contest(contenders, effort.of(31, 0))
    return result.figure("11", result.above("first") / 1e3 / ops)


Runs = dict[str, list[dict[str, Any]]]


def run_program(program: Path, effort: Effort) -> Runs:
    """Run the C++ program; return its repetitions by the names of the benchmarks."""
    arguments = ["--benchmark_filter=-ops_10000$"]
    if effort.smoke:
        arguments.append("--benchmark_min_time=0.001")
    else:
        arguments += [
            f"--benchmark_repetitions={harness.MIN_TURNS}",
            "--benchmark_enable_random_interleaving=true",
            "--benchmark_min_time=0.05",
        ]
    command = [str(program), "--benchmark_format=json", *arguments]
    environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: Runs = {}
    for entry in json.loads(run.stdout)["benchmarks"]:
        if entry["run_type"] == "iteration":
            name = entry["run_name"].removeprefix("compileBenchmark/").split("/iterations")[0]
            result.setdefault(name, []).append(entry)
    return result


def microseconds(runs: Runs, counter: str) -> dict[str, list[float]]:
    """Return a counter, in seconds, of all repetitions."""
    return {
        name: [1e6 * float(entry[counter]) for entry in entries]
        for name, entries in runs.items()
        if counter in entries[0]
    }


def growth(runs: Runs) -> list[Figure]:
    """Rows 12 and 13; the repetitions of two benchmarks are compared by their medians."""
    times = microseconds(runs, "per_op")
    figures = []
    for key, name, base in GROWTH:
        if name in times and base in times:
            ratio = statistics.median(times[name]) / statistics.median(times[base])
            turns = {base: times[base], name: times[name]}
            figures.append(Figure(key, ratio, turns=turns))
        else:
            figures += missing([key], f"no benchmark {name} or {base}")
    longest = runs.get("ops_100000")
    if longest is None:
        return figures + missing(["13"], "no benchmark ops_100000")
    size = statistics.median(float(entry["bytes_per_op"]) for entry in longest) / 1e3
    return [*figures, Figure("13", size)]


def step(runs: Runs) -> Figure:
    """Row 2, from ``execute/plan`` and ``execute/aten``: microseconds of a product in both."""
    turns = {
        name: [1e6 / float(entry["items_per_second"]) for entry in entries]
        for name, entries in runs.items()
        if name.startswith("execute/")
    }
    if not {"execute/aten", "execute/plan"} <= turns.keys():
        return Figure("2", missing="no benchmark execute/plan and execute/aten")
    above = statistics.median(turns["execute/plan"]) - statistics.median(turns["execute/aten"])
    return Figure("2", above, turns=turns)


def in_cpp(effort: Effort) -> list[Figure]:
    """Rows of the C++ program, if it was built."""
    given = os.environ.get(PROGRAM)
    program = Path(given or harness.ROOT / "build/dev/benchmarks/meshfuse_bench")
    if not program.exists():
        return missing(IN_CPP, "the C++ program is not built (Google Benchmark: libbenchmark-dev)")
    runs = run_program(program, effort)
    return [step(runs), *growth(runs)]


def main() -> None:
    """Measure all of them."""
    options = harness.options(__doc__)
    harness.report([ready_to_run(options.effort), *in_cpp(options.effort)], options.out)


if __name__ == "__main__":
    main()
