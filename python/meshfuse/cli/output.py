# SPDX-License-Identifier: BSD-3-Clause
"""Standard output of the command line, which scripts that it imports do not get at."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TextIO

__all__ = [
    "BrokenOutputError",
    "drop_output",
    "give_back",
    "keep_from_scripts",
    "say",
    "stdout",
]

_kept: TextIO | None = None


class BrokenOutputError(Exception):
    """Standard output cannot be written to; ``is_pipe`` where nobody reads it any more."""

    def __init__(self, reason: str, is_pipe: bool = False) -> None:
        """Say why."""
        super().__init__(f"cannot write to standard output: {reason}.")
        self.is_pipe = is_pipe


def stdout() -> TextIO:
    """Return standard output.

    Raises:
        BrokenOutputError: it is closed.
    """
    found = _kept or sys.stdout
    if found is None or found.closed:
        raise BrokenOutputError("it is closed")
    return found


def say(text: str, end: str = "\n") -> None:
    """Write to standard output.

    Raises:
        BrokenOutputError: that is not possible.
    """
    file = stdout()
    try:
        file.write(text + end)
        file.flush()
    except UnicodeEncodeError:
        encoding = file.encoding or "ascii"
        file.write((text + end).encode(encoding, "backslashreplace").decode(encoding))
        file.flush()
    except OSError as error:
        drop_output()
        raise BrokenOutputError(
            os.strerror(error.errno or 0), error.errno == errno.EPIPE
        ) from error


def drop_output() -> None:
    """Keep what could not be written from being tried again, and reported, at the end."""
    with contextlib.suppress(OSError, ValueError, BrokenOutputError):
        file = stdout()
        _to_nowhere(file.fileno())
        file.flush()


def keep_from_scripts() -> None:
    """Let whatever else writes to standard output from now on write to standard error.

    That is what C++ code writes, too, and what is printed while the process ends.
    """
    global _kept
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or no file: a test's
        return
    if _kept is not None or descriptor != 1:
        return
    sys.stdout.flush()
    own = os.dup(1)
    _kept = open(own, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    _to_stderr()


def give_back() -> None:
    """Undo ``keep_from_scripts``, where the process goes on to do something else."""
    global _kept
    if _kept is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os.dup2(_kept.fileno(), 1)
    kept, _kept = _kept, None
    with contextlib.suppress(OSError):
        kept.close()


def _to_stderr() -> None:
    try:
        os.dup2(2, 1)
    except OSError:  # that is closed
        _to_nowhere(1)


def _to_nowhere(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
