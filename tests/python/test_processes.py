# SPDX-License-Identifier: BSD-3-Clause
"""Child processes and the end of a process, without a launcher."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import torch
from programs import matmul_cut, ramp, sharded_matmul

import meshfuse


def product(d=1):
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), d)
    with meshfuse.simulate(d) as sim:
        return bool(torch.equal(sim.run(fd, [x, w])[0], x @ w))


def test_child_of_fork_after_an_execution():
    """A child may leave by os._exit; the parent goes on working."""
    assert product() and product(2)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert product() and product(2)


def test_child_of_fork_that_executes():
    assert product()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if product() and product(2) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert product()


def test_spawned_worker():
    """A worker started anew imports and executes without a launcher's variables."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply_async(product, [2]).get(120)
    assert product()


SCRIPT = """
import torch, meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType
with FusionDefinition() as fd:
    x, w = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
    fd.add_output(fd.ops.matmul(x, w))
    for t in (x, w):
        t.set_device_mesh(DeviceMesh([0]))
    w.outer_split(-1, 1)
    w.axis(-2).parallelize(ParallelType.mesh_x)
fd.execute([torch.ones(4, 6), torch.ones(6, 8)])
"""


def test_end_of_a_script():
    """No clean-up call, and no word of ours."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - start < 60
