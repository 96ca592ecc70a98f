# SPDX-License-Identifier: BSD-3-Clause
"""Starts ranks for the tests of a session that no launcher started, and prints their reports.

Tests are grouped by the number of devices that they ask for. A job of that many ranks runs a group
with the same command line; when its ranks stop after a failure that closed their group, another
job runs the rest.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from .. import launchers
from .board import Board, Record
from .by_rank import ByRank, list_ranks
from .ranks import SILENCE, STARTUP, uses_mesh

DEFAULT_SIZE = 2
TAIL = 4000  # characters of a job's output that a report shows

# One thread per rank, more ranks than cores, root: as tests on one machine need it.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    **launchers.ALLOW,
    **launchers.SHARE,
}

_TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--standalone", "--nproc-per-node"),
]


def find_mpirun() -> str:
    """Return MPIEXEC, the mpirun of this Python's environment, or the one on PATH.

    Raises:
        pytest.UsageError: there is none.
    """
    if (found := launchers.find_mpirun()) is not None:
        return found
    raise pytest.UsageError(
        "--mesh-backend=mpi: there is no mpirun. Put it on PATH, set MPIEXEC to it, or start the "
        "ranks yourself: mpirun -np N python -m pytest --mesh-backend=mpi ..."
    )


@dataclass
class Job:
    """Ranks that run tests."""

    process: subprocess.Popen[bytes]
    board: Board
    output: IO[bytes]

    def text(self) -> str:
        """Return the end of what it printed."""
        self.output.flush()
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-TAIL:].strip()

    def end(self, seconds: float) -> int:
        """Wait for its end, and kill it after ``seconds``; return the exit code."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own
            self.process.wait()
        return self.process.returncode


class Launcher:
    """pytest plugin of a process that is no rank itself."""

    def __init__(
        self, config: pytest.Config, by_rank: ByRank, timeout: float, backend: str = "mpi"
    ) -> None:
        """``timeout``: the deadline of a test, in seconds; 0 for none."""
        self._config, self._by_rank, self._timeout = config, by_rank, timeout
        self._start_command = [find_mpirun(), "-np"] if backend == "mpi" else _TORCHRUN
        self._python = [sys.executable] if backend == "mpi" else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run tests that need no ranks here, and each group of the others in jobs."""
        errors = session.testsfailed and not self._config.option.continue_on_collection_errors
        if errors or self._config.option.collectonly:
            return None
        groups: dict[int, list[pytest.Item]] = {}
        here = [item for item in session.items if not uses_mesh(item)]
        for item in session.items:
            if uses_mesh(item):
                groups.setdefault(mesh_size(item) or DEFAULT_SIZE, []).append(item)
        for item, following in itertools.zip_longest(here, here[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            _stop_if_asked(session)
        for size in sorted(groups):
            self._run_group(session, size, groups[size])
        return True

    def _run_group(self, session: pytest.Session, size: int, items: list[pytest.Item]) -> None:
        while items:
            done = self._run_job(session, size, items)
            items = [item for item in items if item.nodeid not in done]

    def _run_job(self, session: pytest.Session, size: int, items: list[pytest.Item]) -> set[str]:
        """Run a job until it ends; return the tests that have a report now, at least one."""
        by_id = {item.nodeid: item for item in items}
        folder = Path(tempfile.mkdtemp(prefix="meshfuse-tests-"))
        job = self._start(size, list(by_id), folder)
        done: set[str] = set()
        try:
            reports: list[pytest.TestReport] = []
            for record in self._records(job, STARTUP + self._timeout, self._timeout + 3 * SILENCE):
                if record["kind"] == "merged":
                    reports.append(self._report(record["report"]))
                elif record["kind"] == "done":
                    item = by_id[record["nodeid"]]
                    done.add(item.nodeid)
                    _log(item, reports)
                    reports = []
                    _stop_if_asked(session)
            code = job.end(SILENCE)
            self._by_rank.add(job.board.records)
            stopped = any(job.board.find(rank, "parted") for rank in range(size))
            if len(done) == len(items) or (done and stopped):
                return done
            # The test in which it ended; all of them when it did not come so far.
            began = any(r["kind"] == "begin" for records in job.board.records for r in records)
            ended_in = [item for item in items if item.nodeid not in done]
            for item in ended_in[: 1 if began else None]:
                _log(item, [_failed_report(item, self._why_ended(job, item, code))])
                done.add(item.nodeid)
                _stop_if_asked(session)
            return done
        finally:
            job.end(0 if sys.exc_info()[0] else SILENCE)
            job.output.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, size: int, tests: Sequence[str], folder: Path) -> Job:
        (folder / "tests.json").write_text(json.dumps(tests))
        arguments = [str(a) for a in self._config.invocation_params.args]
        capture = self._config.getoption("capture") != "no"
        output = tempfile.TemporaryFile()
        process = subprocess.Popen(
            [
                *(*self._start_command, str(size), *self._python, "-m", "pytest", *arguments),
                f"--mesh-job={folder}",
            ],
            cwd=self._config.invocation_params.dir,
            env=_ENVIRONMENT | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=output if capture else None,
            stderr=subprocess.STDOUT if capture else None,
            start_new_session=True,
        )
        return Job(process, Board(folder, size), output)

    def _records(self, job: Job, first: float, later: float) -> Iterator[Record]:
        """Yield what rank 0 reports, until the job ends or says nothing for too long."""
        taken, news_at = 0, time.monotonic()
        while True:
            ended = job.process.poll() is not None
            if job.board.poll():
                news_at = time.monotonic()
            records = job.board.records[0]
            yield from records[taken:]
            taken = len(records)
            if ended:
                return
            started = job.board.find(0, "collected") is not None
            if self._timeout > 0 and time.monotonic() - news_at > (later if started else first):
                job.end(0)
                return
            time.sleep(0.01)

    def _why_ended(self, job: Job, item: pytest.Item, code: int) -> str:
        """Describe a job that ended inside a test, and note it for the ranks at fault."""
        size = job.board.size
        own = [
            [r for r in records if r["kind"] == "own" and r["nodeid"] == item.nodeid]
            for records in job.board.records
        ]
        silent = [rank for rank in range(size) if not own[rank]]
        line = f"the job of {size} ranks ended with exit code {code}"
        for rank in silent:
            self._by_rank.add_line(size, rank, f"{item.nodeid}: no report; {line}")
        told = [r["text"] for records in own for r in records if r["outcome"] == "failed"]
        return "\n\n".join(
            [
                f"{line} before {list_ranks(silent or range(size))} reported on this test.",
                *told,
                job.text(),
            ]
        )

    def _report(self, data: dict[str, Any]) -> pytest.TestReport:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        assert isinstance(report, pytest.TestReport)
        if isinstance(report.longrepr, list):  # of a skip: text has no tuples
            report.longrepr = tuple(report.longrepr)
        return report


def mesh_size(item: pytest.Item) -> int | None:
    """Return the number of devices of ``@pytest.mark.mesh(n)``, or None without the marker.

    Raises:
        pytest.UsageError: the marker's argument is not one positive integer.
    """
    marker = item.get_closest_marker("mesh")
    if marker is None:
        return None
    size = marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        given = [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
        raise pytest.UsageError(
            f"{item.nodeid}: mesh({', '.join(given)}) is not a number of devices. "
            "Write @pytest.mark.mesh(4), for example."
        )
    return size


def _log(item: pytest.Item, reports: list[pytest.TestReport]) -> None:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _failed_report(item: pytest.Item, text: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when="call",
    )


def _stop_if_asked(session: pytest.Session) -> None:
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
