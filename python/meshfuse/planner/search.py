# SPDX-License-Identifier: BSD-3-Clause
"""Searches annotations: all of them where they are few, else by a beam and single changes.

What is tried depends on the program alone, not on time, so every rank finds the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..progress import Progress
from .annotations import Annotation
from .candidates import Choice, Evaluator, Score

__all__ = ["EXACT_LIMIT", "Found", "search"]

#: So many programs are tried one by one; of more, a beam.
EXACT_LIMIT = 3000
_EVALUATIONS = 2000
_WIDTHS = (8, 48)
_SWEEPS = 4
_NEAR = 3  # choices between which pairs are changed
_SAME_TIME = 0.01

Assigned = dict[str, Annotation]
Key = Callable[[Score], tuple[float, ...]]


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        assignment: The annotations.
        score: Their cost.
        exact: Whether all programs were tried.
        evaluations: Number of programs that were compiled.
    """

    assignment: Assigned
    score: Score
    exact: bool
    evaluations: int


def search(
    evaluator: Evaluator,
    choices: list[Choice],
    progress: Progress,
    memory_limit: int | None = None,
) -> Found | None:
    """Return the cheapest annotations; over the limit, those of least memory. None: all refused."""
    exact = math.prod(1 + len(c.annotations) for c in choices) <= EXACT_LIMIT
    if exact:
        best = _enumerate(evaluator, choices, _by_time(memory_limit), progress)
    else:
        best = _search_by_beam(evaluator, choices, progress, memory_limit)
    if best is None:
        return None
    best = _least_demanding(evaluator, best, memory_limit)
    best = _without_idle_ones(evaluator, best)
    return Found(best[0], best[1], exact, evaluator.evaluations)


def _by_time(memory_limit: int | None) -> Key:
    def key(score: Score) -> tuple[float, ...]:
        over = 0 if memory_limit is None else max(0, score.peak_memory - memory_limit)
        return (over, score.time_us, score.peak_memory, score.communications, score.annotations)

    return key


def _by_memory(score: Score) -> tuple[float, ...]:
    return (score.peak_memory, score.time_us, score.communications, score.annotations)


State = tuple[Assigned, Score]


def _enumerate(
    evaluator: Evaluator, choices: list[Choice], key: Key, progress: Progress
) -> State | None:
    best: State | None = None
    total = math.prod(1 + len(c.annotations) for c in choices)
    for number in range(total):
        assignment: Assigned = {}
        rest = number
        for choice in choices:
            rest, pick = divmod(rest, 1 + len(choice.annotations))
            if pick:
                assignment[choice.tensor] = choice.annotations[pick - 1]
        score = evaluator.score(assignment)
        if score is not None and (best is None or key(score) < key(best[1])):
            best = assignment, score
        progress.advance(number + 1, total)
    return best


def _search_by_beam(
    evaluator: Evaluator, choices: list[Choice], progress: Progress, memory_limit: int | None
) -> State | None:
    """Return the best of a beam that keeps programs of little memory, too, and of changes to it.

    What needs little memory is divided further, which may pay only once later tensors are decided.
    A limit matters where the quickest program found without it is over it.
    """
    found: list[State] = []
    for limit in dict.fromkeys([None, memory_limit]):
        key = _by_time(limit)
        state = _beam(evaluator, choices, [key, _by_memory], progress)
        if state is not None:
            found.append(_improve(evaluator, choices, state, key, progress))
        if any(_fits(score, memory_limit) for _, score in found):
            break
    if not found:
        return None
    key = _by_time(memory_limit)
    best = min(found, key=lambda state: key(state[1]))
    best = _improve_pairs(evaluator, choices, best, key, progress)
    if not _fits(best[1], memory_limit):
        best = _improve(evaluator, choices, best, _by_memory, progress)
        best = _improve(evaluator, choices, best, key, progress)
    return best


def _fits(score: Score, memory_limit: int | None) -> bool:
    return memory_limit is None or score.peak_memory <= memory_limit


def _beam(
    evaluator: Evaluator, choices: list[Choice], keys: list[Key], progress: Progress
) -> State | None:
    """Decide tensor after tensor, for one mesh axis after another; try each order of mesh axes.

    Once more, the whole mesh divides one axis of a tensor at a time. Each has a beam of its own,
    since what is good for one would crowd out the others.
    """
    axes = [i for i, n in enumerate(evaluator.mesh.shape) if n > 1]
    orders: list[tuple[int | None, ...]] = list(itertools.permutations(axes))
    if len(axes) > 1:
        orders.append((None, *axes))
    decisions = sum(len(_options(None, c, axis)) for c in choices for axis in axes)
    width = _EVALUATIONS // max(1, decisions * len(orders))
    width = max(_WIDTHS[0], min(_WIDTHS[1], width))
    start = evaluator.score({})
    first: list[State] = [] if start is None else [({}, start)]
    if start is None:  # refused without annotations: begin with each of them
        first = list(_scored(evaluator, ({c.tensor: a} for c in choices for a in c.annotations)))
    found: list[State] = []
    done, total = 0, sum(map(len, orders)) * len(choices)
    for order in orders:
        states = first
        for axis, choice in itertools.product(order, choices):
            grown = [
                assignment | {choice.tensor: annotation}
                for assignment, _ in states
                for annotation in _options(assignment.get(choice.tensor), choice, axis)
            ]
            states = _best_of(evaluator, states + list(_scored(evaluator, grown)), keys, width)
            done += 1
            progress.advance(done, total)
        found += states
    return min(found, key=lambda state: keys[0](state[1]), default=None)


