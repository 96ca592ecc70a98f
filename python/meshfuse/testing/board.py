# SPDX-License-Identifier: BSD-3-Clause
"""What the ranks of a test session tell one another, beside the communicator that they test.

A file per rank in a folder that all ranks see, one JSON object per line. Nothing here waits for a
rank, so a rank that hangs or died holds nobody up.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Board:
    """Records of all ranks; written by one of them, or only read."""

    def __init__(self, folder: Path, size: int, rank: int | None = None) -> None:
        """Open the folder for ``size`` ranks, as rank ``rank`` or (None) to read."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self.size, self.rank = folder, size, rank
        self.records: list[list[Record]] = [[] for _ in range(size)]
        self._keyed: list[dict[tuple[str, Any, Any], Record]] = [{} for _ in range(size)]
        self._rests = [b""] * size  # the beginning of a line that is not complete yet
        self._offsets = [0] * size
        if rank is not None:
            self._path(rank).write_bytes(b"")

    def post(self, kind: str, **values: Any) -> None:
        """Add a record of this rank; it is JSON-ready."""
        assert self.rank is not None
        record = {"kind": kind, **values}
        self._take(self.rank, record)
        with self._path(self.rank).open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    def poll(self) -> bool:
        """Read what the other ranks have written since; return whether there was anything."""
        news = [self._read(rank) for rank in range(self.size) if rank != self.rank]
        return any(news)

    def find(
        self, rank: int, kind: str, index: int | None = None, stage: str = ""
    ) -> Record | None:
        """Return the latest record of a rank of this kind, for a stage of test ``index``."""
        return self._keyed[rank].get((kind, index, stage))

    def others(self) -> list[int]:
        """Return the ranks beside this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def _path(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.jsonl"

    def _read(self, rank: int) -> bool:
        try:
            with self._path(rank).open("rb") as file:
                file.seek(self._offsets[rank])
                data = file.read()
        except FileNotFoundError:  # it is not there yet
            return False
        if not data:
            return False
        self._offsets[rank] += len(data)
        *lines, self._rests[rank] = (self._rests[rank] + data).split(b"\n")
        for line in lines:
            self._take(rank, json.loads(line))
        return bool(lines)

    def _take(self, rank: int, record: Record) -> None:
        self.records[rank].append(record)
        self._keyed[rank][record["kind"], record.get("index"), record.get("stage", "")] = record


def default_folder() -> Path:
    """Return a folder that the ranks of one job on one machine agree on without talking."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")  # "none" unless somebody names the job
    job = os.environ.get("PMIX_NAMESPACE") or (None if run == "none" else run)
    step = os.environ.get("SLURM_JOB_ID", "") + os.environ.get("SLURM_STEP_ID", "")
    name = f"{os.getuid()} {job or step or os.getppid()}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"meshfuse-tests-{digest}"
