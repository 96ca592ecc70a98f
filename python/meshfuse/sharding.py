# SPDX-License-Identifier: BSD-3-Clause
"""How a tensor is divided over a mesh, and its forms: placements, partition specs and Shardy's."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._C import DeviceMesh, ParallelType
from .axis_layout import MESH_AXES, REST, Layout, devices_of, mesh_axes
from .dtensor_placements import mesh_of, read_placements, write_placements
from .exceptions import Error
from .limits import MAX_AXES, check_axes, cut
from .partition_spec import Spec, axis_names, read_spec, write_spec
from .shardy import read_mesh, read_shardy, write_mesh, write_shardy

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement


@dataclass(frozen=True)
class Obstacle:
    """A mesh axis that divides merged axes: no tensor axis alone says how."""

    mesh_axis: ParallelType
    axis: int  #: the outermost of them
    reason: str


@dataclass(frozen=True, repr=False)
class Sharding:
    """How a tensor is divided over a mesh.

    Made by ``from_placements``, by ``from_partition_spec``, or from the results of a program, by
    ``fd.fec.get_output_shardings()``; put on a tensor by ``TensorView.set_sharding``. Two are equal
    where mesh and divisions are.

    Attributes:
        mesh: The devices; None where a partition spec, which names no devices, was given no mesh.
        axes: Pairs of a tensor axis and its layout (``meshfuse.axis_layout``), of divided axes.
        partial: Pairs of a mesh axis and the reduction that its devices' values still lack.
        ndim: Number of axes that the sharding speaks of, if it says so.
    """

    mesh: DeviceMesh | None = None
    axes: tuple[tuple[int, Layout], ...] = ()
    partial: tuple[tuple[ParallelType, str], ...] = ()
    ndim: int | None = field(default=None, compare=False)
    obstacles: tuple[Obstacle, ...] = ()

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """Return the tensor axis that is divided over the mesh axis, -1 when replicated.

        Raises:
            meshfuse.Error: that is not a mesh axis, or the axis was counted from the end.
        """
        if parallel_type not in MESH_AXES:
            raise Error(
                f"axis_sharded_on: {parallel_type} is not a mesh axis. Ask for "
                "ParallelType.mesh_x, mesh_y or mesh_z."
            )
        found = [axis for axis, layout in self.axes if parallel_type in layout]
        found += [o.axis for o in self.obstacles if o.mesh_axis == parallel_type]
        return self._counted(found[0], "axis_sharded_on") if found else -1

    def placements(self, shape: Sequence[int] | None = None) -> tuple[Placement, ...]:
        """Return the placements of a DTensor, one per mesh dim.

        Args:
            shape: Global sizes. Needed where single elements go to the devices in turn, and the
                tensor has no declared size.

        Raises:
            meshfuse.Error: there is no mesh, or placements cannot express it; it says which axis.

        Example:
            >>> import meshfuse
            >>> mesh = meshfuse.DeviceMesh(range(2))
            >>> meshfuse.from_partition_spec("None, x", mesh=mesh).placements()
            (Shard(dim=1),)
        """
        if self.mesh is None:
            raise Error(
                "placements: the sharding has no mesh, so the number of placements is not known. "
                "Give one: from_partition_spec(spec, mesh=...)."
            )
        self.check_expressible("placements")
        return write_placements(dict(self.axes), dict(self.partial), self.mesh, shape)

    def to_partition_spec(self) -> str:
        """Return the partition spec: an entry per tensor axis, as in ``"x, None"``.

        Mesh axes have the names that the mesh gives them, else x, y and z. ``("x", "y")`` is
        written ``(x, y)``: over x first.

        Raises:
            meshfuse.Error: a partition spec cannot express it; it says which part.
        """
        self.check_expressible("to_partition_spec")
        for mesh_axis, op in self.partial:
            raise Error(
                f"to_partition_spec: the tensor is partial ({op}) on {mesh_axis.name}, which a "
                "partition spec cannot express. Reduce it first, or use placements()."
            )
        entries = self._entries("to_partition_spec", "a partition spec")
        return write_spec(entries, self.mesh)

    def to_shardy(self, ndim: int | None = None) -> str:
        """Return the sharding in the text form of OpenXLA's Shardy, on a mesh called ``@mesh``.

        Mesh axes have the names that the mesh gives them, else x, y and z. Sums that are still to
        be made over a mesh axis stand behind ``unreduced=``.

        Args:
            ndim: Number of axes of the tensor, which Shardy lists all. None: those that the
                sharding speaks of.

        Raises:
            meshfuse.Error: Shardy cannot express it, or a tensor with ``ndim`` axes cannot be
                divided so; it says which part.
            TypeError: ``ndim`` is not a number.

        Example:
            >>> import meshfuse
            >>> meshfuse.from_partition_spec("x, None").to_shardy()
            '#sdy.sharding<@mesh, [{"x"}, {}]>'
        """
        if ndim is not None and not isinstance(ndim, int):
            raise TypeError(
                f"to_shardy: ndim is the number of axes of the tensor, but got {ndim!r}, of type "
                f"{type(ndim).__name__}"
            )
        self.check_expressible("to_shardy")
        for mesh_axis, op in self.partial:
            if op != "sum":
                raise Error(
                    f"to_shardy: the tensor is partial ({op}) on {mesh_axis.name}, but Shardy has "
                    "sums alone. Reduce it first, or use placements()."
                )
        entries = self._entries("to_shardy", "Shardy", ndim)
        return write_shardy(entries, [axis for axis, _ in self.partial], self.mesh)

    def __repr__(self) -> str:
        """Name the divided axes with their factors, the outermost first."""
        parts = [] if self.mesh is None else [repr(self.mesh)]
        for axis, layout in self.axes:
            words = ", ".join(
                f.name if isinstance(f, ParallelType) else "rest" if f is REST else str(f)
                for f in layout
            )
            parts.append(f"axis {axis}: [{words}]")
        parts += [f"{axis.name}: partial {op}" for axis, op in self.partial]
        parts += [f"{o.mesh_axis.name} {o.reason}" for o in self.obstacles]
        return f"Sharding({', '.join(parts)})"

    def check_expressible(self, caller: str) -> None:
        """Raise where a mesh axis divides merged axes."""
        for obstacle in self.obstacles:
            raise Error(f"{caller}: {obstacle.mesh_axis.name} {obstacle.reason}")

    def layouts_from_front(self, ndim: int, caller: str, tensor: str) -> dict[int, Layout]:
        """Return the layouts of a tensor with ``ndim`` axes, by axes counted from the front.

        Raises:
            meshfuse.Error: the tensor has less axes, or two are the same.
        """
        if self.ndim is not None and self.ndim > ndim:
            raise Error(
                f"{caller}: the sharding speaks of {self.ndim} axes, but {tensor} has {ndim}. "
                "Give one entry per axis."
            )
        result: dict[int, Layout] = {}
        for axis, layout in self.axes:
            if not -ndim <= axis < ndim:
                raise Error(
                    f"{caller}: the sharding divides axis {axis}, but {tensor} has {ndim} axes. "
                    f"Use one from {-ndim} to {ndim - 1}."
                    if ndim > 0
                    else f"{caller}: the sharding divides axis {axis}, but {tensor} has no axes. "
                    "Replicate it."
                )
            if axis % ndim in result:
                raise Error(
                    f"{caller}: axes {axis % ndim - ndim} and {axis % ndim} of {tensor}, which "
                    f"has {ndim} axes, are the same. Count both from the front."
                )
            result[axis % ndim] = layout
        return result

    def _entries(
        self, caller: str, form: str, ndim: int | None = None
    ) -> list[tuple[ParallelType, ...]]:
        """Return for each tensor axis the mesh axes that cut it into blocks, outermost first."""
        for axis, layout in self.axes:
            if layout[-1] is not REST or any(isinstance(f, int) for f in layout):
                raise Error(
                    f"{caller}: devices hold several pieces of axis {axis}, which {form} cannot "
                    "express. Divide it in blocks, or use placements()."
                )
        if ndim is None:
            layouts = {self._counted(axis, caller): layout for axis, layout in self.axes}
            ndim = max([self.ndim or 0, *(axis + 1 for axis in layouts)])
        else:
            if not 0 <= ndim <= MAX_AXES:
                raise Error(
                    f"{caller}: ndim is {ndim}, but a tensor has from 0 to {MAX_AXES} axes. Give "
                    "the number of axes of the tensor."
                )
            layouts = self.layouts_from_front(ndim, caller, "the tensor")
        return [tuple(devices_of(layouts.get(axis, (REST,)))) for axis in range(ndim)]

    def _counted(self, axis: int, caller: str) -> int:
        if axis >= 0:
            return axis
        raise Error(
            f"{caller}: axis {axis} is counted from the end, of a tensor whose number of axes is "
            "not known. Count it from the front."
        )


def make_sharding(
    mesh: DeviceMesh | None,
    layouts: Mapping[int, Layout],
    partial: Mapping[ParallelType, str] | None = None,
    ndim: int | None = None,
    obstacles: Iterable[Obstacle] = (),
) -> Sharding:
    """Return a sharding whose parts are in a fixed order."""
    kept = {axis: layout for axis, layout in layouts.items() if devices_of(layout)}
    reductions = partial or {}
    return Sharding(
        mesh,
        tuple(sorted(kept.items(), key=lambda item: item[0])),
        tuple((axis, reductions[axis]) for axis in MESH_AXES if axis in reductions),
        ndim,
        tuple(obstacles),
    )


def from_placements(placements: Iterable[Placement], device_mesh: Any) -> Sharding:
    """Return the sharding that the placements of a DTensor describe.

    The last dim of the mesh is ``mesh_x``. A tensor axis with ``Shard`` on several mesh dims is cut
    by the first, and its parts by the next; ``_StridedShard`` puts a cut within another one.
    Negative axes are counted when the sharding is put on a tensor.

    Args:
        placements: One per mesh dim: Shard, _StridedShard, Replicate or Partial.
        device_mesh: A mesh of ``torch.distributed``, whose devices are global ranks, or a
            ``meshfuse.DeviceMesh``.

    Raises:
        meshfuse.Error: a placement cannot be expressed; it says which one.
        TypeError: ``device_mesh`` is not a mesh, or ``placements`` no list.

    Example:
        >>> import meshfuse, torch
        >>> from torch.distributed.tensor import Replicate, Shard
        >>> mesh = meshfuse.DeviceMesh(torch.arange(4).reshape(2, 2))
        >>> sharding = meshfuse.from_placements([Shard(0), Replicate()], mesh)
        >>> sharding.axis_sharded_on(meshfuse.ParallelType.mesh_y), sharding.to_partition_spec()
        (0, 'y')
    """
    return placed(placements, device_mesh, None)


def placed(placements: Iterable[Placement], device_mesh: Any, ndim: int | None) -> Sharding:
    """Return the sharding that placements describe, of a tensor with ``ndim`` axes if it is known.

    Raises:
        meshfuse.Error: a placement cannot be expressed, or names an axis that does not exist.
    """
    mesh = mesh_of(device_mesh)
    if not isinstance(placements, Iterable):
        raise TypeError(
            "from_placements: expected a list of placements, one per mesh dim, such as "
            f"[Shard(0), Replicate()], but got {placements!r}"
        )
    given = tuple(placements)
    if any(getattr(type(placement), "__hash__", None) is None for placement in given):
        return _placed.__wrapped__(given, mesh, mesh.names, ndim)  # which refuses them by name
    return _placed(given, mesh, mesh.names, ndim)


@functools.lru_cache(maxsize=256)  # programs are executed again and again
def _placed(
    placements: tuple[Placement, ...], mesh: DeviceMesh, names: tuple[str, ...], ndim: int | None
) -> Sharding:
    """As ``placed``; meshes that differ in their names alone are equal, hence the names."""
    layouts, partial = read_placements(placements, mesh, ndim)
    return make_sharding(mesh, layouts, partial, ndim)


def from_partition_spec(spec: str | Spec, mesh: Any = None) -> Sharding:
    """Return the sharding that a partition spec describes.

    A spec has an entry per tensor axis: None, a mesh axis, or a tuple of mesh axes, of which the
    first cuts the axis and the next its parts. Axes beyond the spec are not divided. ``P(...)`` and
    ``PartitionSpec(...)`` around the entries may be there or not.

    Args:
        spec: The text, such as ``"x, None"``, or the entries.
        mesh: Of meshfuse or of ``torch.distributed``. Its axes are called as it names them, and x
            (its last), y and z. Without one, ``set_sharding`` takes the mesh of the tensor, or the
            only one of the definition.

    Raises:
        meshfuse.Error: it is not a spec; a name is unknown, or occurs twice.
        TypeError: ``spec`` is neither text nor a list, or ``mesh`` is not a mesh.

    Example:
        >>> import meshfuse
        >>> meshfuse.from_partition_spec('P(("x", "y"), None)').to_partition_spec()
        '(x, y), None'
    """
    own = None if mesh is None else mesh_of(mesh, "from_partition_spec")
    entries = read_spec(spec, own)
    check_axes(len(entries), "from_partition_spec")
    layouts: dict[int, Layout] = {k: (*axes, REST) for k, axes in enumerate(entries) if axes}
    return make_sharding(own, layouts, ndim=len(entries))


def from_shardy(text: str, mesh: Any = None) -> Sharding:
    """Return the sharding that OpenXLA's Shardy writes as ``#sdy.sharding<@mesh, [{"x"}, {}]>``.

    Args:
        text: The sharding; the line ``sdy.mesh @mesh = <["x"=2, "y"=4]>`` may stand before it.
        mesh: That line, or a mesh of meshfuse or of ``torch.distributed``. Its axes are called as
            it names them, and x (its last), y and z. Without one, ``set_sharding`` takes the mesh
            of the tensor, or the only one of the definition.

    Raises:
        meshfuse.Error: it is not Shardy's syntax; a name is unknown, or occurs twice; it has parts
            of mesh axes, open axes or priorities.
        TypeError: ``text`` is not a string, or ``mesh`` is not a mesh.

    Example:
        >>> import meshfuse
        >>> mesh = 'sdy.mesh @mesh = <["data"=2, "model"=4]>'
        >>> sharding = meshfuse.from_shardy('#sdy.sharding<@mesh, [{"model"}, {}]>', mesh)
        >>> sharding.mesh.shape, sharding.to_partition_spec()
        ((2, 4), 'model, None')
    """
    if not isinstance(text, str):
        raise TypeError(
            """from_shardy: expected a text such as '#sdy.sharding<@mesh, [{"x"}, {}]>', but got """
            f"{type(text).__name__}"
        )
    said = read_shardy(text)
    check_axes(len(said.axes), "from_shardy")
    if isinstance(mesh, str):
        own: DeviceMesh | None = read_mesh(mesh)
    else:
        own = None if mesh is None else mesh_of(mesh, "from_shardy")
    if own is not None and said.mesh is not None and write_mesh(own) != write_mesh(said.mesh):
        raise Error(
            f"from_shardy: the text describes {write_mesh(said.mesh)}, but mesh= is "
            f"{write_mesh(own)}. Give one of them."
        )
    own = said.mesh if own is None else own
    known = axis_names(own)
    listed = [*(name for axis in said.axes for name in axis), *said.replicated, *said.unreduced]
    for name in listed:
        if name not in known:
            words = ", ".join(repr(n) for n in known if not n.startswith("mesh_"))
            on = "Without a mesh they are called" if own is None else f"{own!r} has"
            raise Error(f"from_shardy: '{cut(name)}' is not a mesh axis. {on} {words}.")
    used = [known[name] for name in listed]
    for name in listed:
        if used.count(known[name]) > 1:
            raise Error(
                f"from_shardy: {known[name].name} ('{name}') occurs more than once in "
                f"'{cut(text.strip())}'. A mesh axis divides one axis of a tensor, or is "
                "replicated or unreduced; name it once."
            )
    layouts: dict[int, Layout] = {
        k: (*(known[name] for name in names), REST) for k, names in enumerate(said.axes) if names
    }
    partial = dict.fromkeys((known[name] for name in said.unreduced), "sum")
    return make_sharding(own, layouts, partial, ndim=len(said.axes))


def mesh_text(mesh: DeviceMesh) -> str:
    """Return a mesh with the names of its axes, for messages."""
    names = ", ".join(
        f"{axis.name}={size}" for axis, size in zip(mesh_axes(mesh), mesh.shape, strict=True)
    )
    return f"{mesh!r} ({names})"
