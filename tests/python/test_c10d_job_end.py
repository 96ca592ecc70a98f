# SPDX-License-Identifier: BSD-3-Clause
"""How jobs over torch.distributed end, and where their group comes from.

Ranks are started as a launcher does, but nothing ends the others when one dies: each must find out
by itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_job_end import COMMUNICATING_ENDS, REDUCING

import meshfuse

pytestmark = pytest.mark.skipif(
    any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")),
    reason="this process is a rank itself",
)
OTHER_VARIABLES = ("MESHFUSE_BACKEND", "MESHFUSE_TIMEOUT", "MESHFUSE_MASTER_PORT", "SLURM_PROCID")


class RankServer:
    """A process that has imported all that ranks need, and forks them: in no time."""

    def __init__(self):
        package = str(Path(meshfuse.__file__).parents[1])
        path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
        inherited = {k: v for k, v in os.environ.items() if k not in OTHER_VARIABLES}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_server.py"))],
            env=inherited | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder, program, ranks=2, limit=60, **environment):
        """Run a program on ranks; return for each the exit code, the seconds and the output."""
        script = folder / "job.py"
        script.write_text(program)
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = str(probe.getsockname()[1])
        common = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
        job = {
            "script": str(script),
            "limit": limit,
            "ranks": [
                {"RANK": str(rank), "LOCAL_RANK": str(rank)} | common | environment
                for rank in range(ranks)
            ],
            "outputs": [str(folder / f"rank{rank}") for rank in range(ranks)],
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        ends = json.loads(self._process.stdout.readline())
        texts = [Path(output).read_text() for output in job["outputs"]]
        for rank, (code, _) in enumerate(ends):
            assert code is not None, f"rank {rank} was still there after {limit} s:\n{texts[rank]}"
        return [(code, seconds, text) for (code, seconds), text in zip(ends, texts, strict=True)]

    def close(self):
        self._process.stdin.close()
        self._process.wait(10)


@pytest.fixture(scope="module")
def run_ranks():
    server = RankServer()
    yield server.run
    server.close()


@pytest.mark.parametrize("end", COMMUNICATING_ENDS)
def test_end_of_a_job_that_communicates(end, run_ranks, tmp_path):
    """As over MPI: the others are told, and name the rank."""
    tail, code, texts = COMMUNICATING_ENDS[end]
    limits = {"MESHFUSE_TIMEOUT": "2"} if end == "a rank that never comes" else {}
    tail = tail.replace("time.sleep(60)", "time.sleep(4)")  # nothing ends that rank before
    results = run_ranks(tmp_path, REDUCING + tail, **limits)
    output = "".join(text for _, _, text in results)
    worst = max(abs(c) for c, _, _ in results)
    assert worst == code if code is not None else worst != 0, output
    for text in texts:
        assert text in output


DTENSORS = """
import logging, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
import meshfuse
from meshfuse import FusionDefinition
logging.getLogger("meshfuse").disabled = True
dist.init_process_group("gloo")
rank = dist.get_rank()
devices = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
x, w = (DTensor.from_local(torch.ones(2, 2), devices, [Shard(axis)]) for axis in (1, 0))
with FusionDefinition() as fd:
    fd.add_output(fd.ops.matmul(fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])))
if AFTER_ANOTHER:
    meshfuse.execute_with_dtensors(fd, [x, w])
arguments = WRONG if rank == 1 else (fd, [x, w])
try:
    meshfuse.execute_with_dtensors(*arguments)
except Exception as error:
    print(type(error).__name__, error, flush=True)
