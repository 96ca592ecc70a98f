# SPDX-License-Identifier: BSD-3-Clause
"""How jobs end: with the right exit code, in seconds, and with a readable reason."""

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

# The same with the inner axis divided, so that every execution communicates.
REDUCING = """
import os, signal, sys, threading, time
import torch, meshfuse
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType

comm = Communicator.instance()
rank, size = comm.rank(), comm.size()
mesh = DeviceMesh(range(size))
with FusionDefinition() as fd:
    x, w = fd.define_tensor([-1, 3 * size]), fd.define_tensor([3 * size, 4])
    fd.add_output(fd.ops.matmul(x, w))
    for t, axis in ((x, 1), (w, 0)):
        t.set_device_mesh(mesh)
        t.outer_split(axis, size)
        t.axis(axis).parallelize(ParallelType.mesh_x)


def run(rows=2, inner=3):
    (out,) = fd.execute([torch.ones(rows, inner), torch.ones(inner, 4)])
    assert torch.equal(out, torch.full((rows, 4), 3.0 * size)), out


run()
"""

ENDS = {
    "nothing": ("", 0, []),
    "sys.exit(3) on all ranks": ("sys.exit(3)", 3, ["meshfuse: rank"]),
    "sys.exit(3) on rank 1 after its last execution": (
        "if rank == 1:\n    sys.exit(3)",
        3,
        ["meshfuse: rank 1 of 2 exited with status 3"],
    ),
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
    "an exception on rank 1 after its last execution": (
        """
if rank == 1:
    raise KeyError("nobody catches this")
""",
        None,
        ["meshfuse: rank 1 of 2 failed: KeyError: 'nobody catches this'"],
    ),
}


# Tail of the program, exit code (None: not 0), what the output says.
COMMUNICATING_ENDS = {
    "nothing": ("run()", 0, []),
    "a wrong inner size on rank 1": (
        "run(inner=4 if rank == 1 else 3)\nrun()",
        None,
        ["meshfuse.Error: input 0, T0", "rank 1 gave up an execution"],
    ),
    "sizes that differ": (
        "run(rows=4 if rank == 0 else 6)",
        None,
        ["meshfuse.Error: execute: axis 0 of T0", "size 4 on rank 0, but 6 on rank 1"],
    ),
    "an exception on rank 0 between two executions": (
        "if rank == 0:\n    raise KeyError('nobody catches this')\nrun()",
        None,
        ["KeyError: 'nobody catches this'", "PeerError: execute: rank 0 failed"],
    ),
    "sys.exit(0) on rank 1 only": (
        "if rank == 1:\n    sys.exit(0)\nrun()",
        None,
        ["PeerError: execute: rank 1 left the group"],
    ),
    "a barrier on rank 1 only": (
        "if rank == 1:\n    comm.barrier()\nrun()",
        None,
        ["PeerError: execute: rank 1 waits in a barrier, and rank 0 waits for it in execute"],
    ),
    "a function of autograd that raises on rank 1, which goes on": (
        """
with FusionDefinition() as local:
    t = local.define_tensor([-1])
    t.set_device_mesh(mesh)
    local.add_output(local.ops.neg(t))


def backward(grad, t):
    if rank == 1:
        raise KeyError("out of paper")
    run()
    return -grad


(y,) = meshfuse.autograd.apply(local, backward, torch.ones(2, requires_grad=True))
try:
    y.sum().backward()
except KeyError:
    time.sleep(60)
""",
        None,
        ["PeerError: execute: rank 1 gave up", "KeyError: 'out of paper'"],
    ),
    "apply without a definition on rank 1, which goes on": (
        """
try:
    meshfuse.autograd.apply(fd if rank == 0 else None, run, torch.ones(2, 3), torch.ones(3, 4))
except TypeError as error:
    print(error, flush=True)
    time.sleep(60)
""",
        None,
        ["PeerError: execute: rank 1 gave up", "fd_forward must be a FusionDefinition"],
    ),
    "an interrupt of rank 0 while it waits": (
        """
if rank == 0:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
else:
    time.sleep(60)
run()
""",
        None,
        ["KeyboardInterrupt"],
    ),
    "a rank that never comes": (
        "if rank == 1:\n    time.sleep(60)\nrun()",
        None,
        ["timed out after 2 s (MESHFUSE_TIMEOUT) in execute", "without rank 1"],
    ),
    "a thread that counts while rank 0 waits": (
        """
if rank == 1:
    time.sleep(2)
count, going = 0, True
def body():
    global count
    while going:
        count += 1
        time.sleep(0.01)
thread = threading.Thread(target=body)
thread.start()
run()
going = False
thread.join()
assert rank == 1 or count > 100, count
""",
        0,
        [],
    ),
}


