# SPDX-License-Identifier: BSD-3-Clause
"""``plan_costs``: what a program sends, holds and takes on a mesh that need not be there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .. import _C
from .._C import DeviceMesh, Fusion, Scalar, TensorView, parse_fusion
from ..explanation import known_size
from ..program_text import Program, parse
from ..progress import busy
from ..remesh import mesh_shape, remesh
from ..repro_on_failure import bundle_of_internal_error
from .links import Links, current_links
from .local_program import LocalProgram, ProgramReader
from .memory import peak_bytes
from .open_sizes import known_sizes
from .operations import step_us
from .repetition import repetition_of

if TYPE_CHECKING:
    from ..definition import FusionDefinition

__all__ = ["CommunicationCost", "PlanCost", "compiled_text", "cost_of", "plan_costs"]

_NOTHING_SENT = (None, "local-slice")


@dataclass(frozen=True)
class CommunicationCost:
    """One communication of the compiled program.

    Attributes:
        kind: As ``fd.explain()`` names it.
        tensor: The result, as ``fd.compiled_ir()`` names it.
        mesh_axis: ``"mesh_x"``.
        team: Number of devices that communicate with each other.
        bytes: Bytes that one device sends, the least that a ring needs.
        time_us: Modelled microseconds.
    """

    kind: str
    tensor: str
    mesh_axis: str
    team: int
    bytes: int
    time_us: float


@dataclass(frozen=True)
class PlanCost:
    """What one execution costs on a mesh, by the model of docs/planner.md.

    Attributes:
        mesh: Sizes of the mesh, outermost first; of several meshes the largest; () without one.
        communications: In order of execution.
        bytes: Bytes that one device sends.
        peak_memory: Bytes that one device holds at most, its parts of the inputs among them.
        time_us: Modelled microseconds, communications included.
        computed: How often the same is computed, on the average of modelled time: 1.0 where no
            device repeats another's work, 2.0 where each operation runs on two devices alike.
        repeated_over: Mesh axes over which no operation is divided, ``"mesh_y"``: the devices along
            them repeat each other's work.
    """

    mesh: tuple[int, ...]
    communications: list[CommunicationCost] = field(default_factory=list)
    bytes: int = 0
    peak_memory: int = 0
    time_us: float = 0.0
    computed: float = 1.0
    repeated_over: list[str] = field(default_factory=list)

    @property
    def communication_us(self) -> float:
        """Modelled microseconds of the communications."""
        return sum(c.time_us for c in self.communications)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as dicts, lists, strings and numbers, ready for JSON."""
        return asdict(self) | {"mesh": list(self.mesh)}

    def __str__(self) -> str:
        """Return the figures in a line, and a line for each communication."""
        mesh = "x".join(map(str, self.mesh)) or "none"
        kinds = Counter(c.kind for c in self.communications)
        counted = ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "no communication"
        lines = [
            f"mesh {mesh}: {self.time_us:.1f} us modelled, {self.communication_us:.1f} us of them "
            f"for {counted} ({self.bytes} bytes per device); at most {self.peak_memory} bytes per "
            "device in memory"
        ]
        if self.repeated_over:
            lines.append(
                f"  no operation is divided over {' and '.join(self.repeated_over)}: the same is "
                f"computed {self.computed:.3g} times"
            )
        lines += [
            f"  {c.kind} over {c.mesh_axis} for {c.tensor}: {c.team} devices, {c.bytes} bytes, "
            f"{c.time_us:.1f} us"
            for c in self.communications
        ]
        return "\n".join(lines)


