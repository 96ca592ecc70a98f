# SPDX-License-Identifier: BSD-3-Clause
"""Runs all benchmarks, prints the table of speeds and writes it to docs/benchmarks.md.

Every file of benchmarks runs in a process, or in a job of ranks, of its own, one after the other.
A smoke run takes few turns of tiny sizes, and writes nothing.

Usage: PYTHONPATH=python python benchmarks/run.py [--smoke]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import page
import ranks
import rows
from rows import Figure

RESULTS = harness.ROOT / "benchmarks" / "results"
JAX = harness.ROOT / ".venv-jax" / "bin" / "python"
LIMIT = 200  # seconds for one of them


@dataclass(frozen=True)
class Job:
    """A benchmark file, the number of ranks that run it (0: no launcher), and its rows."""

    file: str
    ranks: int
    keys: list[str]


_ON_RANKS = [row.key for row in rows.ROWS if row.key[0] in "4567"]
JOBS = {
    "execute": Job("bench_execute.py", 0, ["1", "3", "8 d=1", "9", "10", "14 seed", "14 tiny"]),
    "ranks": Job("bench_ranks.py", 2, [*_ON_RANKS, "8 d=2", "posted, 2 ranks"]),
    "more_ranks": Job("bench_ranks.py", 4, ["also", "posted, 4 ranks"]),
    "compile": Job(
        "bench_compile.py", 0, ["2", "11", "12 n", "12 mesh", "12 half", "12 3-D", "13"]
    ),
}
MEMORY_TURNS = 3


def start(job: Job, arguments: list[str], out: Path) -> str:
    """Run a file, which writes ``out``; return why it failed, empty if it did not."""
    if job.ranks > 0 and importlib.util.find_spec("mpi4py") is None:
        return "the package mpi4py is not installed"
    environment = {"OMP_NUM_THREADS": "1"} | ranks.environment()
    if job.ranks > 0 and shutil.which(environment.get("MPIEXEC", "mpirun")) is None:
        return "mpirun is not installed"
    program = [str(harness.ROOT / "benchmarks" / job.file), *arguments, "--out", str(out)]
    command = ranks.command(job.ranks, program) if job.ranks else [sys.executable, *program]
    harness.note(" ".join([job.file, *arguments]) + (f" on {job.ranks} ranks" * (job.ranks > 0)))
    run = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        printed, errors = run.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        run.terminate()  # mpirun ends its ranks then
        run.wait()
        return f"{job.file} failed: it took more than {LIMIT} s"
    if run.returncode == 0:
        return ""
    harness.note(printed + errors)
    last = (errors.strip() or "no message").splitlines()[-1].replace("|", "/")
    return f"{job.file} failed: {last}"


def run_job(name: str, job: Job, smoke: bool, folder: Path) -> list[Figure]:
    """Return the figures of a file."""
    out = folder / f"{name}.json"
    if why := start(job, ["--smoke"] if smoke else [], out):
        return rows.missing(job.keys, why)
    return [Figure(**figure) for figure in json.loads(out.read_text())]


def run_memory(smoke: bool, folder: Path) -> list[Figure]:
    """Return row 15: jobs of both contenders in turns, and that of the growth."""
    numbers: dict[str, list[float]] = {"torch": [], "fusion": []}
    job, extra, reasons = Job("bench_memory.py", 2, []), ["--smoke"] * smoke, []
    out = folder / "memory.json"

    def measure(what: str) -> dict[str, Any]:
        if why := start(job, [what, *extra], out):
            reasons.append(why)
            return {"number": float("nan"), "checksum": 0.0}
        result: dict[str, Any] = json.loads(out.read_text())
        return result

    for _ in range(1 if smoke else MEMORY_TURNS):
        checks = []
        for what, times in numbers.items():
            result = measure(what)
            times.append(result["number"])
            checks.append(result["checksum"])
        if abs(checks[0] - checks[1]) > 1e-4 * abs(checks[0]):
            reasons.append(f"the results differ: {checks}")
        if reasons:
            return rows.missing(["15 peak", "15 growth"], reasons[0])
    growth = measure("growth")["number"]
    peak = statistics.median(numbers["fusion"]) / statistics.median(numbers["torch"])
    figures = [Figure("15 peak", peak, turns=numbers), Figure("15 growth", growth)]
    out.write_text(json.dumps(rows.to_json(figures)) + "\n")
    return figures[:1] + rows.missing(["15 growth"], reasons[0]) if reasons else figures


def with_jax(figures: list[Figure], smoke: bool, folder: Path) -> str:
    """Add what jax takes to its rows, if it is there; return the remark on it."""
    python = Path(os.environ.get("JAX_PYTHON", JAX))
    if not python.exists():
        return "jax: not compared; it is not installed in .venv-jax (or name JAX_PYTHON)"
    out = folder / "jax.json"
    command = [str(python), str(harness.ROOT / "benchmarks" / "bench_jax.py"), "--out", str(out)]
    run = subprocess.run([*command, *["--smoke"] * smoke], capture_output=True, text=True)
    if run.returncode != 0:
        return f"jax: not compared; {run.stderr.strip().splitlines()[-1]}"
    found = json.loads(out.read_text())
    for figure in figures:
        if figure.key in found["figures"]:
            figure.others["jax"] = found["figures"][figure.key]
    return f"jax {found['version']}: in a process of its own, by the same clock"


def run_all(smoke: bool, folder: Path) -> tuple[list[Figure], list[str]]:
    """Run everything; return the figures and remarks on them."""
    figures = [f for name, job in JOBS.items() for f in run_job(name, job, smoke, folder)]
    figures += run_memory(smoke, folder)
    remarks = [with_jax(figures, smoke, folder)]
    repeated = [figure.key for figure in figures if figure.repeated]
    if repeated:
        remarks.append(
            f"Measured twice, as the raw contender's turns differed by over {harness.MAX_SPREAD}: "
            + ", ".join(repeated)
        )
    return figures, remarks


def main() -> int:
    """Run everything; the exit code says whether all rows have a figure, not what it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--smoke", action="store_true", help="few turns, tiny sizes, writes nothing"
    )
    smoke = parser.parse_args().smoke
    if smoke:
        with tempfile.TemporaryDirectory() as folder:
            figures, remarks = run_all(True, Path(folder))
    else:
        RESULTS.mkdir(exist_ok=True)
        figures, remarks = run_all(False, RESULTS)
        page.write(rows.table(figures), "make bench", remarks)
    print(page.circumstances("benchmarks/run.py", remarks), end="\n\n")
    print(rows.table(figures))
    return int(any("failed: " in figure.missing for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
