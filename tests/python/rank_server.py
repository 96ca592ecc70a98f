# SPDX-License-Identifier: BSD-3-Clause
"""Forks ranks that run programs; for tests that start many jobs.

Reads jobs from the standard input, a line of JSON each: ``script``, ``limit`` (seconds), and for
every rank the variables of its environment and the file of its output. Answers each with a line:
the exit codes (null: killed at the limit) and the seconds that the ranks took.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time

import torch.distributed  # noqa: F401

from meshfuse import failure


def start(job):
    """Fork the ranks; return their ids, or in a rank the script."""
    pids = []
    for variables, output in zip(job["ranks"], job["outputs"], strict=True):
        pid = os.fork()
        if pid == 0:
            become_rank(variables, output)
            return job["script"]
        pids.append(pid)
    return pids


def become_rank(variables, output):
    """Let this process look as if a launcher had started it."""
    os.environ.update(variables)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    failure._process = os.getpid()


def wait(pids, limit):
    """Return [exit code, seconds] of each."""
    began, ends = time.monotonic(), {}
    while len(ends) < len(pids):
        late = time.monotonic() - began > limit
        for pid in pids:
            if pid in ends:
                continue
            if late:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if done:
                code = None if late else os.waitstatus_to_exitcode(status)
                ends[pid] = [code, time.monotonic() - began]
        time.sleep(0.01)
    return [ends[pid] for pid in pids]


def serve():
    """Run jobs until there are no more; in a rank, return its script."""
    for line in sys.stdin:
        job = json.loads(line)
        started = start(job)
        if isinstance(started, str):
            return started
        print(json.dumps(wait(started, job["limit"])), flush=True)
    return None


if (script := serve()) is not None:
    runpy.run_path(script, run_name="__main__")
