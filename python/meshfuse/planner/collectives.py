# SPDX-License-Identifier: BSD-3-Clause
"""Times of communications by Hockney's model.

A message of m bytes takes alpha + m * beta (R. Hockney, "The communication challenge for MPP:
Intel Paragon and Meiko CS-2", Parallel Computing 20, 1994). Collectives are made of messages as in
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Performance Computing Applications 19(1), 2005; of the algorithms that suit a
kind, the quickest for the size counts, as libraries choose it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["KINDS", "Algorithm", "algorithms", "buffer_bytes", "bytes_sent"]


@dataclass(frozen=True)
class Algorithm:
    """What one way to make a collective costs.

    Attributes:
        name: As the literature calls it.
        messages: Number of messages one behind another, each of which costs alpha.
        volume: Bytes that are sent one behind another, each of which costs beta.
    """

    name: str
    messages: int
    volume: float


def _rounds(team: int) -> int:
    """Return the least r with 2**r >= team."""
    return (team - 1).bit_length()


def _all_gather(d: int, n: float) -> list[Algorithm]:
    part = (d - 1) / d * n
    return [Algorithm("recursive doubling", _rounds(d), part), Algorithm("ring", d - 1, part)]


def _reduce_scatter(d: int, n: float) -> list[Algorithm]:
    part = (d - 1) / d * n
    return [Algorithm("recursive halving", _rounds(d), part), Algorithm("pairwise", d - 1, part)]


def _all_reduce(d: int, n: float) -> list[Algorithm]:
    part = (d - 1) / d * n
    return [
        Algorithm("recursive doubling", _rounds(d), _rounds(d) * n),
        Algorithm("Rabenseifner", 2 * _rounds(d), 2 * part),
        Algorithm("ring", 2 * (d - 1), 2 * part),
    ]


def _all_to_all(d: int, n: float) -> list[Algorithm]:
    return [
        Algorithm("pairwise exchange", d - 1, (d - 1) / d * n),
        Algorithm("Bruck", _rounds(d), _rounds(d) * n / 2),
    ]


def _broadcast(d: int, n: float) -> list[Algorithm]:
    return [
        Algorithm("binomial tree", _rounds(d), _rounds(d) * n),
        Algorithm("scatter, ring all-gather", _rounds(d) + d - 1, 2 * (d - 1) / d * n),
    ]


def _reduce(d: int, n: float) -> list[Algorithm]:
    return [
        Algorithm("binomial tree", _rounds(d), _rounds(d) * n),
        Algorithm("Rabenseifner", 2 * _rounds(d), 2 * (d - 1) / d * n),
    ]


def _tree(d: int, n: float) -> list[Algorithm]:
    return [Algorithm("binomial tree", _rounds(d), (d - 1) / d * n)]


def _message(d: int, n: float) -> list[Algorithm]:
    return [Algorithm("message", 1, n)]


_ALGORITHMS: dict[str, Callable[[int, float], list[Algorithm]]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _tree,
    "scatter": _tree,
    "reduce": _reduce,
    "send-recv": _message,
}
#: The kinds of communication that have a cost, as ``fd.explain()`` names them.
KINDS = tuple(_ALGORITHMS)


def algorithms(kind: str, team: int, buffer: float) -> list[Algorithm]:
    """Return the ways to make a communication; none where a device talks to nobody.

    Args:
        kind: One of ``KINDS``.
        team: Number of devices that take part.
        buffer: Bytes of the buffer of ``buffer_bytes``.
    """
    return [] if team < 2 else _ALGORITHMS[kind](team, buffer)


def buffer_bytes(kind: str, team: int, before: int, after: int) -> int:
    """Return the bytes that the formulas count: of the whole result, or of the whole operand.

    Args:
        kind: One of ``KINDS``.
        team: Number of devices that take part.
        before: Bytes of a device's part of the operand.
        after: Bytes of a device's part of the result.
    """
    if kind in ("all-reduce", "all-gather", "broadcast"):
        return after
    return before * team if kind == "gather" else before


def bytes_sent(kind: str, team: int, before: int, after: int) -> int:
    """Return the bytes that a device sends at least, as ``Communication.bytes`` counts them."""
    if team < 2:
        return 0
    if kind == "all-reduce":
        return -(-2 * (team - 1) * after // team)
    if kind == "all-gather":
        return -(-(team - 1) * after // team)
    if kind == "broadcast":
        return after
    if kind in ("gather", "reduce", "send-recv"):
        return before
    return -(-(team - 1) * before // team)