def _options(now: Annotation | None, choice: Choice, axis: int | None) -> list[Annotation]:
    """Return the annotations of a tensor that differ from what it has in one mesh axis.

    Without a mesh axis, those of a tensor that has none where the whole mesh divides one axis.
    """
    if axis is None:
        return [a for a in choice.annotations if now is None and len(set(a.axes)) == 1]
    rest = [None] * len(choice.annotations[0].axes) if now is None else list(now.axes)
    rest[axis : axis + 1] = []
    return [
        a for a in choice.annotations if a != now and [*a.axes[:axis], *a.axes[axis + 1 :]] == rest
    ]


def _scored(evaluator: Evaluator, assignments: Iterable[Assigned]) -> Iterable[State]:
    for assignment in assignments:
        score = evaluator.score(assignment)
        if score is not None:
            yield assignment, score


def _best_of(evaluator: Evaluator, states: list[State], keys: list[Key], width: int) -> list[State]:
    """Keep the best states by the first key, and half as many by others.

    Of equal programs the first is kept.
    """
    kept: dict[bytes, State] = {}
    for number, key in enumerate(keys):
        room = width // 2 if number else width
        for state in sorted(states, key=lambda state: key(state[1])):
            found = evaluator.scored(state[0])
            if found is None or found[1] in kept:
                continue
            kept[found[1]] = state
            room -= 1
            if room == 0:
                break
    return list(kept.values())


def _improve(
    evaluator: Evaluator, choices: list[Choice], best: State, key: Key, progress: Progress
) -> State:
    """Change, add and remove single annotations as long as it helps."""
    for sweep in range(_SWEEPS):
        before = best
        for choice in choices:
            rest = {name: a for name, a in best[0].items() if name != choice.tensor}
            changed = [rest, *(rest | {choice.tensor: a} for a in choice.annotations)]
            states = [best, *_scored(evaluator, changed)]
            best = min(states, key=lambda state: key(state[1]))
        progress.advance(sweep + 1, _SWEEPS)
        if best[1] == before[1]:
            break
    return best


def _improve_pairs(
    evaluator: Evaluator, choices: list[Choice], best: State, key: Key, progress: Progress
) -> State:
    """Change an annotation and leave another one near it out, as long as that helps.

    Two neighbours that need each other, such as a result and the weight that reads it, each cost a
    communication where the other one alone is changed.
    """
    for _ in range(_SWEEPS):
        before = best
        for place, choice in enumerate(choices):
            near = choices[max(0, place - _NEAR) : place + _NEAR + 1]
            changed = [
                {n: a for n, a in best[0].items() if n != other.tensor} | {choice.tensor: made}
                for other in near
                if other is not choice and other.tensor in best[0]
                for made in choice.annotations
            ]
            states = [best, *_scored(evaluator, changed)]
            best = min(states, key=lambda state: key(state[1]))
        if best[1] == before[1]:
            break
        best = _improve(evaluator, choices, best, key, progress)
    return best


def _least_demanding(evaluator: Evaluator, best: State, memory_limit: int | None) -> State:
    """Of the programs that take about as long, return the one with fewest communications.

    Then least memory counts, then fewest annotations: the model does not know times to 1 %.
    """
    if not _fits(best[1], memory_limit):
        return best
    near = [
        (assignment, score)
        for assignment, score in evaluator.all_scores()
        if score.time_us <= best[1].time_us * (1 + _SAME_TIME) and _fits(score, memory_limit)
    ]
    return min(near, key=lambda state: _demand(state[1]))


def _demand(score: Score) -> tuple[float, ...]:
    return (score.communications, score.peak_memory, score.annotations, score.time_us)


def _without_idle_ones(evaluator: Evaluator, best: State) -> State:
    """Leave out annotations that cost nothing to leave out."""
    for name in list(best[0]):
        rest = {other: a for other, a in best[0].items() if other != name}
        for state in _scored(evaluator, [rest]):
            if _is_no_worse(state[1], best[1]):
                best = state
    return best


def _is_no_worse(score: Score, than: Score) -> bool:
    return (
        score.time_us <= than.time_us
        and score.peak_memory <= than.peak_memory
        and score.communications <= than.communications
    )
