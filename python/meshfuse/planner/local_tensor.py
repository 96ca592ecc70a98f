# SPDX-License-Identifier: BSD-3-Clause
"""What one device holds of a tensor, read from its text form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from .._C import Error
from ..program_text import MESH_AXES, Axis, Tensor, Transform
from ..remesh import mesh_devices, mesh_shape

__all__ = ["ITEM_BITS", "LocalTensor", "local_tensor", "size_value"]

ITEM_BITS = {
    **dict.fromkeys(("f64", "i64", "u64", "index", "c64"), 64),
    **dict.fromkeys(("f32", "i32"), 32),
    **dict.fromkeys(("f16", "bf16"), 16),
    **dict.fromkeys(("bool", "f8e4m3fn", "f8e5m2", "f8e8m0fnu", "f4e2m1fnx2"), 8),
    "c128": 128,
    "f4e2m1fn": 4,
}
#: Where a mesh axis divides a tensor: a tensor axis with the splits that lead there, or "partial".
Place = tuple[int | str, tuple[str, ...]]


@dataclass(frozen=True)
class LocalTensor:
    """One device's part of a tensor; of an uneven division the largest part.

    Attributes:
        dtype: As the text form names it.
        sizes: Of its axes, reductions left out; 1 for one that repeats a single element.
        shown: The same, as operations see them: with what is repeated.
        reduced: Elements of the reductions that made it.
        mesh: Its mesh as text; None without one.
        places: For each mesh axis that divides it, where; mesh axes of one device are left out.
        sums_over: Mesh axes over which its reduction runs.
    """

    dtype: str
    sizes: tuple[int, ...]
    shown: tuple[int, ...]
    reduced: int
    mesh: str | None
    places: Mapping[str, Place]
    sums_over: tuple[str, ...] = ()

    @cached_property
    def elements(self) -> int:
        """Number of elements in memory."""
        return math.prod(self.sizes)

    @cached_property
    def work(self) -> int:
        """Number of elements that were combined to make it."""
        return math.prod(self.shown) * self.reduced

    @cached_property
    def bytes(self) -> int:
        """Bytes in memory."""
        return -(-self.elements * ITEM_BITS[self.dtype] // 8)

    def place(self, mesh_axis: str) -> int | str | None:
        """Return the tensor axis that a mesh axis divides, "partial", or None."""
        found = self.places.get(mesh_axis)
        return None if found is None else found[0]


_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "ceilDiv": lambda a, b: -(-a // b),
    "floorDiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def size_value(text: str, sizes: Mapping[str, int]) -> int:
    """Return the number that an extent of the text form stands for.

    Raises:
        meshfuse.Error: it depends on a size that ``sizes`` does not give.
    """
    text = text.strip()
    if text.isdigit() or (text[:1] == "-" and text[1:].isdigit()):
        return int(text)
    if text in sizes:
        return sizes[text]
    if text.startswith("(") and text.endswith(")"):
        return size_value(text[1:-1], sizes)
    name, bracket, rest = text.partition("(")
    if bracket and name in _FUNCTIONS:
        left, right = _arguments(rest[:-1])
        return _FUNCTIONS[name](size_value(left, sizes), size_value(right, sizes))
    if bracket and name == "cast":
        return size_value(_arguments(rest[:-1])[0], sizes)
    number = text.partition(":")[0]
    if number.isdigit():
        return int(number)
    raise Error(
        f"plan_costs: time and memory depend on the size {text}, which the program leaves open. "
        "Pass sizes={'T0': (4, 8)}, global sizes of an input, or sizes={'T0.0': 4}."
    )


def _arguments(text: str) -> list[str]:
    depth, start, parts = 0, 0, []
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def local_tensor(tensor: Tensor, sizes: Mapping[str, int]) -> LocalTensor:
    """Return one device's part of a tensor, with these values of open sizes."""
    axes = {axis.ref: axis for axis in tensor.root}
    made_of: dict[str, tuple[str, ...]] = {axis.ref: (axis.ref,) for axis in tensor.root}
    paths: dict[str, tuple[str, ...]] = {axis.ref: () for axis in tensor.root}
    leaves = dict.fromkeys(axes)
    for item in tensor.items:
        if isinstance(item, Transform):
            count = 2 if item.words[0] == "merge" else 1
            sources = item.words[1 : 1 + count]
            if any(source not in leaves for source in sources):
                continue  # made for the allocation alone
            for source in sources:
                del leaves[source]
            for i, axis in enumerate(item.made):
                step = f"{' '.join(item.words[:1] + item.words[1 + count :])} {i}"
                axes[axis.ref], leaves[axis.ref] = axis, None
                made_of[axis.ref] = tuple(ref for s in sources for ref in made_of[s])
                paths[axis.ref] = (*(word for s in sources for word in paths[s]), step)
        elif item.startswith("logical"):
            listed = item.split()[1:]
            made_of |= {ref: (ref,) for ref in listed}
            paths |= dict.fromkeys(listed, ())
    return _summed_up(tensor, [axes[ref] for ref in leaves], made_of, paths, sizes)


