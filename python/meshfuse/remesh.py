# SPDX-License-Identifier: BSD-3-Clause
"""Carries the annotations of a program over to a mesh of another size."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from ._C import DeviceMesh, Error
from .program_text import (
    MESH_AXES,
    STRING,
    Axis,
    Program,
    Statement,
    Tensor,
    Transform,
    quoted,
    without_strings,
)


def remesh(program: Program, mesh: DeviceMesh, caller: str = "check") -> Program:
    """Return the program on ``mesh``: every split for a mesh axis is made with its new size.

    Args:
        program: The program.
        mesh: The mesh.
        caller: Function that was called; messages begin with it.

    Raises:
        meshfuse.Error: the program has several meshes, ``mesh`` lacks a mesh axis that a tensor is
            on, or an axis cannot be divided by the new size.
    """
    meshes = program.meshes()
    if len(meshes) > 1:
        raise Error(
            f"{caller}: the program has {len(meshes)} meshes ({'; '.join(meshes)}), and a mesh "
            "that is given replaces a single one. Leave mesh out, to keep its own meshes."
        )
    text = mesh_text(mesh, meshes[0] if meshes else None)
    sizes = dict(zip(MESH_AXES, reversed(mesh.shape), strict=False))
    old = program.tensors()
    done: dict[str, Tensor] = {}
    statements = []
    for statement in program.statements:
        tensors = []
        for name, tensor in zip(statement.names, statement.tensors, strict=False):
            root = _root(old, done, statement, name, tensor, caller)
            moved = replace(tensor, root=root, mesh=text if tensor.mesh else None)
            done[name] = _resized(name, moved, sizes, mesh, caller) if tensor.mesh else moved
            tensors.append(done[name])
        statements.append(replace(statement, tensors=tuple(tensors)))
    return replace(program, statements=tuple(statements))


def mesh_text(mesh: DeviceMesh, like: str | None = None) -> str:
    """Return a mesh in text form, with the names of ``like`` where it has as many axes."""
    names = [f" {quoted(name)}" if name else "" for name in mesh.names]
    old = re.findall(rf"[xyz]=\d+( {STRING})?", like or "")
    if not any(names):
        names = old if len(old) == len(mesh.shape) else [""] * len(mesh.shape)
    letters = reversed(MESH_AXES[: len(mesh.shape)])
    axes = [f"{x}={n}{name}" for x, n, name in zip(letters, mesh.shape, names, strict=True)]
    devices = list(mesh.devices)
    listed = "" if devices == list(range(len(devices))) else f": {' '.join(map(str, devices))}"
    return f"mesh({', '.join(axes)}{listed})"


def mesh_shape(mesh: str) -> tuple[int, ...]:
    """Return the sizes of the mesh axes of a mesh in text form, outermost first."""
    return tuple(int(n) for n in re.findall(r"[xyz]=(\d+)", without_strings(mesh)))


def mesh_devices(mesh: str) -> list[int]:
    """Return the devices of a mesh in text form."""
    listed = re.search(r": ([\d ]+)\)", without_strings(mesh))
    return [int(n) for n in listed[1].split()] if listed else [*range(math.prod(mesh_shape(mesh)))]


def ceil_div(extent: str, factor: int) -> str:
    """Return the extent ``ceilDiv(extent, factor)`` as text."""
    if factor == 1:
        return extent
    if extent.isdigit():
        return str(-(-int(extent) // factor))
    inside = extent[1:-1] if extent.startswith("(") else extent
    return f"(ceilDiv({inside}, {factor}))"


def _root(
    old: dict[str, Tensor],
    done: dict[str, Tensor],
    statement: Statement,
    name: str,
    tensor: Tensor,
    caller: str,
) -> tuple[Axis, ...]:
    """Return the root axes; those that read axes made by an rfactor may have other extents."""
    resized = [n for n in statement.mentions() if n in done and _shape_differs(old[n], done[n])]
    if statement.call is None or not resized:
        return tensor.root
    (source,) = resized if len(resized) == 1 else (None,)
    read = [] if source is None else [a for a in done[source].logical() if a.kind != "r"]
    if statement.op != "sum" or len(read) > len(tensor.root):
        raise Error(
            f"{caller}: the sizes of {name} = {statement.call} depend on the size of a mesh axis "
            f"by an rfactor of {' and '.join(resized)}, and only a sum over it can be carried over "
            "to another mesh. Use a program without that operation."
        )
    extents = [axis.extent for axis in read] + [axis.extent for axis in tensor.root[len(read) :]]
    return tuple(replace(a, extent=e) for a, e in zip(tensor.root, extents, strict=True))


def _shape_differs(old: Tensor, new: Tensor) -> bool:
    return old.item("logical") is not None and old.shape() != new.shape()


def _resized(
    name: str, tensor: Tensor, sizes: dict[str, int], mesh: DeviceMesh, caller: str
) -> Tensor:
    known: dict[str, Axis] = {}
    position = {axis.ref: i for i, axis in enumerate(tensor.root)}  # what an axis was made of

    def keep(axis: Axis, whole: bool) -> Axis:
        if axis.parallel in MESH_AXES:
            if axis.parallel not in sizes:
                raise Error(
                    f"{caller}: {name} is on mesh_{axis.parallel}, which {mesh} lacks. Give a mesh "
                    f"of at least {MESH_AXES.index(axis.parallel) + 1} axes."
                )
            size = sizes[axis.parallel]
            if whole and axis.kind != "b" and axis.extent.isdigit() and int(axis.extent) != size:
                raise Error(
                    f"{caller}: axis {position[axis.ref]} of {name} (size {axis.extent}) is on "
                    f"mesh_{axis.parallel} as a whole, but that has size {size} in {mesh}. Split "
                    "the axis and put a half of it there, or give a mesh of that size."
                )
        known[axis.ref] = axis
        return axis

    root = tuple(keep(axis, True) for axis in tensor.root)
    items: list[Transform | str] = []
    for item in tensor.items:
        if isinstance(item, Transform):
            whole = item.words[0] == "merge"
            of = position[item.words[1]]
            position.update((axis.ref, of) for axis in item.made)
            what = f"{caller}: axis {of} of {name}"
            item = _merge(item, known) if whole else _split(what, item, known, sizes, mesh)
            item = replace(item, made=tuple(keep(axis, whole) for axis in item.made))
        items.append(item)
    return replace(tensor, root=root, items=tuple(items))


def _merge(item: Transform, known: dict[str, Axis]) -> Transform:
    outer, inner = (known[ref].extent for ref in item.words[1:3])
    if outer.isdigit() and inner.isdigit():
        return replace(item, made=(replace(item.made[0], extent=str(int(outer) * int(inner))),))
    bare = [extent.removeprefix("(").removesuffix(")") for extent in (outer, inner)]
    extent = inner if outer == "1" else outer if inner == "1" else f"(mul({bare[0]}, {bare[1]}))"
    return replace(item, made=(replace(item.made[0], extent=extent),))


def _split(
    what: str, item: Transform, known: dict[str, Axis], sizes: dict[str, int], mesh: DeviceMesh
) -> Transform:
    _, ref, side, factor = item.words
    source, outer, inner = known[ref], *item.made
    for half, half_side in ((outer, "outer"), (inner, "inner")):
        if half.parallel in sizes:
            side, factor = half_side, str(sizes[half.parallel])
    if not factor.isdigit():
        return item
    count = int(factor)
    size = source.size
    if size.isdigit() and int(size) % count and source.kind != "b":
        raise Error(
            f"{what}, of which {size} elements are to be split, cannot be divided by "
            f"{count} for {mesh}. Give a mesh whose axes divide it, or a size that is symbolic."
        )
    rest = ceil_div(source.extent, count)
    expanded = None if source.expanded is None else ceil_div(source.expanded, count)
    if side == "outer":
        made = (replace(outer, extent=factor), replace(inner, extent=rest, expanded=expanded))
    else:
        made = (replace(outer, extent=rest, expanded=expanded), replace(inner, extent=factor))
    return Transform(made, ("split", ref, side, factor))