time.sleep(1)
"""


@pytest.mark.parametrize(
    ("wrong", "message", "after_another"),
    [
        (
            "(fd, [x, torch.ones(2, 2)])",
            "TypeError execute_with_dtensors: input 1 is a torch.Tensor.",
            False,
        ),
        ("(fd, [])", "ValueError execute_with_dtensors: there are no inputs.", True),
        ("(None, [x, w])", "TypeError execute_with_dtensors: fd must be a FusionDefinition", False),
        (
            "(fd, [x, DTensor.from_local(torch.ones(2, 2), devices, [Partial()])])",
            "Error execute_with_dtensors: input 1 is partial (sum) on mesh_x",
            True,
        ),
    ],
    ids=["tensor", "nothing", "no_definition", "partial"],
)
def test_wrong_dtensors_on_one_rank(wrong, message, after_another, run_ranks, tmp_path):
    """It goes on; the other one, which would wait for it, hears of it in no time."""
    program = DTENSORS.replace("WRONG", wrong).replace("AFTER_ANOTHER", str(after_another))
    (_, seconds, waiting), (_, _, output) = run_ranks(tmp_path, program)
    assert message in output
    assert "PeerError execute: rank 1 gave up an execution that rank 0 takes part in" in waiting
    assert message.split(" ", 1)[1] in waiting
    assert seconds < 30, waiting


def test_killed_rank(run_ranks, tmp_path):
    """The one that waits for it hears of it in no time."""
    tail = """
start = time.monotonic()
if rank == 1:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    run()
except meshfuse.PeerError as error:
    assert error.rank == 1, error
    assert "crashed or was killed" in error.reason, error
    assert time.monotonic() - start < 5
    print("found out")
"""
    (_, _, output), (code, _, _) = run_ranks(tmp_path, REDUCING + tail)
    assert "found out" in output
    assert code == -9


def test_rank_killed_within_a_collective(run_ranks, tmp_path):
    """It had agreed, so the other one waits for data."""
    tail = """
big = 3_000_000
if rank == 1:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
try:
    while True:
        run(rows=big // 4)
except meshfuse.PeerError as error:
    assert error.rank == 1, error
    print("found out")
"""
    (_, seconds, output), (code, _, _) = run_ranks(tmp_path, REDUCING + tail)
    assert "found out" in output
    assert code == -9
    assert seconds < 40


def test_rank_that_never_joins(run_ranks, tmp_path):
    program = """
import os, time
import meshfuse
if os.environ["RANK"] == "1":
    import torch.distributed as dist
    store = next(dist.rendezvous("env://"))[0]
    time.sleep(3)
else:
    try:
        meshfuse.Communicator.instance()
    except meshfuse.Error as error:
        print(error)
"""
    (code, _, output), _ = run_ranks(tmp_path, program, MESHFUSE_TIMEOUT="2")
    assert code == 0, output
    assert (
        "rank 0 of 2 timed out after 2 s (MESHFUSE_TIMEOUT) while it joined the group: nothing was "
        "heard of rank 1. All ranks must use the communicator"
    ) in output


WITHOUT_A_STORE = """
import torch.distributed as dist, meshfuse
from torch._C._distributed_c10d import _register_process_group
group = dist.ProcessGroup(0, 1)
group._set_group_name("bare")
_register_process_group("bare", group)
type(group).group_name = "bare"
meshfuse.set_process_group(group)
"""
WITHOUT_FILES = """
import os, resource
import torch.distributed as dist, meshfuse
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
free = [os.open(os.devnull, os.O_RDONLY) for _ in range(FREE + 1)]
for file in free:
    os.close(file)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], most))
"""
ALONE = {
    "a group without a store": (
        WITHOUT_A_STORE,
        "Communicator: the process group bare has no store. Make it by "
        "torch.distributed.init_process_group or new_group.",
    ),
    "no file to open": (
        WITHOUT_FILES.replace("FREE", "0"),
        "Communicator: no epoll: Too many open files. Allow this process more open files "
        "(ulimit -n).",
    ),
    "one file to open": (
        WITHOUT_FILES.replace("FREE", "1"),
        "Communicator: this process cannot listen on a TCP port: Too many open files. The ranks "
        "need TCP connections between one another.",
    ),
}


@pytest.mark.parametrize("what", ALONE)
def test_process_that_cannot_join(what, run_ranks, tmp_path):
    program, message = ALONE[what]
    tail = """
