# SPDX-License-Identifier: BSD-3-Clause
"""A deadline per test, which also reaches a test that waits in a communication."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from .. import _C

# A rank that waits for others gives the one that keeps it waiting this long to fail first: it is
# the one to be blamed, and its failure ends the waiting.
PATIENCE = 2.0


class Deadline:
    """pytest plugin: set-up, body and teardown of a test together take at most ``seconds``."""

    def __init__(self, seconds: float, who: str, applies: Callable[[pytest.Item], bool]) -> None:
        """``who`` names this process in the message, ``applies`` says which tests have it."""
        self.seconds, self._who, self._applies = seconds, who, applies
        self.ends_at = float("inf")  #: by time.monotonic(), of the current test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin the time of a test."""
        limited = self.seconds > 0 and not item.config.getoption("usepdb", False)
        self.ends_at = float("inf")
        if limited and self._applies(item):
            self.ends_at = time.monotonic() + self.seconds
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Watch the set-up."""
        with self._alarm():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Watch the body."""
        with self._alarm():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Watch the teardown; what must be undone gets a little time in any case."""
        with self._alarm(at_least=PATIENCE):
            return (yield)

    @contextmanager
    def _alarm(self, at_least: float = 1e-3) -> Iterator[None]:
        if self.ends_at == float("inf") or (
            threading.current_thread() is not threading.main_thread()
        ):
            yield
            return
        patient = True

        def ring(number: int, frame: FrameType | None) -> None:
            nonlocal patient
            waits = _C.waits_for_others()
            if patient and (waits or _C.is_distributed()):
                # The time of all ranks ends together: who waits lets the one that does not end its
                # test first, and who has just learnt of a failure lets that exception through.
                patient = False
                signal.setitimer(signal.ITIMER_REAL, PATIENCE if waits else PATIENCE / 4)
                return
            where = " while it waited for other ranks" if waits else ""
            raise TimeoutError(
                f"{self._who} was not done with the test after {self.seconds:g} s{where}. Look "
                "where it stood; if it is only slow, raise --mesh-timeout."
            )

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(at_least, self.ends_at - time.monotonic()))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
