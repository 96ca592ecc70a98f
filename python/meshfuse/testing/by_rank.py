# SPDX-License-Identifier: BSD-3-Clause
"""The section of the terminal summary that says which rank failed what."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from .board import Record

TITLE = "failures by rank"


class ByRank:
    """pytest plugin of the process that prints: failures of ranks, by the number of ranks."""

    def __init__(self) -> None:
        """Begin with no rank."""
        self._ranks: dict[int, list[list[str]]] = {}
        self._notes: list[str] = []

    def note(self, text: str) -> None:
        """Add a line to the section."""
        self._notes.append(text)

    def add(self, records: list[list[Record]]) -> None:
        """Take the records of the ranks of one job."""
        lists = self._ranks.setdefault(len(records), [[] for _ in records])
        for rank, mine in enumerate(records):
            lists[rank].extend(
                f"{r['nodeid']}: {r['line']}"
                for r in mine
                if r["kind"] == "own" and r["outcome"] == "failed"
            )
        silent = [(r["rank"], r["line"]) for mine in records for r in mine if r["kind"] == "silent"]
        for rank, line in dict.fromkeys(silent):  # several ranks may say so of one
            lists[rank].append(line)

    def add_line(self, size: int, rank: int, line: str) -> None:
        """Add a failure that the rank could not tell itself."""
        self._ranks.setdefault(size, [[] for _ in range(size)])[rank].append(line)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the section, when there is a failure."""
        failed = {size: ranks for size, ranks in self._ranks.items() if any(ranks)}
        if not failed and not self._notes:
            return
        terminalreporter.section(TITLE, red=True)
        for size, ranks in failed.items():
            if len(self._ranks) > 1:
                terminalreporter.write_line(f"on {size} {'rank' if size == 1 else 'ranks'}:")
            for rank, lines in enumerate(ranks):
                for line in lines:
                    terminalreporter.write_line(f"rank {rank}: {line}")
            passed = [rank for rank, lines in enumerate(ranks) if not lines]
            if passed:
                terminalreporter.write_line(f"{list_ranks(passed)}: no failure")
        for text in self._notes:
            terminalreporter.write_line(text)


def list_ranks(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"
