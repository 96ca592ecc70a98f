# SPDX-License-Identifier: BSD-3-Clause
"""The programs that start ranks: mpirun and torchrun."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import _C

PLUGIN = Path(_C.__file__).with_name("libmeshfuse_mpi.so")
# As root and with more ranks than cores: mpirun refuses both unless it is told otherwise. Options
# would do it, but Open MPI 4, Open MPI 5 and MPICH have different ones.
ALLOW = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# Ranks that share cores must not be bound to one of them, nor wait without pause.
SHARE = {
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 3.0  # for a launcher to end its ranks
_LOOK_S = 1.0  # SIGCHLD may go to another thread
# Loads the plugin in a process of its own, and says which MPI it uses.
_LOAD = """\
import ctypes, sys, torch, meshfuse
plugin = ctypes.CDLL(sys.argv[1])
text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
plugin.MPI_Get_library_version(text, ctypes.byref(length))
print(text.value.decode().splitlines()[0].split(", package")[0])
"""


@dataclass(frozen=True)
class Ended:
    """What became of a process; ``code`` is None where it was given up."""

    code: int | None
    output: str
    error: str = ""

    @property
    def last_line(self) -> str:
        """The last line of what it said, for messages."""
        lines = (self.error or self.output).strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


@dataclass(frozen=True)
class Launch:
    """A command that starts ranks, and what it adds to the environment."""

    launcher: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def find_mpirun() -> str | None:
    """Return MPIEXEC, the mpirun of this Python's environment, or the one on PATH."""
    own = str(Path(sys.executable).parent / "mpirun")
    for candidate in (os.environ.get("MPIEXEC"), own, "mpirun", "mpiexec"):
        if candidate and (found := shutil.which(candidate)):
            return found
    return None


def launch(launcher: str, ranks: int, command: Sequence[str]) -> Launch:
    """Return how to start ``command``, the arguments of Python, on so many ranks."""
    if launcher == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return Launch(launcher, [*start, "--nproc-per-node", str(ranks), *command])
    added = dict(ALLOW)
    if ranks > len(os.sched_getaffinity(0)):
        added |= SHARE
    python = [sys.executable, *command]
    return Launch(launcher, [find_mpirun() or "mpirun", "-np", str(ranks), *python], added)


def run_quietly(
    command: Sequence[str],
    seconds: float,
    added: Mapping[str, str] | None = None,
    only: Mapping[str, str] | None = None,
) -> Ended:
    """Run a process to its end; after so many seconds, or an interrupt, end it and its children.

    Its environment is ``only``, or that of this process with ``added``.
    """
    try:
        process = subprocess.Popen(
            command,
            env=dict(only) if only is not None else {**os.environ, **(added or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Ended(127, "", f"{command[0]}: {error.strerror}")
    try:
        output, errors = process.communicate(timeout=seconds)
        return Ended(process.returncode, output, errors)
    except subprocess.TimeoutExpired:
        return Ended(None, *_end(process))
    except BaseException:
        _end(process)
        raise


def load_plugin(seconds: float) -> Ended:
    """Load the MPI plugin in a process of its own; its output is the name of the MPI."""
    return run_quietly([sys.executable, "-c", _LOAD, str(PLUGIN)], seconds)


def why_not_mpirun(seconds: float = 60) -> str | None:
    """Return why ranks cannot be started by mpirun; None where they can."""
    if not PLUGIN.is_file():
        return f"this build has no MPI plugin ({PLUGIN})"
    mpirun = find_mpirun()
    if mpirun is None:
        return "there is no mpirun, neither as MPIEXEC nor on PATH"
    started = run_quietly([mpirun, "-np", "1", "true"], seconds, ALLOW)
    if started.code != 0:
        how = f"did not end in {seconds:g} s" if started.code is None else started.last_line
        return f"{mpirun} starts no process: {how}"
    try:
        ctypes.CDLL(str(PLUGIN))  # starts nothing
    except OSError as error:
        return f"the MPI plugin does not load: {error}"
    return None


def pass_through(
    start: Launch, to_stderr: bool = False, more: Mapping[str, str] | None = None
) -> int:
    """Run ranks with this process's input and output; return the exit code.

    Signals that end this process go to the launcher, which ends the ranks; the exit code is then
    128 and the number of the first one. Those of a terminal reach the launcher by themselves.

    Args:
        start: What to run.
        to_stderr: Send what ranks print to standard error.
        more: Variables for the ranks.
    """
    environment = {**os.environ, **_missing(start.environment), **(more or {})}
    waited = {*_ENDING, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    ended_by: int | None = None
    try:
        process = subprocess.Popen(
            start.command,
            env=environment,
            stdout=2 if to_stderr else None,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        while (code := process.poll()) is None:
            got = signal.sigtimedwait(waited, _LOOK_S)
            if got is None or got.si_signo == signal.SIGCHLD:
                continue
            by_kernel = got.si_code > 0  # by a terminal, to all of its group
            if by_kernel and signal.getsignal(got.si_signo) == signal.SIG_IGN:
                continue  # as nohup asks
            ended_by = ended_by or got.si_signo
            if not by_kernel or got.si_signo != signal.SIGINT:
                process.send_signal(got.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if ended_by is not None:
        return 128 + ended_by
    return code if code >= 0 else 128 - code


def _missing(added: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in added.items() if name not in os.environ}


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a launcher and the ranks, which are in sessions and process groups of their own."""
    ranks = _descendants(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.terminate()  # a launcher ends its ranks, and removes its files
        process.wait(_GRACE_S)
    process.kill()
    for pid, began in (ranks | _descendants(process.pid)).items():
        if _born(pid) == began:  # no other process that has the number now
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return process.communicate()


def _descendants(pid: int) -> dict[int, str]:
    """Return the processes that one has started, and those that they have, with their births."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        facts = _facts(int(entry.name)) if entry.name.isdigit() else []
        if facts:
            children.setdefault(int(facts[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    parents = [pid]
    while parents:
        for child in children.get(parents.pop(), ()):
            found[child] = _born(child)
            parents.append(child)
    return found


def _born(pid: int) -> str:
    facts = _facts(pid)
    return facts[19] if facts else ""


def _facts(pid: int) -> list[str]:
    """Return the fields of a process behind its name, its state first; none where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
