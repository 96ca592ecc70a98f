# SPDX-License-Identifier: BSD-3-Clause
"""The rows of the table of speeds: what is compared with what, the target, and what was measured.

All figures are ratios or differences between contenders; less is better in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Unit(Enum):
    """What a figure is: a format of its number."""

    RATIO = "x{:.2f}"
    MICROSECONDS = "+{:.2f} µs"
    MILLISECONDS = "{:.3f} ms"
    KILOBYTES = "{:.2f} kB"
    BYTES_PER_CALL = "{:.2f} B per call"


@dataclass(frozen=True)
class Row:
    """A row: its number, what is measured, over what, the target, and the aim beyond it."""

    key: str
    work: str
    contender: str
    target: float
    aim: float
    unit: Unit = Unit.RATIO

    def text(self, value: float) -> str:
        """Return a figure with its unit."""
        return self.unit.value.format(value).replace("+-", "-")


@dataclass
class Figure:
    """What was measured for a row: a number, or the reason why there is none."""

    key: str
    value: float | None = None
    missing: str = ""
    others: dict[str, float] = field(default_factory=dict)  # further contenders, in the row's unit
    turns: dict[str, list[float]] = field(default_factory=dict)  # microseconds, unless a row says
    repeated: bool = False


def missing(keys: Iterable[str], reason: str) -> list[Figure]:
    """Return figures that say why there is none."""
    return [Figure(key, missing=reason) for key in keys]


def to_json(figures: list[Figure]) -> list[dict[str, Any]]:
    """Return plain values, times with 5 digits."""
    result = []
    for figure in figures:
        plain = asdict(figure)
        plain["turns"] = {
            name: [float(f"{time:.5g}") for time in times] for name, times in figure.turns.items()
        }
        result.append(plain)
    return result


def verdict(row: Row, figure: Figure) -> str:
    """Say whether a figure reaches aim or target of its row."""
    if figure.value is None:
        return f"not run: {figure.missing}"
    if figure.value <= row.aim:
        return "pass, aim"
    return "pass" if figure.value <= row.target else "**fail**"


def table(figures: list[Figure], rows: Iterable[Row] | None = None) -> str:
    """Return the table in Markdown, with all rows; those of ``make bench`` if none are given."""
    measured = {figure.key: figure for figure in figures}
    lines = [
        "| # | Work | Over | Target | Aim | Figure | | Others |",
        "|---|---|---|--:|--:|--:|---|---|",
    ]
    for row in rows or ROWS:
        figure = measured.get(row.key, Figure(row.key, missing="it was not measured"))
        value = "" if figure.value is None else row.text(figure.value)
        others = ", ".join(f"{name} {row.text(other)}" for name, other in figure.others.items())
        lines.append(
            f"| {row.key} | {row.work} | {row.contender} | {row.text(row.target)} "
            f"| {row.text(row.aim)} | {value} | {verdict(row, figure)} | {others} |"
        )
    return "\n".join(lines)


def _collectives() -> list[Row]:
    limits = {"4 KB": (1.5, 1.2), "1 MB": (1.1, 1.05), "64 MB": (1.05, 1.02)}
    return [
        Row(f"6 {name}, {size}", f"{name} of {size}, 2 ranks", "the same call of mpi4py", *limit)
        for name in ("all-reduce", "all-gather")
        for size, limit in limits.items()
    ]


MATMUL, SEED = "`torch.matmul`", "2x1024x768 by 768x768 per device"
ROWS = [
    Row("1", "warm `execute`, 8x8 product, DID loop split, mesh of 1", MATMUL, 1.3, 1.0),
    Row(
        "2",
        "32 such products in a row from C++, per step",
        "ATen call",
        0.5,
        0.2,
        Unit.MICROSECONDS,
    ),
    Row("3", "chain of 1,000 local ops, 8x8, warm, per op", "torch eager", 1.0, 0.8),
    Row(
        "4", "column-parallel linear, bias, 8x8 per rank, 2 ranks", "`F.linear` on the shard", 3, 2
    ),
    Row("5 tiny", "row-parallel linear, 8x8 per rank, 2 ranks", "`RowwiseParallel`", 0.15, 0.05),
    Row("5 seed", f"row-parallel linear, {SEED}, 2 ranks", "`RowwiseParallel`", 0.9, 0.75),
    *_collectives(),
    Row("7", "all-reduce of 64 MB, 2 ranks", "better of MPI and gloo", 1.0, 0.7),
    Row("8 d=1", f"seed program, {SEED}, mesh of 1", MATMUL, 1.02, 1.01),
    Row("8 d=2", f"seed program, {SEED}, 2 ranks", f"{MATMUL} on the shard", 1.02, 1.01),
    Row("9", "first call with new sizes, symbolic", "a warm call", 50, 20, Unit.MICROSECONDS),
    Row("10", "definition and first call, seed", "a later call", 2, 0.5, Unit.MILLISECONDS),
    Row(
        *("11", "definition to ready-to-run, chain of 1,000, mesh of 8, per op", "a later call"),
        *(0.05, 0.02, Unit.MILLISECONDS),
    ),
    Row("12 n", "compiling, per op, 100,000 ops", "1,000 ops", 1.5, 1.1),
    Row("12 mesh", "compiling, 1,000 ops, mesh of 64", "mesh of 2", 1.2, 1.1),
    Row("12 half", "compiling, 1,000 ops, half annotated", "all annotated", 1.2, 1.1),
    Row("12 3-D", "compiling, 1,000 ops, mesh of 2x2x2", "mesh of 8", 1.2, 1.1),
    Row("13", "memory of IR and plan per op, 100,000 ops", "nothing", 4, 2, Unit.KILOBYTES),
    Row("14 seed", f"simulated mesh of 8, {SEED}", f"loop of {MATMUL}", 1.05, 1.02),
    Row("14 tiny", "simulated mesh of 4, 8x8", f"loop of {MATMUL}", 8, 4, Unit.MICROSECONDS),
    Row("15 peak", "peak memory, 12 blocks, 2 ranks", "torch by hand", 1.05, 1.0),
    Row(
        *("15 growth", "growth of memory over 100,000 calls, 2 ranks", "nothing"),
        *(1, 0, Unit.BYTES_PER_CALL),
    ),
    Row("also", "all-reduce of 4 KB, 4 ranks, 2 cores", "nothing", 1, 1, Unit.MILLISECONDS),
    *(
        Row(
            f"posted, {ranks} ranks",
            "16 all-reduces of 4 KB that wait for nothing, in one program",
            "one after the other by mpi4py",
            *(1.0, 0.5),
        )
        for ranks in (2, 4)
    ),
]
