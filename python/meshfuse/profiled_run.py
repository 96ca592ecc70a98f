# SPDX-License-Identifier: BSD-3-Clause
"""What is known beside times of executions that are profiled: the program, and sizes of inputs."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .definition import FusionDefinition


@dataclass(frozen=True)
class ProfiledRun:
    """One execution; times are nanoseconds since 1970, around the one that its steps begin with."""

    program: str  #: key of the definition
    inputs: tuple[tuple[int, ...] | int | None, ...]  #: shapes, and the values of integers
    is_local: bool  #: whether shapes are those of one device
    devices: int  #: that the process ran; more than one on a simulated mesh
    begin_ns: int
    end_ns: int


class _Recording(threading.local):
    """Where the profilers of this thread keep executions, the outermost first."""

    def __init__(self) -> None:
        self.lists: list[list[ProfiledRun]] = []


_recording = _Recording()


def is_recording() -> bool:
    """Return whether a profiler of this thread records."""
    return bool(_recording.lists)


def start() -> list[ProfiledRun]:
    """Return the list that is filled from now on."""
    runs: list[ProfiledRun] = []
    _recording.lists.append(runs)
    return runs


def stop(runs: list[ProfiledRun]) -> None:
    """End it."""
    _recording.lists[:] = [other for other in _recording.lists if other is not runs]


@contextlib.contextmanager
def noted(
    fd: FusionDefinition, inputs: Iterable[Any], *, is_local: bool, devices: int = 1
) -> Iterator[None]:
    """Keep an execution for the profilers that record, unless it raises."""
    if not is_recording():
        yield
        return
    from .simulation import flat_inputs

    begin = time.time_ns()
    yield
    sizes = tuple(_size(value) for value in flat_inputs(inputs))
    run = ProfiledRun(key_of(fd), sizes, is_local, devices, begin, time.time_ns())
    for runs in _recording.lists:
        runs.append(run)


def key_of(fd: FusionDefinition) -> str:
    """Return what no other definition has, in this process or another."""
    if fd._profile_key is None:
        fd._profile_key = uuid.uuid4().hex
    return fd._profile_key


def run_at(runs: Iterable[ProfiledRun], start_ns: int) -> ProfiledRun | None:
    """Return the execution that began then; of one that ran within another the outer one."""
    found = [run for run in runs if run.begin_ns <= start_ns <= run.end_ns]
    return min(found, key=lambda run: run.begin_ns, default=None)


def _size(value: Any) -> tuple[int, ...] | int | None:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
