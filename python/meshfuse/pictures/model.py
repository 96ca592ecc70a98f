# SPDX-License-Identifier: BSD-3-Clause
"""All that a picture of a program shows, as dicts and lists for JSON."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .. import program_text
from .._C import Error
from ..explanation import Explanation, TensorExplanation
from ..explanation import _sizes_of_inputs as sizes_of_inputs
from ..profile import FusionProfile
from ..program_text import Program, Tensor
from ..progress import tracked
from .cells import Group, grid, groups_of, plane
from .extents import bound_sizes, evaluate, open_sizes, stand_in
from .graph import Node, make_graph
from .memory import memory_model
from .ownership import MeshShape, Ownership
from .palette import TINTS
from .profiled import profiled_sizes
from .tree import tree_model

if TYPE_CHECKING:
    from ..definition import FusionDefinition

_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "index": 8, "u64": 8, "i32": 4}
_NAMED = 32  #: most devices that the text of a mesh lists
_BYTES |= {"u32": 4, "bool": 1, "c64": 8, "c128": 16}


@dataclass
class Picture:
    """A compiled program with a number for each of its sizes."""

    program: Program
    explanation: Explanation
    sizes: dict[str, int]
    assumed: dict[str, int]  #: sizes that are open, and what was taken for them
    nodes: list[Node]
    title: str = ""
    profile: FusionProfile | None = None

    def ownership(self, tensor: Tensor) -> Ownership:
        """Return how a tensor of the program is divided."""
        return Ownership(tensor, lambda text: max(evaluate(text, self.sizes), 0))

    def to_dict(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """Return what the page shows; of ``only`` these tensors, if that is given."""
        facts = {tensor.name: tensor for tensor in self.explanation.tensors}
        tensors = self.program.tensors()
        if only is not None:
            tensors = {name: tensors[name] for name in only}
        results = set(self.program.result_names())
        inputs = {statement.names[0] for statement in self.program.inputs()}
        shown = []
        meshes: dict[MeshShape, str | None] = {}
        for name, tensor in tracked(tensors.items(), "drawing tensors"):
            role = "input" if name in inputs else "output" if name in results else ""
            own = self.ownership(tensor)
            meshes.setdefault(own.mesh, tensor.mesh)
            place = list(meshes).index(own.mesh)
            facts_of_one = self._tensor(name, tensor, own, facts.get(name))
            shown.append(facts_of_one | {"role": role, "mesh": place})
        by_name = {tensor["name"]: tensor for tensor in shown}
        return {
            "tensors": shown,
            "nodes": [self._node(node, by_name) for node in self.nodes],
            "devices": _numbers(sorted(set().union(*(mesh.devices for mesh in meshes)))),
            "tints": TINTS,
            "meshes": [_mesh(mesh, text) for mesh, text in meshes.items()],
            "assumed": self.assumed,
            "communications": len(self.explanation.communications),
            "bytes": None if self.assumed else self.explanation.bytes,
            "steps": [] if self.profile is None else _steps(self.profile),
        }

    def _tensor(
        self, name: str, tensor: Tensor, own: Ownership, fact: TensorExplanation | None
    ) -> dict[str, Any]:
        partial = own.partial
        shown = [k for k in range(len(own.dims)) if k not in partial]
        segments, groups = grid(own)
        segments = [segments[k] for k in shown]
        place = {k: i for i, k in enumerate(shown)}
        groups = [
            Group(tuple(place[k] for k in group.dims), group.places)
            for group in groups
            if not set(group.dims) & partial.keys()
        ]
        across, outer = plane(segments, groups)
        itemsize = _BYTES.get(tensor.dtype, 1)
        return {
            "name": name,
            "dtype": tensor.dtype,
            "shape": [own.shape[k] for k in shown],
            "extents": [own.axes[own.dims[k]].size for k in shown],
            "bytes": math.prod(own.shape[k] for k in shown) * itemsize,
            "itemsize": itemsize,
            "on_mesh": {axis: place.get(k) for axis, k in own.divided().items()},
            "partial": sorted(f"mesh_{axis}" for axis in partial.values()),
            "local": local_shape(own, shown),
            "sharding": "" if fact is None else str(fact).partition(": ")[2].partition(" on ")[0],
            "origin": _origin(fact),
            "made_at": None if fact is None else fact.made_at,
            "segments": [[[s.start, s.stop, s.gap] for s in line] for line in segments],
            "groups": [asdict(group) for group in groups],
            "plane": across,
            "outer": outer,
            "memory": memory_model(own, shown),
            "tree": tree_model(own),
        }

    def _node(self, node: Node, tensors: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {
            "names": list(node.names),
            "op": node.op,
            "text": node.text,
            "operands": node.operands,
            "output": node.is_output,
            "layer": node.layer,
            "order": node.order,
            "bends": node.bends,
            "communication": None,
        }
        if node.communication is not None:
            facts = asdict(node.communication)
            facts["bytes"] = None if self.assumed else facts["bytes"]
            del facts["team"], facts["teams"]
            facts["among"] = _teams_text(node.communication.teams)
            ends = (node.communication.sent, node.names[0])
            facts["local"] = [tensors.get(name, {}).get("local") for name in ends]
            result["communication"] = facts
        return result


def make_picture(
    fd: FusionDefinition,
    inputs: Iterable[Any] | None = None,
    sizes: Mapping[Any, Any] | None = None,
    profile: FusionProfile | None = None,
) -> Picture:
    """Compile a definition and collect what is to be shown.

    Raises:
        meshfuse.Error: the passes refuse the program, or sizes do not fit it.
    """
    program = program_text.parse(fd.compiled_ir())
    given: dict[Any, Any] = dict(sizes or {})
    if inputs is not None:
        given |= {name: tuple(shape) for name, shape, _ in _given(fd, inputs)}
    if inputs is None and not given and profile is not None:
        given = dict(profiled_sizes(fd, program, profile))
    known = bound_sizes(program, {_name(key): value for key, value in given.items()})
    assumed = {s: stand_in(program) for s in open_sizes(program) if s not in known}
    try:
        explanation = fd.explain(sizes=given)
    except Error:
        if not assumed:
            raise
        explanation = fd.explain(sizes=given | _symbols(assumed, program))
    nodes, title = make_graph(program, explanation), _title(fd, explanation)
    return Picture(program, explanation, known | assumed, assumed, nodes, title, profile)


def _title(fd: FusionDefinition, explanation: Explanation) -> str:
    """Return where the program is from, its last operation, and how many devices it is for."""
    program = program_text.parse(fd.ir())
    made = {tensor.name: tensor.made_at for tensor in explanation.tensors}
    ops = {name: statement.op for statement in program.statements for name in statement.names}
    parts = []
    for name in [name for name in program.result_names() if name in ops][-1:]:
        file = (made.get(name) or "").rpartition(":")[0]
        # The cells of a notebook are files of temporary names.
        if file and "ipykernel" not in file and not file.startswith("<"):
            parts.append(f"{PurePath(file).name}: ")
        parts.append(f"{name} = {ops[name] or 'input'}")
    meshes = program.meshes()
    if len(meshes) == 1:
        parts.append(f" on a mesh of {'x'.join(map(str, MeshShape.parse(meshes[0]).sizes))}")
    elif meshes:
        parts.append(f" on {len(meshes)} meshes")
    return "".join(parts) or "meshfuse program"


def _given(fd: FusionDefinition, inputs: Iterable[Any]) -> list[tuple[str, list[int], bool]]:
    return sizes_of_inputs(fd._executor().fusion(), inputs)


def _symbols(assumed: Mapping[str, int], program: Program) -> dict[str, int]:
    return {s: n for s, n in assumed.items() if s in open_sizes(program)}


def _name(key: Any) -> str:
    return str(getattr(key, "name", key))


def local_shape(own: Ownership, shown: Sequence[int]) -> list[int] | None:
    """Return the shape of the largest part on a device; None where a part is no box."""
    places = own.divided()
    tied = {k for dims in groups_of(own) if len(dims) > 1 for k in dims}
    if tied & set(places.values()):
        return None
    sizes = dict(zip(own.mesh.axes, own.mesh.sizes, strict=True))
    local = list(own.shape)
    for axis, k in places.items():
        local[k] = -(-local[k] // sizes[axis])
    return [local[k] for k in shown]


def _mesh(mesh: MeshShape, text: str | None) -> dict[str, Any]:
    devices = _numbers(mesh.devices)
    short = "on no mesh" if text is None else text
    if len(mesh.devices) > _NAMED and not isinstance(devices, int):
        listed = " ".join(map(str, mesh.devices))
        ends = (*mesh.devices[: _NAMED - 1], "...", mesh.devices[-1])
        short = short.removesuffix(f"{listed})") + " ".join(map(str, ends)) + ")"
    # A name may have characters that end lines, or that a terminal obeys.
    short = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)
    return {"text": short, "axes": mesh.axes, "sizes": mesh.sizes, "devices": devices}


def _numbers(devices: Sequence[int]) -> int | list[int]:
    """Return devices as JSON has them: how many, where they are 0, 1, 2 and so on."""
    listed = list(devices)
    return len(listed) if listed == list(range(len(listed))) else listed


def _teams_text(teams: Sequence[Sequence[int]]) -> str:
    shown = []
    for team in teams[:4]:
        more = f" and {len(team) - _NAMED} more" if len(team) > _NAMED else ""
        shown.append("{" + " ".join(map(str, team[:_NAMED])) + more + "}")
    more = f" and {len(teams) - 4} more teams" if len(teams) > 4 else ""
    return ", ".join(shown) + more


def _origin(fact: TensorExplanation | None) -> str:
    if fact is None or fact.origin is None:
        return ""
    if isinstance(fact.origin, str):
        return f"annotated at {fact.origin}"
    tensor, factor = fact.origin
    return f"from {tensor}" + (f" along '{factor}'" if factor else "")


def _steps(profile: FusionProfile) -> list[dict[str, Any]]:
    """Return the steps; times are milliseconds since the first began."""
    first = min((step.start_ns for step in profile.kernel_profiles), default=0)
    steps = []
    for step in profile.kernel_profiles:
        steps.append(
            {
                "name": step.name,
                "kind": step.scheduler,
                "start": (step.start_ns - first) / 1e6,
                "ms": step.time_ms,
                "host": step.host_time_ms,
                "on_device": step.device_time_ms,
                "in": step.input_bytes,
                "out": step.output_bytes,
                "device": step.device,
                "devices": step.devices,
            }
        )
    return steps
