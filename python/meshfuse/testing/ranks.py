# SPDX-License-Identifier: BSD-3-Clause
"""A test session whose process is one of several ranks.

Every rank runs every test. At the end of a test they wait for one another's reports, over the
board and not over the communicator under test: where one rank failed the test has failed on all of
them, so that they also agree on ``-x``. A failed rank first sees whether the others end the test
too; those that wait for it in a communication are released by closing the group.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator
from typing import Any

import pytest

from .. import _C, failure
from ..exceptions import PeerError
from .board import Board, Record
from .by_rank import ByRank, list_ranks
from .deadline import Deadline

GRACE = 5.0  # seconds a failed rank leaves the others before it closes the group
SILENCE = 10.0  # seconds after the deadline at which a rank without a report is given up
STARTUP = 120.0  # seconds in which all ranks must have collected
SILENT = "no report in time. The rank hangs where no signal reaches Python, or its process is gone"
MESH_FIXTURES = frozenset({"mesh_env", "multidevice_test"})


def uses_mesh(item: pytest.Item) -> bool:
    """Return whether a test is about several devices, by its marker or fixtures."""
    names = getattr(item, "fixturenames", ())
    return item.get_closest_marker("mesh") is not None or not MESH_FIXTURES.isdisjoint(names)


class RankSession:
    """pytest plugin of one rank.

    Args:
        board: Where the ranks tell one another what happened.
        deadline: The deadline of the current test.
        by_rank: The summary, on the rank that prints it.
        restartable: Whether a parent process prints, and starts new ranks when these stop.
    """

    def __init__(
        self, board: Board, deadline: Deadline, by_rank: ByRank | None, restartable: bool
    ) -> None:
        """Begin before the first test."""
        assert board.rank is not None
        self.rank = board.rank
        self._board, self._deadline, self._by_rank = board, deadline, by_rank
        self._restartable = restartable
        self._index = -1
        self._calls = 0  # collective calls before this stage
        self.parted: str | None = None  #: why the ranks cannot run another test together

    # ---- collection

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Make sure that all ranks have the same tests."""
        self._board.post("collected", tests=[item.nodeid for item in session.items])
        late = self._wait_for("collected", STARTUP)
        problem = (
            self._difference()
            if not late
            else (f"{list_ranks(late)} did not collect tests within {STARTUP:g} s")
        )
        if problem is None:
            return
        session.items.clear()
        self.parted = problem
        if self.rank == 0:
            raise pytest.UsageError(f"--mesh-backend: {problem}")

    def _difference(self) -> str | None:
        mine = self._collected(0)
        for rank in range(1, self._board.size):
            theirs = self._collected(rank)
            if theirs == mine:
                continue
            pairs = zip([*mine, "nothing"], [*theirs, "nothing"], strict=False)
            first, other = next(pair for pair in pairs if pair[0] != pair[1])
            return (
                f"the ranks collected different tests: rank 0 has {first} where rank {rank} has "
                f"{other}. Make parameters and the order of tests equal on all ranks."
            )
        return None

    def _collected(self, rank: int) -> list[str]:
        record = self._board.find(rank, "collected")
        return [] if record is None else record["tests"]

    # ---- one test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Count tests."""
        self._index += 1
        self._board.post("begin", nodeid=item.nodeid)
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Leave out what cannot work any more."""
        if self.parted is not None and uses_mesh(item):
            pytest.skip(f"not run: {self.parted}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what the other ranks report at the end of a body and of a teardown."""
        report = yield
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self._agree("body", item, call, report)
        elif report.when == "teardown":
            self._agree("teardown", item, call, report)
        return report

    def _agree(
        self, stage: str, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> None:
        error = None if call.excinfo is None else call.excinfo.value
        calls = _C.collective_calls()
        self._board.post(
            "own",
            index=self._index,
            stage=stage,
            nodeid=item.nodeid,
            outcome=report.outcome,
            line=_line(call, report) if report.failed else "",
            text=report.longreprtext if report.failed else "",
            closed=isinstance(error, PeerError),
            late=isinstance(error, TimeoutError),
            calls=calls - self._calls,
            refusals=failure.refusals(),
        )
        self._calls = calls
        if self.parted is not None:
            return
        released = self._wait_for_stage(stage, item)
        found = {
            rank: record
            for rank in range(self._board.size)
            if (record := self._board.find(rank, "own", self._index, stage)) is not None
        }
        silent = [rank for rank in range(self._board.size) if rank not in found]
        self._merge(report, found, silent)
        for rank in silent:
            self._board.post("silent", rank=rank, line=f"{item.nodeid}: {SILENT}")
        why = _why_parted(found, silent, released)
        if why is not None:
            self._part(f"{why} in {item.nodeid}", item.session)

    def _wait_for_stage(self, stage: str, item: pytest.Item) -> bool:
        """Wait for the reports of the others; return whether those that waited were released."""
        mine = self._board.find(self.rank, "own", self._index, stage)
        assert mine is not None
        began = time.monotonic()
        grace = 0.0 if mine["late"] else GRACE
        ends = max(began, self._deadline.ends_at) + SILENCE
        released, pause = False, 2e-4
        while True:
            self._board.poll()
            missing = [
                rank
                for rank in self._board.others()
                if self._board.find(rank, "own", self._index, stage) is None
                and self._board.find(rank, "finished") is None
            ]
            parted = any(self._board.find(rank, "parted") for rank in self._board.others())
            waited = time.monotonic() - began
            if not missing or parted or began + waited > ends:
                return released
            if mine["outcome"] == "failed" and not released and waited >= grace:
                released = True
                _C.report_failure(f"{item.nodeid}: {mine['line']}")
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _merge(
        self, report: pytest.TestReport, found: dict[int, Record], silent: list[int]
    ) -> None:
        texts = {rank: r["text"] for rank, r in found.items() if r["outcome"] == "failed"}
        texts |= dict.fromkeys(silent, SILENT)
        texts.pop(self.rank, None)
        if report.failed:
            report.sections += [(f"rank {rank}", text) for rank, text in sorted(texts.items())]
        elif texts:
            report.outcome = "failed"
            report.longrepr = "\n\n".join(
                f"Failed on rank {rank}:\n{text}" for rank, text in sorted(texts.items())
            )
            if hasattr(report, "wasxfail"):
                del report.wasxfail

    def _part(self, why: str, session: pytest.Session) -> None:
        """Stop testing together: the next communication could meet what was left over."""
        self.parted = why
        self._board.post("parted", why=why)
        _C.report_failure(why)
        if self._restartable:
            session.shouldstop = why
        elif self._by_rank is not None:
            self._by_rank.note(f"Tests on several ranks after that were not run: {why}.")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hand reports to the parent."""
        if self._restartable and self.rank == 0:
            data = self._config.hook.pytest_report_to_serializable(
                config=self._config, report=report
            )
            self._board.post("merged", nodeid=report.nodeid, report=data)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Tell the parent that a test is over."""
        if self._restartable and self.rank == 0:
            self._board.post("done", nodeid=nodeid)

    # ---- beginning and end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Remember the configuration, and print nothing where another process does."""
        self._config = session.config
        if self._by_rank is None:
            _silence(session.config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Let the rank that prints have all reports, and wait until it has printed them."""
        self._board.post("finished", status=int(exitstatus))
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            _C.report_failure(f"the test session of rank {self.rank} ended early")
        if self._restartable:
            session.exitstatus = pytest.ExitCode.OK  # the parent knows better
        elif self.rank == 0:
            self._take_all(session)
        else:
            self._wait_for("printed", self._patience(), [0])
            self._board.post("left")
            # A launcher ends the job when a rank fails. The first one says how it went.
            session.exitstatus = pytest.ExitCode.OK

    def _take_all(self, session: pytest.Session) -> None:
        late = self._wait_for("finished", self._patience())
        statuses = [self._board.find(rank, "finished") for rank in self._board.others()]
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            worst = max((s["status"] for s in statuses if s is not None), default=0)
            if late or worst not in (0, session.exitstatus):
                session.exitstatus = worst or pytest.ExitCode.TESTS_FAILED
        assert self._by_rank is not None
        self._by_rank.add(self._board.records)
        if late:
            self._by_rank.note(f"{list_ranks(late)} did not reach the end of the session.")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """After the summary: let the others go."""
        if self.rank != 0 or self._restartable:
            return
        self._board.post("printed")
        self._wait_for("left", 2.0)
        shutil.rmtree(self._board.folder, ignore_errors=True)

    def _patience(self) -> float:
        # Ranks that parted do not wait for one another's tests; one of them may hang.
        return SILENCE + (self._deadline.seconds if self.parted is None else 0)

    def _wait_for(self, kind: str, seconds: float, ranks: list[int] | None = None) -> list[int]:
        """Wait for a record of other ranks; return those that did not post it in time."""
        ends = time.monotonic() + seconds
        while True:
            self._board.poll()
            wanted = self._board.others() if ranks is None else ranks
            missing = [rank for rank in wanted if self._board.find(rank, kind) is None]
            if not missing or time.monotonic() > ends:
                return missing
            time.sleep(0.005)


def _why_parted(found: dict[int, Record], silent: list[int], released: bool) -> str | None:
    """Return why the ranks cannot go on together after a stage, or None."""
    records = found.values()
    failed = [rank for rank, record in found.items() if record["outcome"] == "failed"]
    if silent:
        return f"{list_ranks(silent)} gave no report"
    if any(r["closed"] or r["late"] for r in records) or released:
        causes = [rank for rank in failed if not found[rank]["closed"]] or failed
        return f"{list_ranks(causes)} failed while others communicated"
    if len({r["refusals"] for r in records}) > 1:
        return "only some ranks gave up an execution"
    if failed and len({r["calls"] for r in records}) > 1:
        return f"{list_ranks(failed)} failed, and made other communications than the rest"
    return None


def _line(call: pytest.CallInfo[None], report: pytest.TestReport) -> str:
    """Return "AssertionError: assert 1 == 2"."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(getattr(crash, "message", "") or report.longreprtext.strip() or "failed")
    first = message.strip().splitlines()[0]
    if call.excinfo is None:
        return first
    kind = call.excinfo.typename
    prefix, _, rest = first.partition(": ")  # "meshfuse.PeerError: ..."
    return f"{kind}: {rest}" if prefix.rpartition(".")[2] == kind else f"{kind}: {first}"


def _silence(config: pytest.Config) -> None:
    """Print nothing, and write no file that another process writes too."""
    manager = config.pluginmanager
    reporter: Any = manager.get_plugin("terminalreporter")
    if reporter is not None:
        writer = type(reporter._tw)
        reporter._tw = writer(file=open(os.devnull, "w"))
    for _, plugin in manager.list_name_plugin():
        if type(plugin).__name__ == "LogXML":
            manager.unregister(plugin)
    cache: Any = getattr(config, "cache", None)
    if cache is not None:
        cache.set = lambda key, value: None
