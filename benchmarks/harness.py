# SPDX-License-Identifier: BSD-3-Clause
"""Times contenders in turns, and keeps the results in docs/benchmarks.md.

The contenders of a contest take turns in one process, so that a slow moment of the machine meets
all of them. A turn is a number of calls in a row; its result is the time of one call. A turn that
another process interrupted is taken again. What is reported are medians over the turns: of the
time, and of the difference and ratio to the first contender in the same turn.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
MAX_SPREAD = 1.5
MIN_TURNS = 15
MAX_TRIES = 10


@dataclass(frozen=True)
class Result:
    """Times of one contender, in microseconds per call, one per turn."""

    name: str
    times: list[float]

    @property
    def median(self) -> float:
        """The middle one of the turns."""
        return statistics.median(self.times)

    @property
    def spread(self) -> float:
        """Slowest turn over fastest turn."""
        return max(self.times) / min(self.times)


Contenders = dict[str, Callable[[], object]]


def contest(contenders: Contenders, turns: int = MIN_TURNS, turn_ms: float = 20) -> list[Result]:
    """Time contenders in turns; once more if the turns of one differ by more than MAX_SPREAD.

    Args:
        contenders: What to call, by name.
        turns: Turns of each contender.
        turn_ms: About how long a turn lasts; it has at least one call.

    Returns:
        One result per contender, of the steadier of both measurements.
    """
    if turns < MIN_TURNS:
        raise ValueError(f"contest: {turns} turns are too few. Use at least {MIN_TURNS}.")
    calls = {name: _calls_per_turn(call, turn_ms) for name, call in contenders.items()}
    results = _measure(contenders, calls, turns)
    if _worst(results) > MAX_SPREAD:
        again = _measure(contenders, calls, turns)
        results = min(results, again, key=_worst)
    return results


def _worst(results: list[Result]) -> float:
    return max(result.spread for result in results)


def _calls_per_turn(call: Callable[[], object], turn_ms: float) -> int:
    call()  # what the first call compiles is not timed
    calls = 1
    while True:
        took = _turn(call, calls) * calls / 1e3
        if took >= turn_ms / 4:
            return max(1, round(calls * turn_ms / took))
        calls *= 4


def _measure(contenders: Contenders, calls: dict[str, int], turns: int) -> list[Result]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(turns):
        for name in order:
            times[name].append(_turn(contenders[name], calls[name]))
        order.append(order.pop(0))  # nobody is always behind the same one
    return [Result(name, times[name]) for name in contenders]


def _turn(call: Callable[[], object], calls: int) -> float:
    """Return microseconds per call, of a turn that no other process interrupted if possible."""
    repeat = range(calls)
    took = 0
    for _ in range(MAX_TRIES):
        before = _interruptions()
        start = time.perf_counter_ns()
        for _ in repeat:
            call()
        took = time.perf_counter_ns() - start
        if _interruptions() == before:
            break
    return took / 1e3 / calls


def _interruptions() -> int:
    """Return how often this thread had to leave its core to another one; waiting is not counted."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def table(results: list[Result]) -> str:
    """Return a table of results; difference and ratio are against the first one, turn by turn."""
    base = results[0]
    lines = [
        "| Contender | Median, us | Above the first, us | Ratio | Fastest turn, us | Spread |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for r in results:
        pairs = list(zip(r.times, base.times, strict=True))
        above = "" if r is base else f"{statistics.median(t - b for t, b in pairs):.2f}"
        ratio = "" if r is base else f"{statistics.median(t / b for t, b in pairs):.2f}"
        lines.append(
            f"| {r.name} | {r.median:.2f} | {above} | {ratio} | {min(r.times):.2f} "
            f"| {r.spread:.2f} |"
        )
    return "\n".join(lines)


def save(name: str, title: str, text: str) -> None:
    """Print the results of a benchmark file, and replace its section in docs/benchmarks.md.

    Args:
        name: Name of the file, without ``.py``.
        title: Heading of the section.
        text: The results.
    """
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    section = f"{start}\n## {title}\n\n{_circumstances(name)}\n\n{text}\n{end}"
    print(f"{section}\n")
    page = PAGE.read_text() if PAGE.exists() else _HEAD
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(page):
        page = pattern.sub(lambda _: section, page)
    else:
        page = f"{page.rstrip()}\n\n{section}\n"
    PAGE.write_text(page)


_HEAD = f"""# Benchmarks

<!-- The sections are written by the files in benchmarks/. -->
Measured by `make bench`. The contenders of a table take turns in one process, {MIN_TURNS} turns
each or more; a turn is a number of calls in a row, a figure is the median over the turns: of the
time of one call, and of its difference and ratio to the first contender in the same turn. A turn in
which another process took the core is taken again, {MAX_TRIES} times at most. *Spread* is the
slowest turn over the fastest; when it is above {MAX_SPREAD} for one contender the whole table is
measured once more and the steadier of both is shown. A large spread means that the machine was
busy: the ratios and the fastest turns say more than the medians then. torch computes with one
thread.
"""


def _circumstances(name: str) -> str:
    import meshfuse

    load = os.getloadavg()[0]
    return "\n".join(
        [
            f"- Machine: {_cpu()}, {os.cpu_count()} cores, load {load:.1f} when it ended",
            f"- Versions: meshfuse {meshfuse.__version__}, torch {torch.__version__}, "
            f"Python {platform.python_version()}",
            f"- Date: {datetime.now(UTC):%Y-%m-%d}",
            f"- Command: `PYTHONPATH=python python benchmarks/{name}.py`",
        ]
    )


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"model name\s*:\s*(.*)", text)
    return found.group(1) if found else platform.machine()


def note(text: str) -> None:
    """Say something on standard error."""
    print(text, file=sys.stderr, flush=True)
