# SPDX-License-Identifier: BSD-3-Clause
"""Progress bars on stderr for what takes longer than a second.

They appear where stderr is a terminal and ``rich`` is installed, which is imported only then, and
leave nothing behind.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

DELAY = 1.0  #: seconds until a bar appears

_Item = TypeVar("_Item")
_shown = threading.Lock()  # held while there is a bar: two would overwrite each other


def tracked(items: Iterable[_Item], what: str, total: int | None = None) -> Iterator[_Item]:
    """Yield the items; a bar shows how many of them are done.

    Args:
        items: What to go through.
        what: What is done, before the bar.
        total: Number of items; None: their length, or unknown.

    Example:
        >>> sum(tracked([1, 2, 3], "adding"))
        6
    """
    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    with Progress(what) as progress:
        for done, item in enumerate(items):
            progress.advance(done, total)
            yield item


class Progress:
    """A bar for work whose extent may change on the way.

    Example:
        >>> with Progress("searching") as progress:
        ...     progress.advance(1, 3)
    """

    def __init__(self, what: str) -> None:
        """Name what is going on, before the bar."""
        self._what = what
        self._begun = time.monotonic()
        self._tried = not _on_terminal()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

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
            _end(self._bar)

    def advance(self, done: int, total: int | None) -> None:
        """Say how much is done, of how much if that is known."""
        due = not self._tried and time.monotonic() - self._begun >= DELAY
        if due and not _shown.locked():
            self._tried = True
            self._bar = _bar()
            self._task = None if self._bar is None else self._bar.add_task(self._what)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show that something goes on while the block takes longer than a second.

    Example:
        >>> with busy("compiling"):
        ...     pass
    """
    if not _on_terminal():
        yield
        return
    ended = threading.Event()
    shown = threading.Thread(
        target=_show_until, name="meshfuse progress", args=(what, ended), daemon=True
    )
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()


def _on_terminal() -> bool:
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # it is closed
        return False


def _show_until(what: str, ended: threading.Event) -> None:
    if ended.wait(DELAY):
        return
    bar = _bar()
    if bar is not None:
        bar.add_task(what, total=None)
        ended.wait()
        _end(bar)


def _bar() -> Bar | None:
    """Begin a bar; None where ``rich`` is missing, or another bar is shown."""
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    if not _shown.acquire(blocking=False):
        return None
    console = Console(file=sys.stderr)
    # What the work prints goes where it always goes.
    bar = Bar(console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    bar.start()
    return bar


def _end(bar: Bar) -> None:
    bar.stop()
    _shown.release()
