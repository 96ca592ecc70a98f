# SPDX-License-Identifier: BSD-3-Clause
"""Single annotations that would make a program cheaper, for ``fd.explain(suggest=True)``."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from .._C import DeviceMesh, Error, Fusion, InternalError, TensorView, UnsupportedError
from ..program_text import Program, parse
from ..progress import tracked
from ..remesh import mesh_text
from .annotations import (
    Annotation,
    annotate,
    is_annotated,
    possible_annotations,
    python_text,
    sharding_text,
)
from .links import Links
from .local_program import LocalProgram, ProgramReader
from .plan_cost import PlanCost, compiled_text, cost_of, with_text

__all__ = ["Suggestion", "suggestions"]

_MOST = 5


@dataclass(frozen=True)
class Suggestion:
    """A change of one annotation.

    Attributes:
        tensor: Whose annotation it is.
        change: ``"add"``, ``"replace"`` or ``"remove"``.
        text: Python lines to write in the definition, the tensor called as the IR names it, after
            ``import torch, meshfuse``; a comment where there is nothing to write.
        leave_out: ``"file:line"`` of the annotation that is replaced or removed, if it is known.
        results: Results that then lie differently, in words.
        cost: What the program then costs.
        now: What it costs now.
        equal: Changes of other tensors that make the same program, such as ``"add T3"``.
    """

    tensor: str
    change: str
    text: str
    leave_out: str | None
    results: list[str]
    cost: PlanCost
    now: PlanCost
    equal: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the change, what it brings, and the lines."""
        now = self.now.time_us
        saved = 100 * (1 - self.cost.time_us / now) if now else 0  # views take no time
        lines = [
            f"{self.change} the annotation of {self.tensor}: {self.cost.time_us:.1f} us modelled "
            f"instead of {now:.1f} ({saved:.0f} % less), {self.cost.bytes} bytes per "
            f"device sent instead of {self.now.bytes}, {self.cost.peak_memory} bytes in memory "
            f"instead of {self.now.peak_memory}"
        ]
        if self.leave_out:
            lines.append(f"  leave out what is at {self.leave_out}")
        lines += [f"  {line}" for line in self.text.splitlines()]
        lines += [f"  then {result}" for result in self.results]
        if self.equal:
            lines.append(f"  the same program: {', '.join(self.equal)}")
        return "\n".join(lines)


def suggestions(
    fusion: Fusion,
    sizes: Mapping[str, int],
    links: Links,
    lines: Mapping[str, str | None],
) -> list[Suggestion]:
    """Return the single changes that are modelled to save time or, in no more time, memory.

    The best is the first.

    Tried is every even division of every input and result of an operation, over every axis of the
    mesh that it is on, in place of the annotation it has or where it has none; and to leave an
    annotation out. Of changes that make the same program the first is listed.

    Args:
        fusion: The program.
        sizes: Values of its open sizes.
        links: Figures of the machine.
        lines: Where annotations are made, by tensor.
    """
    meshes = {tv.get_device_mesh() for tv in fusion.tensors() if tv.has_device_mesh()}
    if not meshes:
        return []
    reader = ProgramReader(sizes)
    text = compiled_text(fusion)
    before = reader.read(text)
    now = cost_of(before, links)
    found: dict[str, Suggestion] = {}  # by compiled program
    changes = _changes(fusion, _mesh_of(before, meshes), sizes, _write_shardings(lines))
    for change in tracked(changes, "explaining: annotations tried"):
        try:
            text = compiled_text(change.fusion)
            if text in found:
                if change.tensor != found[text].tensor:
                    found[text].equal.append(f"{change.kind} {change.tensor}")
                continue
            after = reader.read(text)
        except (Error, InternalError, UnsupportedError):
            continue
        cost = cost_of(after, links)
        if _order(cost) < _order(now):
            leave_out = None if change.kind == "add" else lines.get(change.tensor)
            results = _changed_results(before, after)
            found[text] = Suggestion(
                change.tensor, change.kind, change.text, leave_out, results, cost, now
            )
    listed = sorted(found.values(), key=lambda s: (*_order(s.cost), len(s.results)))
    return listed[:_MOST]


