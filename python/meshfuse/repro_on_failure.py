# SPDX-License-Identifier: BSD-3-Clause
"""Writes a repro bundle when an execution fails, if MESHFUSE_REPRO_DIR names a folder."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import _C
from ._C import Fusion, InternalError

VARIABLE = "MESHFUSE_REPRO_DIR"
MOST = 20  # bundles of one process: a loop that catches errors must not fill the disk

_log = logging.getLogger("meshfuse")
_count = itertools.count()
_written = 0


def write_bundle_of_failure(
    error: BaseException,
    fusion: Fusion | None,
    inputs: Iterable[Any] | None,
    rank: int | None = None,
) -> Path | None:
    """Write a bundle of a failure, once; return its file, None where there is none.

    Nothing is raised: the failure itself is what matters.

    Args:
        error: What leaves the execution.
        fusion: The program, if it exists.
        inputs: The inputs of this rank, or of device ``rank`` of a simulated mesh.
        rank: None: the rank of this process.
    """
    global _written
    folder = os.path.expanduser(os.environ.get(VARIABLE, "").strip())  # no shell may have done it
    if not folder or fusion is None or _written >= MOST or hasattr(error, "_meshfuse_bundle"):
        return None
    try:
        error._meshfuse_bundle = True  # type: ignore[attr-defined]
        from .repro_bundle import make_bundle

        place = _place() if rank is None else (rank, 1, "simulated")
        given = list(inputs) if isinstance(inputs, list | tuple) else None
        try:
            bundle = make_bundle(fusion, given, parts="rank", error=error, place=place)
        except Exception:  # inputs that cannot be described
            bundle = make_bundle(fusion, error=error, place=place)
        file = _create(Path(folder), place[0], type(error).__name__, bundle.to_bytes())
        _written += 1
        _log.error("Repro bundle written: %s. To run it: meshfuse replay %s", file, file)
        error.add_note(f"repro bundle: {file}")
        return file
    except Exception as problem:
        _log.warning("%s: no repro bundle could be written: %s", VARIABLE, problem)
        return None


@contextlib.contextmanager
def bundle_of_internal_error(fusion: Fusion) -> Iterator[None]:
    """Write a bundle of a fault of meshfuse in what compiles or plans a program."""
    try:
        yield
    except InternalError as error:
        write_bundle_of_failure(error, fusion, None)
        raise


def _place() -> tuple[int, int, str | None]:
    """Return rank, number of ranks and backend, without starting a communicator."""
    try:
        if _C.has_communicator():
            communicator = _C.communicator()
            return communicator.rank(), communicator.size(), communicator.backend()
        launched = _C.launched_as()
    except Exception:  # on a simulated mesh there is no rank; variables may be wrong
        launched = None
    return (0, 1, None) if launched is None else (*launched, None)


def _create(folder: Path, rank: int, kind: str, data: bytes) -> Path:
    """Write a file of a new name."""
    folder.mkdir(parents=True, exist_ok=True)
    host = re.sub(r"[^\w.-]", "_", platform.node()) or "host"
    while True:
        file = folder / f"rank{rank}-{host}-{os.getpid()}-{next(_count)}-{kind}.mfrepro"
        try:
            with file.open("xb") as opened:
                opened.write(data)
            return file
        except FileExistsError:
            continue
        except BaseException:
            file.unlink(missing_ok=True)
            raise
