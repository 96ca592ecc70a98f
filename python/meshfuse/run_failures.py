# SPDX-License-Identifier: BSD-3-Clause
"""Which rank of ``meshfuse run`` failed first: each notes in a file of the job that it does."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "MESHFUSE_FAILURES"


@dataclass(frozen=True)
class RankFailure:
    """An exception that nobody caught on a rank; ``follows`` another rank's, if it is PeerError."""

    rank: int
    at: float
    error: str
    follows: bool

    def __str__(self) -> str:
        """Return one line."""
        first = self.error.splitlines()[0] if self.error else ""
        return f"rank {self.rank} failed first: {first}"


def note_failure(rank: int, error: str, follows: bool) -> None:
    """Append a failure of this rank to the file, if there is one that can be written."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = json.dumps({"rank": rank, "at": time.time(), "error": error, "follows": follows})
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{line}\n".encode())  # at once: lines of ranks do not mix
        finally:
            os.close(file)


def first_failure(path: Path) -> RankFailure | None:
    """Return the earliest failure that follows no other rank's."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError):
            found.append(RankFailure(**json.loads(line)))
    return min((f for f in found if not f.follows), key=lambda f: f.at, default=None)
