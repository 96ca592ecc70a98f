# SPDX-License-Identifier: BSD-3-Clause
"""What happens when this process fails or ends: log, tell the other ranks, leave the group."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from . import _C
from ._C import FusionExecutorCache
from .exceptions import PeerError
from .repro_on_failure import write_bundle_of_failure
from .run_failures import note_failure

_log = logging.getLogger("meshfuse")
_process = os.getpid()
_watching = False
_failed = False


def log_once(error: BaseException, doing: str, script: str = "") -> None:
    """Log an exception at ERROR, unless it was logged already on its way up.

    A script that shows the failure is part of the entry, except where another rank failed: the
    script of this rank cannot show that.
    """
    if not getattr(error, "_meshfuse_logged", False):
        error._meshfuse_logged = True  # type: ignore[attr-defined]
        name = type(error).__name__
        shown = script and not isinstance(error, PeerError)
        more = f"\nTo see it again, run:\n{script}" if shown else ""
        _log.error("Exception occurred while %s: %s: %s%s", doing, name, error, more)


def report(
    error: Exception,
    doing: str,
    cache: FusionExecutorCache | None = None,
    script: str = "",
    inputs: Iterable[Any] | None = None,
) -> None:
    """Log an exception once and, with more ranks than one, keep them from waiting for this one.

    With MESHFUSE_REPRO_DIR a repro bundle is written, once the others have been told.

    Where every rank gives up the same execution, for the same bad program, nobody waits and the
    next execution works; an exception that nobody catches ends the group (see ``_watch``).

    Args:
        error: What leaves the execution.
        doing: What was being done, for the log.
        cache: The program, if it exists: then only the ranks that take part in it are told.
        script: Text of a script that shows the failure, for the log.
        inputs: This rank's inputs, for the bundle.
    """
    log_once(error, doing, script)
    _tell(error, cache)
    write_bundle_of_failure(error, None if cache is None else cache.fusion(), inputs)


def _tell(error: Exception, cache: FusionExecutorCache | None) -> None:
    if not _watching or isinstance(error, PeerError) or hasattr(error, "_meshfuse_told"):
        return
    reason = _text(type(error), error)
    if cache is None:
        _C.report_refusal(reason)
    else:
        cache.refuse(reason)
    mark_told(error, cache)


def mark_told(error: Exception, cache: FusionExecutorCache | None) -> None:
    """Mark an exception that ``run`` or ``refuse`` of a program told the other ranks of.

    Of a program without communication nobody was told.
    """
    if cache is None or communicates(cache):
        error._meshfuse_told = True  # type: ignore[attr-defined]


def communicates(cache: FusionExecutorCache) -> bool:
    """Return whether this rank sends messages in a program; if it is wrong, True."""
    if not _watching:
        return False
    try:
        rank = _C.communicator().rank()
        found = _C.explain(cache.fusion(), [])["communications"]
    except Exception:  # also because the number of bytes depends on open sizes
        return True
    return any(rank in team for communication in found for team in communication["teams"])


def _watch() -> None:
    """Notice uncaught exceptions, if this process is one of several ranks."""
    global _watching
    if _watching or not _C.is_distributed():
        return
    _watching = True
    previous = sys.excepthook
    previous_thread = threading.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        previous(kind, error, trace)
        _process_failed(kind, error)

    def thread_excepthook(args: Any) -> None:
        previous_thread(args)
        if args.exc_type is not SystemExit:
            _process_failed(args.exc_type, args.exc_value)

    sys.excepthook = excepthook
    threading.excepthook = thread_excepthook


def _process_failed(kind: type[BaseException], error: BaseException | None) -> None:
    global _failed
    _failed = True
    sys.stderr.flush()
    with contextlib.suppress(Exception):  # the others must be told, whatever happens here
        note_failure(_C.communicator().rank(), _text(kind, error), issubclass(kind, PeerError))
    _C.name_end(f"failed: {_text(kind, error)}")
    _C.report_failure(_text(kind, error))


def _text(kind: type[BaseException], error: BaseException | None) -> str:
    return f"{kind.__name__}: {error}" if str(error) else kind.__name__


def _leave() -> None:
    if os.getpid() == _process:  # not in a child made by fork
        _C.shutdown(_failed)


_C.on_start(_watch)
atexit.register(_leave)