try:
    meshfuse.Communicator.instance()
except meshfuse.Error as error:
    print(str(error).splitlines()[0])
"""
    ((code, _, output),) = run_ranks(tmp_path, program + tail, ranks=1)
    assert output.strip() == message
    assert code == 0


def test_child_of_a_rank(run_ranks, tmp_path):
    """It is refused, and the group of its parent goes on."""
    tail = """
if (child := os.fork()) == 0:
    try:
        comm.barrier()
    except meshfuse.Error as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
comm.barrier()
run()
print("parent", os.getpid(), "child", child)
"""
    for code, _, output in run_ranks(tmp_path, REDUCING + tail):
        assert code == 0, output
        message, processes = output.strip().splitlines()
        _, parent, _, child = processes.split()
        assert message == (
            f"barrier: process {child} is a forked child of process {parent}, which is the member "
            "of the group. Communicate in the parent only."
        )


GROUPS = {
    "the default group, opened before": """
import torch.distributed as dist
dist.init_process_group("gloo")
PROGRAM
assert comm.backend() == "c10d"
dist.destroy_process_group()
""",
    "a default group that is opened later": """
PROGRAM
import torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
run()
assert t == size
dist.destroy_process_group()
run()
""",
    "a given group, in use by the program too": """
import torch, torch.distributed as dist, meshfuse
dist.init_process_group("gloo")
group = dist.new_group([0, 1])
meshfuse.set_process_group(group)
PROGRAM
t = torch.ones(1)
pending = dist.all_reduce(t, group=group, async_op=True)
run()
pending.wait()
assert t == size
""",
    "a mesh of torch with ranks in another order": """
import torch, torch.distributed as dist, meshfuse
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
dist.init_process_group("gloo")
meshfuse.set_process_group(TorchMesh("cpu", [1, 0]))
PROGRAM
assert (rank, size) == (1 - dist.get_rank(), 2)
""",
    "a group of one of the ranks": """
import torch, torch.distributed as dist, meshfuse
dist.init_process_group("gloo")
meshfuse.set_process_group([dist.new_group([r]) for r in (0, 1)][dist.get_rank()])
PROGRAM
assert (rank, size) == (0, 1)
""",
    "variables of its own": """
import os
os.environ["MESHFUSE_MASTER_PORT"] = str(int(os.environ.pop("MASTER_PORT")) - 1)
PROGRAM
assert size == 2
""",
    "errors": """
import os, torch, torch.distributed as dist, meshfuse
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
def message(*args):
    try:
        meshfuse.set_process_group(*args)
    except (meshfuse.Error, TypeError) as error:
        return str(error)
dist.init_process_group("gloo")
assert "expected a ProcessGroup or a DeviceMesh" in message("gloo")
mesh = TorchMesh("cpu", [0], _init_backend=False)
if dist.get_rank() == 1:
    assert "rank 1 is not in the mesh of ranks [0]" in message(mesh)
os.environ["MESHFUSE_BACKEND"] = "single"
assert "MESHFUSE_BACKEND=single asks for another backend" in message(dist.group.WORLD)
os.environ["MESHFUSE_BACKEND"] = ""
PROGRAM
assert "has started already, on backend c10d" in message(dist.group.WORLD)
""",
}


@pytest.mark.parametrize("where", GROUPS)
def test_where_the_group_comes_from(where, run_ranks, tmp_path):
    for code, _, output in run_ranks(tmp_path, GROUPS[where].replace("PROGRAM", REDUCING)):
        assert code == 0, output
        assert output.strip() == ""


def test_import_starts_nothing():
    """The package does not open, and does not need, torch.distributed."""
    body = (
        "import sys, meshfuse, torch.distributed as dist\n"
        "assert not dist.is_initialized()\n"
        "assert meshfuse.Communicator.instance().backend() == 'single'\n"
    )
    subprocess.run([sys.executable, "-c", body], check=True)