def _mesh_of(program: LocalProgram, meshes: set[DeviceMesh]) -> Callable[[str], list[DeviceMesh]]:
    """Return what says on which mesh a tensor is; all of them where it is on none."""
    by_text = {mesh_text(mesh): mesh for mesh in meshes}
    everywhere = [by_text[text] for text in sorted(by_text)]

    def mesh_of(name: str) -> list[DeviceMesh]:
        tensor = program.tensors.get(name)
        mesh = by_text.get(tensor.mesh or "") if tensor is not None else None
        return everywhere if mesh is None else [mesh]

    return mesh_of


def _write_shardings(lines: Mapping[str, str | None]) -> bool:
    """Whether the script annotates by ``set_sharding``, as far as its lines can be read."""
    for line in lines.values():
        file, _, number = (line or "").rpartition(":")
        if number.isdigit() and "set_sharding(" in linecache.getline(file, int(number)):
            return True
    return False


def _order(cost: PlanCost) -> tuple[float, int]:
    return round(cost.time_us, 4), cost.peak_memory


@dataclass(frozen=True)
class _Change:
    tensor: str
    kind: str
    text: str
    fusion: Fusion


def _changes(
    fusion: Fusion,
    mesh_of: Callable[[str], list[DeviceMesh]],
    sizes: Mapping[str, int],
    by_sharding: bool,
) -> Iterator[_Change]:
    program = parse(fusion.ir())
    for tv in _tensors(fusion):
        if not is_annotated(tv):
            base, own, kind = fusion, tv, "add"
        else:
            bare = _without_annotation(fusion, program, tv.name)
            if bare is None:
                continue
            base, kind = bare, "replace"
            (own,) = (t for t in bare.tensors() if t.name == tv.name)
            yield _Change(tv.name, "remove", f"# no annotation of {tv.name}", bare)
        write = sharding_text if by_sharding else python_text
        for mesh in mesh_of(tv.name):
            for annotation in possible_annotations(own, mesh, sizes):
                if kind == "add" and not annotation.count and tv.is_fusion_input():
                    continue  # whole anyway
                text = write(own, mesh, annotation)
                changed = _with_annotation(base, mesh, tv.name, annotation)
                yield _Change(tv.name, kind, text, changed)


def _tensors(fusion: Fusion) -> list[TensorView]:
    found: dict[str, TensorView] = {}
    for expr in fusion.exprs():
        found |= {tv.name: tv for tv in (*expr.inputs(), *expr.outputs())}
    return [tv for tv in found.values() if tv.ndim > 0 and not tv.is_cpu_scalar()]


def _with_annotation(fusion: Fusion, mesh: DeviceMesh, name: str, annotation: Annotation) -> Fusion:
    copy = fusion.clone()
    for tv in copy.tensors():
        if tv.name == name:
            annotate(tv, mesh, annotation)
    return copy


def _without_annotation(fusion: Fusion, program: Program, name: str) -> Fusion | None:
    """Return the program with one tensor off the mesh and not split; None where that cannot be."""
    tensor = program.tensors()[name]
    if tensor.item("logical") is not None or any(axis.parallel for axis in tensor.root):
        return None
    order = [
        item for item in tensor.items if isinstance(item, str) and _is_plain(item, tensor.root)
    ]
    bare = replace(tensor, items=tuple(order), mesh=None)
    changed = program.map_tensors(lambda other, t: bare if other == name else t)
    try:
        return with_text(fusion, changed)
    except Error:
        return None


def _is_plain(item: str, root: tuple[object, ...]) -> bool:
    """Whether an item says of the memory of the root axes alone."""
    words = item.split()
    refs = {getattr(axis, "ref", "") for axis in root}
    return words[0] == "alloc" and set(words[1:]) <= refs | {"contig", "t", "f", "n"}


def _changed_results(before: LocalProgram, after: LocalProgram) -> list[str]:
    """Say of inputs and results which lie differently."""
    said = []
    for name in dict.fromkeys((*before.inputs, *before.results)):
        old, new = before.tensors[name], after.tensors.get(name)
        if new is None:
            continue
        was = {axis: place[0] for axis, place in old.places.items()}
        now = {axis: place[0] for axis, place in new.places.items()}
        if was != now:
            kind = "the input" if name in before.inputs else "the result"
            said.append(f"{kind} {name} is {_places(now)}, not {_places(was)}")
    return said


def _places(places: Mapping[str, int | str]) -> str:
    texts = [f"divided along axis {axis} over mesh_{p}" for p, axis in sorted(places.items())]
    return " and ".join(texts) or "whole"