def _summed_up(
    tensor: Tensor,
    leaves: list[Axis],
    made_of: dict[str, tuple[str, ...]],
    paths: dict[str, tuple[str, ...]],
    sizes: Mapping[str, int],
) -> LocalTensor:
    on_mesh = _mesh_sizes(tensor.mesh)
    logical = tensor.logical()
    kept = [axis for axis in logical if axis.kind != "r"]
    position = {axis.ref: i for i, axis in enumerate(kept)}
    is_partial = {axis.ref for axis in kept if axis.parallel and _is_piece(tensor, axis)}
    stored, shown = [1] * len(kept), [1] * len(kept)
    reduced = 1
    places: dict[str, Place] = {}
    sums_over = []
    for leaf in leaves:
        extent = size_value(leaf.extent, sizes)
        owner = position.get(made_of[leaf.ref][0])
        if leaf.parallel in on_mesh:
            if on_mesh[leaf.parallel] == 1:
                continue
            if leaf.kind == "r":
                sums_over.append(leaf.parallel)
            elif leaf.ref in is_partial:
                places[leaf.parallel] = ("partial", ())
            else:
                merged = "merge" if len(made_of[leaf.ref]) > 1 else ""
                places[leaf.parallel] = (owner or 0, (merged, *paths[leaf.ref]))
        elif leaf.kind == "r" or owner is None:
            reduced *= extent
        else:
            stored[owner] *= extent
            seen = leaf.expanded if leaf.expanded is not None else leaf.extent
            shown[owner] *= size_value(seen, sizes)
    for i, axis in enumerate(kept):  # pieces of what a split does not divide evenly
        stored[i] = min(stored[i], size_value(axis.extent, sizes))
        shown[i] = min(shown[i], size_value(axis.size, sizes))
    return LocalTensor(
        tensor.dtype,
        tuple(stored),
        tuple(shown),
        reduced,
        tensor.mesh,
        places,
        tuple(sorted(sums_over)),
    )


def _is_piece(tensor: Tensor, axis: Axis) -> bool:
    """Whether an axis on the mesh is a piece of a reduction that an rfactor has left."""
    if axis.product:
        return True
    for item in tensor.items:
        if isinstance(item, Transform) and any(made.ref == axis.ref for made in item.made):
            return item.words[1].startswith("r")
    return False


def _mesh_sizes(mesh: str | None) -> dict[str, int]:
    if mesh is None:
        return {}
    return dict(zip(MESH_AXES, reversed(mesh_shape(mesh)), strict=False))


def mesh_teams(mesh: str, mesh_axis: str) -> list[list[int]]:
    """Return the devices of a mesh that differ along one mesh axis alone."""
    shape, devices = mesh_shape(mesh), mesh_devices(mesh)
    inner = math.prod(shape[len(shape) - MESH_AXES.index(mesh_axis) :])
    count = shape[len(shape) - 1 - MESH_AXES.index(mesh_axis)]
    starts = [i for i in range(len(devices)) if i // inner % count == 0]
    return [[devices[start + k * inner] for k in range(count)] for start in starts]