def start_job(tmp_path, program, ranks=2, limit=60, **environment):
    """Run a program on ranks; return exit code, seconds and output. A job that hangs is killed."""
    script = tmp_path / "job.py"
    script.write_text(program)
    package = str(Path(meshfuse.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    start = time.monotonic()
    job = subprocess.Popen(
        [str(WRAPPER), "-np", str(ranks), sys.executable, str(script)],
        env={**os.environ, "MPIEXEC": find_mpirun(), "PYTHONPATH": path, **environment},
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
        assert "Traceback" not in output


@pytest.mark.parametrize("end", COMMUNICATING_ENDS)
def test_end_of_a_job_that_communicates(end, tmp_path):
    """As above; the others are told, and name the rank."""
    tail, code, texts = COMMUNICATING_ENDS[end]
    limits = {"MESHFUSE_TIMEOUT": "2"} if end == "a rank that never comes" else {}
    got, seconds, output = start_job(tmp_path, REDUCING + tail, **limits)
    assert got == code if code is not None else got != 0, output
    assert seconds < 30, output
    for text in texts:
        assert text in output


# The functions of the MPI library come with the plugin that is linked to it.
JOINING = """
import ctypes, os
from pathlib import Path
import meshfuse
(plugin,) = Path(meshfuse.__file__).parent.glob("libmeshfuse_mpi*")
mpi = ctypes.CDLL(str(plugin))


def initialise(level):
    assert mpi.MPI_Init_thread(None, None, level, ctypes.byref(ctypes.c_int())) == 0


def join():
    try:
        return meshfuse.Communicator.instance()
    except meshfuse.Error as error:
        print(str(error).splitlines()[0], flush=True)


"""

# Program, what it prints.
JOINS = {
    "a thread level that is too low": (
        "initialise(0)\njoin()\nmpi.MPI_Finalize()",
        "Communicator: MPI runs with thread level 0. Initialise it with MPI_Init_thread and "
        "MPI_THREAD_SERIALIZED (2) or higher, or leave it to meshfuse.",
    ),
    "MPI at its end": (
        "initialise(3)\nmpi.MPI_Finalize()\njoin()",
        "Communicator: MPI was finalised already. Call Communicator.instance() before that.",
    ),
    "a launcher of another MPI": (
        "for end in ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE'):\n"
        "    os.environ[end] = '3'\n"
        "join()\nmpi.MPI_Finalize()",
        "Communicator: mpirun started 3 ranks but MPI sees 1. It belongs to another installation "
        "than the MPI library that meshfuse was built with; use the mpirun of the latter.",
    ),
}


@pytest.mark.parametrize("how", JOINS)
def test_joining_that_is_refused(how, tmp_path):
    program, message = JOINS[how]
    code, _, output = start_job(tmp_path, JOINING + program, ranks=1)
    assert output.strip() == message
    assert code == 0


def test_faults_at_random():
    """A dozen of the jobs of tests/faults; the deadline is generous, for busy machines."""
    script = Path(__file__).parents[1] / "faults" / "inject.py"
    package = str(Path(meshfuse.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    job = subprocess.run(
        [sys.executable, script, "--jobs", "12", "--seed", "7", "--deadline", "20"],
        env={**os.environ, "MPIEXEC": find_mpirun(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
