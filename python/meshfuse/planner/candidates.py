# SPDX-License-Identifier: BSD-3-Clause
"""What a search may annotate in a program, and what an annotated program costs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .._C import DeviceMesh, Error, Fusion, InternalError, TensorView, UnsupportedError
from .annotations import Annotation, annotate, is_annotated, possible_annotations
from .links import Links
from .local_program import ProgramReader
from .memory import peak_bytes
from .operations import step_us
from .plan_cost import compiled_text

__all__ = ["Choice", "Evaluator", "Score", "choices_of", "final_results", "unused_inputs"]

#: A tensor that is given an annotation by the search: name to annotation.
Assignment = Mapping[str, Annotation]
Key = tuple[tuple[str, Annotation], ...]


@dataclass(frozen=True)
class Choice:
    """A tensor, and the annotations that it may get."""

    tensor: str
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True)
class Score:
    """Cost of an annotated program; the less of each the better."""

    time_us: float
    peak_memory: int
    communications: int
    annotations: int


class Evaluator:
    """Annotates copies of a program, and asks the compiler and the model what they cost."""

    def __init__(
        self,
        fusion: Fusion,
        mesh: DeviceMesh,
        links: Links,
        sizes: Mapping[str, int],
        fixed: Assignment | None = None,
    ) -> None:
        """Prepare; ``fixed`` are annotations that every candidate has."""
        self.mesh, self.links = mesh, links
        self.base = apply(fusion, mesh, fixed or {})
        self.evaluations = 0
        self._reader = ProgramReader(sizes)
        self._scores: dict[Key, tuple[Score, bytes] | None] = {}
        self._costs: dict[bytes, tuple[float, int, int]] = {}  # of compiled programs

    def score(self, assignment: Assignment) -> Score | None:
        """Return the cost of the program with these annotations; None if it is refused."""
        found = self.scored(assignment)
        return None if found is None else found[0]

    def scored(self, assignment: Assignment) -> tuple[Score, bytes] | None:
        """Return also the hash of the compiled program: equal ones are the same program."""
        key = tuple(sorted(assignment.items(), key=lambda item: item[0]))
        if key not in self._scores:
            self._scores[key] = self._evaluate(assignment)
        return self._scores[key]

    def all_scores(self) -> Iterator[tuple[dict[str, Annotation], Score]]:
        """Return every program that was scored and not refused, in that order."""
        for key, found in self._scores.items():
            if found is not None:
                yield dict(key), found[0]

    def _evaluate(self, assignment: Assignment) -> tuple[Score, bytes] | None:
        self.evaluations += 1
        try:
            text = compiled_text(apply(self.base, self.mesh, assignment))
        except (Error, InternalError, UnsupportedError):
            return None
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        if digest not in self._costs:  # different annotations often make the same program
            self._costs[digest] = self._cost(text)
        splits = sum(1 + annotation.count for annotation in assignment.values())
        return Score(*self._costs[digest], splits), digest

    def _cost(self, text: str) -> tuple[float, int, int]:
        """Return time, peak memory and number of communications of a compiled program."""
        program = self._reader.read(text)
        sent = sum(bool(step.transfer and step.transfer.bytes) for step in program.steps)
        time = sum(step_us(step, self.links) for step in program.steps)
        # Rounded: sums of the same numbers in another order are equal.
        return round(time, 4), peak_bytes(program), sent


def apply(fusion: Fusion, mesh: DeviceMesh, assignment: Assignment) -> Fusion:
    """Return a copy of a program with these annotations."""
    copy = fusion.clone()
    if assignment:
        for tv in copy.tensors():
            annotation = assignment.get(tv.name)
            if annotation is not None:
                annotate(tv, mesh, annotation)
    return copy


def choices_of(
    fusion: Fusion, mesh: DeviceMesh, sizes: Mapping[str, int], fixed: Assignment
) -> list[Choice]:
    """Return what may be annotated, in the order in which the program uses it.

    Of tensors that follow each other element by element the first stands for all. Inputs that stay
    whole need no annotation; for others it makes a difference to say so.
    """
    leaders = _leaders(fusion, fixed)
    found: dict[str, Choice] = {}
    for expr in fusion.exprs():
        for tv in (*expr.inputs(), *expr.outputs()):
            if tv.name in found or not _is_free(tv, fixed) or leaders[tv.name] != tv.name:
                continue
            listed = possible_annotations(tv, mesh, sizes)
            given = tv.is_fusion_input()
            options = tuple(a for a in listed if a.count or not given)
            if options:
                found[tv.name] = Choice(tv.name, options)
    return list(found.values())


def _is_free(tv: TensorView, fixed: Assignment) -> bool:
    return tv.ndim > 0 and not tv.is_cpu_scalar() and tv.name not in fixed and not is_annotated(tv)


def _leaders(fusion: Fusion, fixed: Assignment) -> dict[str, str]:
    """Return for every tensor the first of those that it follows element by element."""
    exprs = fusion.exprs()
    readers = Counter(tv.name for expr in exprs for tv in expr.inputs())
    leader: dict[str, str] = {}
    for expr in exprs:
        for tv in (*expr.inputs(), *expr.outputs()):
            leader.setdefault(tv.name, tv.name)
        outs = expr.outputs()
        if len(outs) != 1 or expr.op in _NOT_ELEMENTWISE:
            continue
        shape = list(map(str, outs[0].shape()))
        same = [
            tv
            for tv in expr.inputs()
            if list(map(str, tv.shape())) == shape
            and not tv.is_fusion_input()
            and readers[tv.name] == 1
        ]
        if len(same) != 1:
            continue
        if _is_free(outs[0], fixed) and not outs[0].is_fusion_output():
            leader[outs[0].name] = leader[same[0].name]
    return leader


_NOT_ELEMENTWISE = frozenset(
    "matmul linear grouped_mm softmax layer_norm rms_norm batch_norm argsort topk scatter gather "
    "take_along_axis index_select cumsum cumprod cummax cummin permute reshape sdpfa_fwd sdpfa_bwd "
    "set segment_set".split()
)


def unused_inputs(fusion: Fusion) -> list[TensorView]:
    """Return the inputs that nothing reads, so that no mesh reaches them."""
    read = {tv.name for expr in fusion.exprs() for tv in expr.inputs()}
    return [
        value
        for value in fusion.inputs()
        if isinstance(value, TensorView)
        and value.name not in read
        and not value.is_cpu_scalar()
        and not is_annotated(value)
    ]


def final_results(fusion: Fusion) -> list[TensorView]:
    """Return the results that are whole unless the user says otherwise.

    Results that the program reads again, to be kept for a backward pass say, may be divided, and
    those that go into the memory of an input lie as that input does.
    """
    read = {tv.name for expr in fusion.exprs() for tv in expr.inputs()}
    return [
        value
        for value, hidden in zip(fusion.outputs(), fusion.hidden_outputs(), strict=True)
        if isinstance(value, TensorView)
        and not hidden
        and not value.is_fusion_input()
        and not is_annotated(value)
        and value.name not in read
    ]
