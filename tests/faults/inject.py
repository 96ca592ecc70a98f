#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs jobs in which one rank fails, and checks how they end.

Every job must end within the deadline after the fault, with an exit code other than 0, and name
the rank at fault. A rank that leaves by ``sys.exit(0)`` after its last execution did nothing wrong.

    tests/faults/inject.py --jobs 300 --seed 1

Prints a line per job and a table; exits with 1 when a job did not end as it must.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = (
    "bad input",
    "other size",
    "other program",
    "exception",
    "sys.exit(0)",
    "sys.exit(3)",
    "os._exit(0)",
    "os._exit(5)",
    "kill -9",
    "SIGINT",
    "SIGTERM",
    "never comes",
)
POINTS = ("before the first", "between two", "in a wait", "in a long one", "at the end")
TIMEOUT = 3.0  # MESHFUSE_TIMEOUT of the ranks
LONGEST = 120.0  # a job that is still there then is killed


@dataclass(frozen=True)
class Fault:
    """What is done to a job."""

    kind: str
    point: str
    ranks: int
    rank: int

    @property
    def harmless(self) -> bool:
        """Whether the job has nothing to complain about."""
        return self.kind == "sys.exit(0)" and self.point == "at the end"


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    fault: Fault
    code: int
    seconds: float  # since the fault
    output: str
    problem: str  # empty: as it must

    @property
    def named_by(self) -> str:
        """Who named the rank at fault."""
        if self.fault.harmless:
            return "nobody"
        return "meshfuse" if names_in_error(self.output, self.fault.rank) else "launcher"


def names_in_error(output: str, rank: int) -> bool:
    """Whether an exception of meshfuse names the rank, or it itself when it ended."""
    said = rf"^meshfuse(\.\w*Error: .*\brank {rank}\b|: rank {rank} of )"
    return bool(re.search(said, output, re.MULTILINE))


def names(output: str, rank: int) -> bool:
    """Whether the rank is named: "rank 1", or the launcher's "[prterun-host-77@1,1]"."""
    own = rf"\brank {rank}\b|\[\S*prte\S*@\d+,{rank}\]|\[\[\d+,\d+\],{rank}\]"
    return bool(re.search(own, output))


def run(fault: Fault, deadline: float) -> Outcome:
    """Run one job."""
    python_path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or "mpirun"
    job = subprocess.Popen(
        [
            *(ROOT / "tools/mpirun", "-np", str(fault.ranks), sys.executable),
            *(ROOT / "tests/faults/victim.py", fault.kind, fault.point, str(fault.rank)),
        ],
        env={
            "MPIEXEC": mpirun,
            **os.environ,
            "PYTHONPATH": python_path,
            "MESHFUSE_TIMEOUT": str(TIMEOUT),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    problem = ""
    try:
        output, _ = job.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)  # the launcher ends the ranks, which are not in its group
        output, _ = job.communicate()
        problem = f"still there after {LONGEST} s"
    end = time.time()
    said = re.search(r"FAULT ([\d.]+)", output)
    seconds = end - float(said[1]) if said else float("nan")
    allowed = deadline + (TIMEOUT if fault.kind == "never comes" else 0)
    if not problem:
        if said is None:
            problem = "ended before the fault"
        elif not seconds <= allowed:
            problem = f"took {seconds:.1f} s"
        elif fault.harmless:
            problem = "" if job.returncode == 0 else f"exit code {job.returncode}"
        elif job.returncode == 0:
            problem = "exit code 0"
        elif not names(output, fault.rank):
            problem = f"does not name rank {fault.rank}"
    return Outcome(fault, job.returncode, seconds, output, problem)


def choose(rng: random.Random, kinds: tuple[str, ...], ranks: list[int]) -> Fault:
    """Return a random fault."""
    n = rng.choice(ranks)
    kind, point, rank = rng.choice(kinds), rng.choice(POINTS), rng.randrange(n)
    if kind == "never comes" and point == "at the end":
        point = "in a wait"  # nobody waits for a rank that is busy after its last execution
    return Fault(kind, point, n, rank)


def print_table(outcomes: list[Outcome]) -> None:
    """Print kinds against outcomes."""
    head = f"{'kind':<14}{'jobs':>5}{'as it must':>11}{'not':>5}"
    print(f"\n{head}{'by meshfuse':>12}{'by launcher':>12}{'slowest s':>10}")
    for kind in KINDS:
        of_kind = [o for o in outcomes if o.fault.kind == kind]
        if not of_kind:
            continue
        bad = sum(bool(o.problem) for o in of_kind)
        by = [sum(o.named_by == who for o in of_kind) for who in ("meshfuse", "launcher")]
        slowest = max(o.seconds for o in of_kind)
        print(f"{kind:<14}{len(of_kind):>5}{len(of_kind) - bad:>11}{bad:>5}", end="")
        print(f"{by[0]:>12}{by[1]:>12}{slowest:>10.2f}")


def main() -> int:
    """Run the jobs that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kind", choices=KINDS, help="only this one")
    parser.add_argument("--deadline", type=float, default=5, help="seconds from fault to end")
    parser.add_argument("--show", action="store_true", help="print the output of every job")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kinds = (options.kind,) if options.kind else KINDS
    outcomes = []
    for number in range(options.jobs):
        outcome = run(choose(rng, kinds, options.ranks), options.deadline)
        outcomes.append(outcome)
        fault = outcome.fault
        print(
            f"{number:4} {fault.kind}, {fault.point}, rank {fault.rank} of {fault.ranks}: "
            f"code {outcome.code}, {outcome.seconds:.2f} s, named by {outcome.named_by}: "
            f"{outcome.problem or 'ok'}",
            flush=True,
        )
        if outcome.problem or options.show:
            print(outcome.output, flush=True)
    print_table(outcomes)
    return int(any(o.problem for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
