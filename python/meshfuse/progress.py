# SPDX-License-Identifier: BSD-3-Clause
"""Progress bars on stderr for what takes longer than a second.

They appear where stderr is a terminal and ``rich`` is installed, which is imported only then, and
leave nothing behind.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 1.0  #: seconds until a bar appears

_Item = TypeVar("_Item")


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
    begun, bar = time.monotonic(), None
    task = None
    tried = not sys.stderr.isatty()
    try:
        for done, item in enumerate(items):
            if not tried and time.monotonic() - begun >= DELAY:
                tried = True
                bar = _bar()
                task = None if bar is None else bar.add_task(what, total=total)
            if bar is not None and task is not None:
                bar.update(task, completed=done)
            yield item
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show that something goes on while the block takes longer than a second.

    Example:
        >>> with busy("compiling"):
        ...     pass
    """
    if not sys.stderr.isatty():
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


def _show_until(what: str, ended: threading.Event) -> None:
    if ended.wait(DELAY):
        return
    bar = _bar()
    if bar is not None:
        bar.add_task(what, total=None)
        ended.wait()
        bar.stop()


def _bar() -> Progress | None:
    """Begin a bar; None where ``rich`` is missing, or another bar is shown."""
    try:
        from rich.console import Console
        from rich.errors import LiveError
        from rich.progress import Progress
    except ImportError:
        return None
    console = Console(file=sys.stderr)
    # What the work prints goes where it always goes.
    bar = Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    try:
        bar.start()
    except LiveError:
        return None
    return bar
