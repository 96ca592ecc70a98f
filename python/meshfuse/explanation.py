# SPDX-License-Identifier: BSD-3-Clause
"""What ``fd.explain()`` returns: how tensors are divided, and communications with their causes.

Made without devices: it works in one process for a mesh of any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from . import _C
from ._C import Error, Fusion, Scalar, TensorView
from .limits import MAX_SIZE
from .progress import busy
from .remesh import mesh_text

if TYPE_CHECKING:
    from .planner.plan_cost import PlanCost
    from .planner.suggest import Suggestion

#: A tensor axis, or "partial" where each device holds a part of a sum.
Place = int | str


@dataclass(frozen=True)
class TensorExplanation:
    """How one tensor is divided over its mesh, and why.

    Attributes:
        name: As the IR prints it.
        sharding: Mesh axis (``"mesh_x"``) to tensor axis, or ``"partial"``; mesh axes over which
            the tensor is whole are left out.
        origin: ``"file:line"`` of the user's annotation; or ``(tensor, factor)``: the tensor whose
            split was repeated, and the loop of the operation between them along which it was, None
            where only the mesh was taken over. None for a tensor without a mesh.
        origins: ``(tensor, factor)`` for each mesh axis that was filled in.
        mesh: The mesh as text, None for a tensor without one.
        made_at: ``"file:line"`` of the call that made it, None where that is not known.
        mesh_form: The mesh as the text form of programs has it, ``"mesh(y=2, x=4)"``.
    """

    name: str
    sharding: dict[str, Place]
    origin: str | tuple[str, str | None] | None
    origins: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    mesh: str | None = None
    made_at: str | None = None
    mesh_form: str | None = None

    def __str__(self) -> str:
        """Return one line of the report."""
        if self.mesh is None:
            return f"{self.name}: on no mesh"
        places = [f"{_place_text(place)} over {axis}" for axis, place in self.sharding.items()]
        text = f"{self.name}: {', '.join(places) or 'whole'} on {self.mesh}"
        if isinstance(self.origin, str):
            return f"{text}, annotated at {self.origin}"
        if self.origin is None:
            return f"{text}, annotated"
        tensor, factor = self.origin
        return f"{text}, from {tensor}" + (f" along '{factor}'" if factor else "")


@dataclass(frozen=True)
class Communication:
    """One communication of the compiled program.

    Attributes:
        kind: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"all-to-all"``,
            ``"broadcast"``, ``"gather"``, ``"scatter"``, ``"reduce"`` or ``"send-recv"``.
        tensor: Result of the operation of the program that needs it.
        op: That operation.
        team: Devices that communicate with each other; the first team where there are several.
        mesh_axis: The mesh axis, ``"mesh_x"``.
        bytes: Bytes that one device sends, the least that a ring needs.
        reason: The shardings that disagree, in words.
        lines: ``"file:line"`` of the annotations behind them, then of the operation.
        teams: All teams; they communicate at the same time.
        sent: The tensor that is sent, as ``fd.compiled_ir()`` names it.
        before: Tensor axis of ``sent`` that is divided over the mesh axis, ``"partial"``, or None
            where it is whole.
        after: The same for the result of the communication.
        mesh_axis_name: The user's name of the mesh axis, if it has one.
    """

    kind: str
    tensor: str
    op: str
    team: list[int]
    mesh_axis: str
    bytes: int
    reason: str
    lines: list[str]
    teams: list[list[int]] = field(default_factory=list)
    sent: str = ""
    before: Place | None = None
    after: Place | None = None
    mesh_axis_name: str | None = None

    def __str__(self) -> str:
        """Return the paragraph of the report."""
        axis = self.mesh_axis + (f" ('{self.mesh_axis_name}')" if self.mesh_axis_name else "")
        teams = ", ".join("{" + " ".join(map(str, team)) + "}" for team in self.teams[:4])
        more = f" and {len(self.teams) - 4} more teams" if len(self.teams) > 4 else ""
        lines = [
            f"{self.kind} over {axis} for {self.tensor} = {self.op}(...): "
            f"{self.bytes} bytes per device, among {teams}{more}",
            f"  {self.sent}: {_place_text(self.before)} -> {_place_text(self.after)}",
            f"  because {self.reason}",
        ]
        lines += [f"  at {line}" for line in self.lines]
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """The report of ``fd.explain()``; ``str()`` prints it.

    Attributes:
        tensors: The program's tensors, then those that the passes have made.
        communications: In order of execution.
        cost: Modelled time and memory (docs/planner.md); None where they depend on a size that is
            not known, or the figures of links cannot be read.
        suggestions: Single annotations that would make it cheaper, the best first, if they were
            asked for.
        note: Why the figures of links cannot be read, where that is why there is no cost.

    Example:
        >>> from meshfuse import DeviceMesh, FusionDefinition, ParallelType
        >>> with FusionDefinition() as fd:
        ...     x, w = fd.define_tensor([4, 16]), fd.define_tensor([16, 8])
        ...     fd.add_output(fd.ops.matmul(x, w))
        ...     for t, axis in ((x, 1), (w, 0)):
        ...         t.set_device_mesh(DeviceMesh(range(8)))
        ...         _ = t.outer_split(axis, 8)
        ...         t.axis(axis).parallelize(ParallelType.mesh_x)
        >>> (c,) = fd.explain().communications
        >>> c.kind, c.op, c.mesh_axis, c.bytes
        ('all-reduce', 'matmul', 'mesh_x', 224)
        >>> c.reason
        "T0 and T1 split 'k' over mesh_x, so T2 is a sum over these devices"
    """

    tensors: list[TensorExplanation]
    communications: list[Communication]
    cost: PlanCost | None = None
    suggestions: list[Suggestion] | None = None
    note: str | None = None

    @property
    def bytes(self) -> int:
        """Bytes that one device sends in one run."""
        return sum(c.bytes for c in self.communications)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings, numbers and None, ready for JSON.

        An origin is ``{"line", "tensor", "factor"}``: the line of an annotation, or the tensor and
        the loop from which it was taken over; None for a tensor without a mesh. Meshes are in the
        text form of programs, as in those of ``fd.check`` and repro bundles.
        """
        result = asdict(self)
        for facts, tensor in zip(result["tensors"], self.tensors, strict=True):
            facts["origin"] = None if tensor.mesh is None else _origin_facts(tensor.origin)
            facts["mesh"] = facts.pop("mesh_form")
            facts["origins"] = {axis: _origin_facts(o) for axis, o in tensor.origins.items()}
        if self.cost is not None:
            result["cost"] = self.cost.to_dict()
        for facts, suggestion in zip(
            result["suggestions"] or (), self.suggestions or (), strict=True
        ):
            facts |= {"cost": suggestion.cost.to_dict(), "now": suggestion.now.to_dict()}
        return result | {"bytes": self.bytes}

    def __str__(self) -> str:
        """Return the report as text."""
        n = len(self.communications)
        head = f"{n or 'no'} communication{'' if n == 1 else 's'}"
        head += f", {self.bytes} bytes per device" if n else ""
        parts = [head] + [f"{i}. {c}" for i, c in enumerate(self.communications, start=1)]
        if self.cost is not None:
            parts.insert(
                1,
                f"modelled: {self.cost.time_us:.1f} us, {self.cost.communication_us:.1f} us of "
                f"them to communicate; {self.cost.peak_memory} bytes per device in memory",
            )
        if self.note is not None:
            parts.insert(1, f"not modelled: {self.note}")
        parts.append("\n".join(["tensors:"] + [f"  {tensor}" for tensor in self.tensors]))
        if self.suggestions is not None:
            parts.append("\n".join(["suggestions:", *map(str, self.suggestions)]))
            if not self.suggestions:
                parts[-1] += f"\n{self._why_no_suggestions()}"
        return "\n\n".join(parts)

    def _why_no_suggestions(self) -> str:
        if all(tensor.mesh is None for tensor in self.tensors):
            return "no tensor has a mesh: give one with set_device_mesh first"
        return "no single annotation is modelled to take less time, or as much with less memory"


