# SPDX-License-Identifier: BSD-3-Clause
"""A bar on standard error for searches that take longer than a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

_PATIENCE_S = 1.0


class Progress:
    """Shows how far a search is, if rich is installed and standard error is a terminal."""

    def __init__(self, what: str) -> None:
        """Name what is going on."""
        self._what = what
        self._begin = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        """Begin; nothing is shown yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, total: int) -> None:
        """Say how much is done."""
        if not self._shown:
            return
        if self._bar is None:
            if time.monotonic() - self._begin < _PATIENCE_S:
                return
            self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _start(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import Progress as Bar
        except ImportError:
            self._shown = False
            return
        self._bar = Bar(console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._what)
