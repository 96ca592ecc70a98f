# SPDX-License-Identifier: BSD-3-Clause
"""Checks of environment variables: unknown ones, wrong values, contradictions."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ..options import DISABLE, DUMP, ENABLE
from .finding import Finding

_FLAG = re.compile(r"(1|true|yes|on|0|false|no|off|)", re.IGNORECASE)


def _is_flag(text: str) -> str | None:
    return None if _FLAG.fullmatch(text.strip()) else "is neither on nor off: set it to 1 or 0"


def _is_seconds(text: str) -> str | None:
    try:
        good = 0 < float(text) < float("inf")
    except ValueError:
        good = False
    return None if good else "is not a positive number of seconds: set it to 300, for example"


def _is_bytes(text: str) -> str | None:
    good = text.isdigit() and 0 < int(text) < 2**31
    return None if good else "is not a positive integer below 2^31: set it to 1048576, for example"


def _is_port(text: str) -> str | None:
    good = text.isdigit() and 0 < int(text) < 65536
    return None if good else "is not a port from 1 to 65535: set it to a free one"


def _is_backend(text: str) -> str | None:
    good = text in ("mpi", "c10d", "single")
    return None if good else "is no backend: set it to mpi, c10d or single"


def _is_folder(text: str) -> str | None:
    """Try to write into the folder, or into the nearest one that exists."""
    folder = Path(text).absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"cannot be written to ({error.strerror}): give a folder that can"


def _of(known: frozenset[str], *prefixes: str) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        names = [name.strip().partition("(")[0] for name in text.split(",") if name.strip()]
        wrong = [n for n in names if n not in known and not n.startswith(prefixes or ("\0",))]
        if not wrong:
            return None
        near = difflib.get_close_matches(wrong[0], known, 1)
        meant = f"; {near[0]} was perhaps meant" if near else ""
        return f"has the unknown option {wrong[0]}{meant}: leave it out"

    return check


def _any(text: str) -> str | None:
    return None


# Each variable with the function that says what is wrong with a value.
VARIABLES: dict[str, Callable[[str], str | None]] = {
    "MESHFUSE_BACKEND": _is_backend,
    "MESHFUSE_DISABLE": _of(DISABLE),
    "MESHFUSE_DUMP": _of(DUMP, "before:", "after:"),
    "MESHFUSE_DUMP_RANKS": lambda t: (
        None if re.fullmatch(r"all|[\d, ]+", t) else "is no list of ranks: write 0,1 or all"
    ),
    "MESHFUSE_ENABLE": _of(ENABLE),
    "MESHFUSE_FAILURES": _any,  # of meshfuse run to its ranks
    "MESHFUSE_IGNORE_USER_SCHEDULE": _is_flag,
    "MESHFUSE_LINKS": _any,
    "MESHFUSE_MASTER_ADDR": _any,
    "MESHFUSE_MASTER_PORT": _is_port,
    "MESHFUSE_MESSAGE_PIECE_BYTES": _is_bytes,
    "MESHFUSE_REJECT_CPU_INPUTS": _is_flag,
    "MESHFUSE_REPRO_DIR": _is_folder,
    "MESHFUSE_STRICT": _is_flag,
    "MESHFUSE_TIMEOUT": _is_seconds,
    "MESHFUSE_TRACEBACK": _is_flag,
}
_PAIRS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def check_environment(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Look at the variables of meshfuse and of launchers."""
    found = [*_unknown(environment), *_wrong(environment), *_contradictions(environment)]
    if found:
        return found
    known = [name for name in environment if name in VARIABLES]
    fact = ", ".join(f"{name}={environment[name]}" for name in sorted(known)) or "none is set"
    return [Finding("variables", "ok", fact)]


def _unknown(environment: Mapping[str, str]) -> list[Finding]:
    found = []
    for name in sorted(environment):
        if not name.startswith("MESHFUSE_") or name in VARIABLES:
            continue
        near = difflib.get_close_matches(name, VARIABLES, 1)
        cure = f"unset {name}" + (f", or set {near[0]} in its place" if near else "")
        found.append(Finding("variables", "failed", f"{name} is not a variable of meshfuse", cure))
    return found


def _wrong(environment: Mapping[str, str]) -> list[Finding]:
    found = []
    for name, check in VARIABLES.items():
        text = environment.get(name, "")
        problem = check(text) if text else None
        if problem is not None:
            fact, _, cure = problem.partition(": ")
            found.append(Finding("variables", "failed", f'{name}="{text}" {fact}', cure))
    return found


def _contradictions(environment: Mapping[str, str]) -> list[Finding]:
    found = []
    for kind in ("ENABLE", "DISABLE", "DUMP"):
        ours, theirs = (environment.get(f"{p}_{kind}") for p in ("MESHFUSE", "NVFUSER"))
        if ours and theirs and ours != theirs:
            fact = f"MESHFUSE_{kind}={ours}, but NVFUSER_{kind}={theirs}, which is not read"
            found.append(Finding("variables", "warning", fact, f"unset NVFUSER_{kind}"))
    enabled, disabled = (
        {o.strip() for o in environment.get(f"MESHFUSE_{k}", "").split(",") if o.strip()}
        for k in ("ENABLE", "DISABLE")
    )
    for option in sorted(enabled & disabled):
        fact = f"{option} is in MESHFUSE_ENABLE and in MESHFUSE_DISABLE"
        found.append(Finding("variables", "failed", fact, "take it out of one of them"))
    for rank, size in _PAIRS:
        if (rank in environment) != (size in environment):
            have, lack = (rank, size) if rank in environment else (size, rank)
            fact = f"{have}={environment[have]}, but {lack} is not set; launchers set both"
            found.append(Finding("variables", "failed", fact, f"unset {have}"))
        elif rank in environment and not _fits(environment[rank], environment[size]):
            fact = f"{rank}={environment[rank]} is no rank of {size}={environment[size]}"
            found.append(Finding("variables", "failed", fact, f"unset {rank} and {size}"))
    backend = environment.get("MESHFUSE_BACKEND")
    if backend == "mpi" and "WORLD_SIZE" in environment and not _mpi(environment):
        fact = "MESHFUSE_BACKEND=mpi, but torchrun started this process, not mpirun"
        cure = "unset MESHFUSE_BACKEND, or start with mpirun"
        found.append(Finding("variables", "failed", fact, cure))
    if backend == "single" and (_mpi(environment) or "WORLD_SIZE" in environment):
        fact = "MESHFUSE_BACKEND=single, but a launcher started this process: ranks do not talk"
        found.append(Finding("variables", "warning", fact, "unset MESHFUSE_BACKEND"))
    return found


def _mpi(environment: Mapping[str, str]) -> bool:
    return "OMPI_COMM_WORLD_SIZE" in environment or "PMI_SIZE" in environment


def _fits(rank: str, size: str) -> bool:
    return rank.isdigit() and size.isdigit() and int(rank) < int(size)