def explain(
    fusion: Fusion,
    inputs: Iterable[Any] | None = None,
    sizes: Mapping[str | TensorView | Scalar, int | Sequence[int]] | None = None,
    suggest: bool = False,
) -> Explanation:
    """Run the passes on a copy of ``fusion`` and say what they made of it."""
    known = _sizes_of_inputs(fusion, inputs) if inputs is not None else []
    known += [known_size(key, value) for key, value in (sizes or {}).items()]
    with busy("explaining"):
        facts = _C.explain(fusion, known)
    from .planner.explained import cost_and_suggestions

    meshes = [tv.get_device_mesh() for tv in fusion.tensors() if tv.has_device_mesh()]
    forms = {str(mesh): mesh_text(mesh) for mesh in meshes}
    tensors = [_tensor(dict(t), forms) for t in facts["tensors"]]
    lines = {t.name: t.origin for t in tensors if isinstance(t.origin, str)}
    cost, found, note = cost_and_suggestions(fusion, known, lines, suggest)
    communications = [_communication(dict(c)) for c in facts["communications"]]
    return Explanation(tensors, communications, cost, found, note)


def _origin_facts(origin: str | tuple[str, str | None] | None) -> dict[str, str | None]:
    if isinstance(origin, str) or origin is None:
        return {"line": origin, "tensor": None, "factor": None}
    return {"line": None, "tensor": origin[0], "factor": origin[1]}


