# SPDX-License-Identifier: BSD-3-Clause
"""How many threads of torch compute on each of several ranks of one machine."""

from __future__ import annotations

import os
import subprocess
import sys

from test_job_end import WRAPPER, pytestmark  # noqa: F401

SHOW = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
import meshfuse
if len(sys.argv) > 2:
    torch.set_num_threads(int(sys.argv[2]))
meshfuse.Communicator.instance()
print("threads", torch.get_num_threads(), flush=True)
"""
CORES = os.cpu_count()
RANKS = 2


def threads(*arguments, **environment):
    """Return the threads of every rank that is not bound to cores of its own."""
    command = [str(WRAPPER), "-np", str(RANKS), "env", "-u", "OMP_NUM_THREADS"]
    command += ["-u", "MKL_NUM_THREADS", *(f"{k}={v}" for k, v in environment.items())]
    command += [sys.executable, "-c", SHOW, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    counts = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("threads")]
    assert len(counts) == RANKS
    return {int(count) for count in counts}


def test_ranks_share_the_cores():
    bound = len(os.sched_getaffinity(0)) < CORES  # then the number is left as it is
    assert threads(CORES) == {CORES if bound else max(CORES // RANKS, 1)}


def test_a_chosen_number_stays():
    assert threads(CORES, CORES + 1) == {CORES + 1}
    assert threads(CORES, OMP_NUM_THREADS=CORES) == {CORES}
