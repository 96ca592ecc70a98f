# SPDX-License-Identifier: BSD-3-Clause
"""Times contenders in turns.

The contenders of a contest take turns in one process, so that a slow moment of the machine meets
all of them. A turn is a number of calls in a row; its result is the time of one call. A turn that
another process interrupted is taken again. Figures are medians over the turns: of the ratio, or
difference, to the first contender in the same turn.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rows import Figure, to_json

ROOT = Path(__file__).resolve().parent.parent
MAX_SPREAD = 1.5
MIN_TURNS = 15
MAX_TRIES = 10

Call = Callable[[], object]
Contenders = dict[str, Call]  # the first is the raw one


@dataclass(frozen=True)
class Result:
    """Times of contenders in microseconds per call, one per turn; the first is the raw one."""

    turns: dict[str, list[float]]
    repeated: bool = False

    @property
    def raw(self) -> str:
        """Name of the raw contender."""
        return next(iter(self.turns))

    @property
    def spread(self) -> float:
        """Slowest turn of the raw contender over its fastest."""
        return max(self.turns[self.raw]) / min(self.turns[self.raw])

    def median(self, name: str) -> float:
        """Median time of a contender."""
        return statistics.median(self.turns[name])

    def ratio(self, name: str, over: str | None = None) -> float:
        """Median over the turns of the time of one contender over that of another."""
        pairs = zip(self.turns[name], self.turns[over or self.raw], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def above(self, name: str, over: str | None = None) -> float:
        """Median over the turns of the difference of two contenders."""
        pairs = zip(self.turns[name], self.turns[over or self.raw], strict=True)
        return statistics.median(a - b for a, b in pairs)

    def figure(self, key: str, value: float, others: dict[str, float] | None = None) -> Figure:
        """Return the figure of a row, with these turns."""
        return Figure(key, value, "", others or {}, self.turns, self.repeated)


@dataclass(frozen=True)
class Effort:
    """How long to measure: turns of each contender, and about how long a turn lasts at most."""

    turns: int = MIN_TURNS
    turn_ms: float = 20
    smoke: bool = False  # few turns, to see that it runs

    def of(self, turns: int, turn_ms: float = 20) -> Effort:
        """Return the effort for a contest; that of a smoke run stays small."""
        if not self.smoke and turns < MIN_TURNS:
            raise ValueError(f"of: {turns} turns are too few. Use at least {MIN_TURNS}.")
        return self if self.smoke else Effort(turns, turn_ms)


SMOKE = Effort(turns=2, turn_ms=0, smoke=True)
TakeTurn = Callable[[Call, int], float]


def contest(contenders: Contenders, effort: Effort) -> Result:
    """Time contenders in turns; once more if those of the raw one differ by over MAX_SPREAD."""
    return measure(contenders, effort, _turn)


def measure(contenders: Contenders, effort: Effort, turn: TakeTurn) -> Result:
    """As ``contest``; ``turn`` makes a number of calls and returns microseconds per call."""
    calls = {name: _calls_per_turn(call, effort.turn_ms, turn) for name, call in contenders.items()}
    result = Result(_turns(contenders, calls, effort.turns, turn))
    if result.spread > MAX_SPREAD and not effort.smoke:
        again = Result(_turns(contenders, calls, effort.turns, turn))
        steadier = min(result, again, key=lambda r: r.spread)
        result = Result(steadier.turns, repeated=True)
    return result


def _calls_per_turn(call: Call, turn_ms: float, turn: TakeTurn) -> int:
    call()  # what the first call compiles is not timed
    calls = 1
    while (took := turn(call, calls) * calls / 1e3) < turn_ms / 4:
        calls *= 4
    return max(1, round(calls * turn_ms / took))


def _turns(
    contenders: Contenders, calls: dict[str, int], turns: int, turn: TakeTurn
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(turns):
        for name in order:
            times[name].append(turn(contenders[name], calls[name]))
        order.append(order.pop(0))  # nobody is always behind the same one
    return times


def _turn(call: Call, calls: int) -> float:
    """Make calls that no other process interrupted, if possible."""
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


@dataclass(frozen=True)
class Options:
    """The command line of a benchmark file."""

    effort: Effort
    out: Path | None


def options(description: str | None) -> Options:
    """Read the command line, and prepare torch: one thread, equal random numbers."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="few turns of tiny sizes")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Options(SMOKE if given.smoke else Effort(), given.out)


def report(figures: list[Figure], out: Path | None) -> None:
    """Print figures, or write them to a file."""
    text = json.dumps(to_json(figures), indent=None if out else 1, ensure_ascii=False)
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n")


def note(text: str) -> None:
    """Say something on standard error."""
    print(text, file=sys.stderr, flush=True)