def plan_costs(
    fd: FusionDefinition,
    mesh: DeviceMesh | int | Sequence[int] | None = None,
    *,
    sizes: Mapping[str | TensorView | Scalar, int | Sequence[int]] | None = None,
    links: Links | str | None = None,
) -> PlanCost:
    """Return what an execution of a program costs on a mesh. Needs no devices.

    Args:
        fd: The definition.
        mesh: The mesh to which the program's splits are carried over, as ``fd.check`` does; None
            for the meshes that the program has.
        sizes: Name of an input (or the input) to its global sizes, or name of an open size
            (``"T0.0"``) to a number, where the program leaves sizes open.
        links: Figures of the machine, or the name of a preset. None: those that
            ``measure_links().save()`` wrote, else published ones of a host without accelerators.

    Raises:
        meshfuse.Error: the passes refuse the program, its splits cannot be carried over, or a size
            is open and not given.
        TypeError: ``fd`` is no definition, or ``mesh`` is neither a mesh nor the shape of one.

    Example:
        >>> import meshfuse
        >>> from meshfuse.planner import plan_costs
        >>> with meshfuse.FusionDefinition() as fd:
        ...     x, w = fd.define_tensor([4, 16]), fd.define_tensor([16, 8])
        ...     fd.add_output(fd.ops.matmul(x, w))
        ...     for t, axis in ((x, 1), (w, 0)):
        ...         t.set_device_mesh(meshfuse.DeviceMesh(range(2)))
        ...         _ = t.outer_split(axis, 2)
        ...         t.axis(axis).parallelize(meshfuse.ParallelType.mesh_x)
        >>> [(c.kind, c.bytes) for c in plan_costs(fd).communications]
        [('all-reduce', 128)]
        >>> plan_costs(fd, mesh=8).bytes
        224
    """
    fusion = fusion_of(fd, "plan_costs")
    given = [known_size(key, value, "plan_costs") for key, value in (sizes or {}).items()]
    with busy("planning"):
        if mesh is not None:
            fusion = fusion_on(fusion, mesh, "plan_costs")
        program = parse(fusion.ir())
        reader = ProgramReader(known_sizes(fusion, program, given, "plan_costs"))
        return cost_of(reader.read(compiled_text(fusion)), current_links(links))


def fusion_of(fd: FusionDefinition, caller: str) -> Fusion:
    """Return the program of a definition.

    Raises:
        TypeError: it is none; the message begins with ``caller``.
    """
    from ..definition import FusionDefinition

    if not isinstance(fd, FusionDefinition):
        raise TypeError(
            f"{caller}: fd must be a FusionDefinition, but it is a {type(fd).__name__}."
        )
    return fd._executor().fusion()


def fusion_on(fusion: Fusion, mesh: DeviceMesh | int | Sequence[int], caller: str) -> Fusion:
    """Return the program with its splits carried over to a mesh; itself if it is on that.

    Raises:
        meshfuse.Error: they cannot be carried over; the message begins with ``caller``.
    """
    from ..check import device_mesh

    wanted = device_mesh(mesh, caller)
    meshes = {t.get_device_mesh() for t in fusion.tensors() if t.has_device_mesh()}
    if meshes <= {wanted}:
        return fusion
    return with_text(fusion, remesh(parse(fusion.ir()), wanted, caller))


def with_text(fusion: Fusion, program: Program) -> Fusion:
    """Return the program of another text, with the options of ``fusion``.

    Raises:
        meshfuse.Error: it is no program, or its splits do not fit.
    """
    made = parse_fusion(str(program), fusion.uneven)
    made.strict, made.reduce_dtype = fusion.strict, fusion.reduce_dtype
    return made


def compiled_text(fusion: Fusion) -> str:
    """Return the program after the passes, as text."""
    with bundle_of_internal_error(fusion):
        return _C.FusionExecutorCache(fusion, 0).compiled_ir()


def cost_of(program: LocalProgram, links: Links) -> PlanCost:
    """Return the cost of a compiled program."""
    communications, computed = [], []
    total = 0.0
    for step in program.steps:
        time = step_us(step, links)
        total += time
        transfer = step.transfer
        if transfer is None or transfer.kind in _NOTHING_SENT:
            computed.append((step, time))
            continue
        communications.append(
            CommunicationCost(
                transfer.kind,
                step.names[0],
                f"mesh_{transfer.mesh_axis}",
                len(transfer.teams[0]),
                transfer.bytes,
                time,
            )
        )
    meshes = [mesh_shape(mesh) for mesh in {t.mesh for t in program.tensors.values()} if mesh]
    repetition = repetition_of(computed)
    return PlanCost(
        max(meshes, key=lambda shape: (len(shape), shape), default=()),
        communications,
        sum(c.bytes for c in communications),
        peak_bytes(program),
        total,
        repetition.times,
        repetition.over,
    )
