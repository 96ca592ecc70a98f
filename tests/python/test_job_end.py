# SPDX-License-Identifier: BSD-3-Clause
"""How jobs of two ranks end: with the right exit code, in seconds, and with a readable reason."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import meshfuse

WRAPPER = Path(__file__).parents[2] / "tools" / "mpirun"


def find_mpirun():
    """MPIEXEC, else the one of this Python's environment, else the one on PATH."""
    candidates = [os.environ.get("MPIEXEC"), str(Path(sys.executable).parent / "mpirun")]
    return next((c for c in candidates if c and shutil.which(c)), shutil.which("mpirun"))


pytestmark = [
    pytest.mark.skipif(find_mpirun() is None, reason="no mpirun"),
    pytest.mark.skipif(
        not list(Path(meshfuse.__file__).parent.glob("libmeshfuse_mpi*")),
        reason="built without MPI",
    ),
    pytest.mark.skipif(
        any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")),
        reason="this process is a rank itself",
    ),
]

PROGRAM = """
import sys, time
import torch, meshfuse
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType

comm = Communicator.instance()
rank, size = comm.rank(), comm.size()
mesh = DeviceMesh(range(size))
with FusionDefinition() as fd:
    x, w = fd.define_tensor([-1, 6]), fd.define_tensor([6, 4 * size])
    fd.add_output(fd.ops.matmul(x, w))
    for t in (x, w):
        t.set_device_mesh(mesh)
    w.outer_split(-1, size)
    w.axis(-2).parallelize(ParallelType.mesh_x)
rows, weight = torch.ones(3, 6), torch.ones(6, 4 * size)


def run(rows=rows):
    (out,) = fd.execute([rows, mesh.shard_tensor(weight, 1, rank)])
    assert torch.equal(out, torch.full((3, 4), 6.0)), out


run()
"""

ENDS = {
    "nothing": ("", 0, []),
    "sys.exit(3) on all ranks": ("sys.exit(3)", 3, []),
    "a wrong inner size on rank 1": (
        """
if rank == 1:
    run(torch.ones(3, 5))
comm.barrier()
time.sleep(100)
""",
        None,
        ["Traceback", "meshfuse.Error", "T0", "expected 6, got 5"],
    ),
    "an exception on rank 0 between two calls": (
        """
if rank == 0:
    raise KeyError("nobody catches this")
comm.barrier()
run()
time.sleep(100)
""",
        None,
        ["Traceback", "KeyError: 'nobody catches this'"],
    ),
}


def start_job(tmp_path, program, ranks=2, limit=60):
    """Run a program on ranks; return exit code, seconds and output. A job that hangs is killed."""
    script = tmp_path / "job.py"
    script.write_text(program)
    package = str(Path(meshfuse.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    start = time.monotonic()
    job = subprocess.Popen(
        [str(WRAPPER), "-np", str(ranks), sys.executable, str(script)],
        env={**os.environ, "MPIEXEC": find_mpirun(), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
        pytest.fail(f"the job was still there after {limit} s:\n{output}")
    return job.returncode, time.monotonic() - start, output


@pytest.mark.parametrize("end", ENDS)
def test_end_of_a_job(end, tmp_path):
    """Starting Python twice on a busy machine takes most of the time allowed."""
    tail, code, texts = ENDS[end]
    got, seconds, output = start_job(tmp_path, PROGRAM + tail)
    assert got == code if code is not None else got != 0, output
    assert seconds < 30, output
    for text in texts:
        assert text in output
    if end == "nothing":
        assert output.strip() == ""
    if end.startswith("sys.exit"):
        # mpirun itself says that a rank left with a code other than 0.
        assert "Traceback" not in output and "meshfuse:" not in output