def _tensor(facts: dict[str, Any], forms: Mapping[str, str]) -> TensorExplanation:
    origin: str | tuple[str, str | None] | None
    if facts["declared"]:
        origin = facts["line"]
    else:
        mesh_from = facts["mesh_from"]
        origin = next(iter(facts["origins"].values()), mesh_from and (mesh_from, None))
    return TensorExplanation(
        facts["name"],
        facts["sharding"],
        origin,
        facts["origins"],
        facts["mesh"],
        facts.get("made_at"),
        forms.get(facts["mesh"] or "", facts["mesh"]),
    )


def _communication(facts: dict[str, Any]) -> Communication:
    return Communication(team=facts["teams"][0], **facts)


def _sizes_of_inputs(fusion: Fusion, inputs: Iterable[Any]) -> list[tuple[str, list[int], bool]]:
    declared, given = fusion.inputs(), list(inputs)
    if len(given) != len(declared):
        raise Error(
            f"explain: expected {len(declared)} inputs, but {len(given)} were given. Pass one "
            "value per define_tensor and define_scalar, in order."
        )
    known = []
    for position, (value, want) in enumerate(zip(given, declared, strict=True)):
        if isinstance(want, TensorView):
            if not isinstance(value, torch.Tensor):
                raise Error(
                    f"explain: input {position} is {type(value).__name__}, not a tensor. Pass a "
                    "global tensor, as sim.run takes it; its values are not read."
                )
            known.append((want.name, list(value.shape), True))
        elif isinstance(value, int) and not isinstance(value, bool):
            known.append((str(want), [value], False))
    return known


def known_size(key: Any, value: Any, caller: str = "explain") -> tuple[str, list[int], bool]:
    """Return an entry of ``sizes`` as the compiler takes it; raise where it is neither form."""
    name = key.name if isinstance(key, TensorView) else str(key)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE:
        return name, [value], False
    if isinstance(value, Sequence) and all(
        isinstance(n, int) and 0 <= n <= MAX_SIZE for n in value
    ):
        return name, list(value), True
    raise Error(
        f"{caller}: sizes[{name!r}] is {value!r}. Give a number of elements, at most {MAX_SIZE}, "
        "for an open size, as in {'T0.0': 4}, or the global sizes of an input, as in "
        "{'T0': (4, 8)}."
    )


def _place_text(place: Place | None) -> str:
    if place is None:
        return "whole"
    return "partial sums" if place == "partial" else f"axis {place} split"
