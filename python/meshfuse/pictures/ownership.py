# SPDX-License-Identifier: BSD-3-Clause
"""Which device holds which elements of a tensor, and in which order they lie in its memory.

Read from the text form of a program (``fd.compiled_ir()``), with all its splits and merges.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..program_text import MESH_AXES, Tensor, Transform, split_outside

#: A logical index without reductions.
Index = tuple[int, ...]


@dataclass(frozen=True)
class MeshShape:
    """A mesh as the text form writes it; axes are named x, y, z, the outermost first."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    names: tuple[str | None, ...]
    devices: tuple[int, ...]

    @classmethod
    @functools.lru_cache(maxsize=8)  # programs have few meshes, each on many tensors
    def parse(cls, text: str) -> MeshShape:
        """Read ``mesh(y=2 "data", x=2 "model": 4 5 6 7)``."""
        axes, *listed = split_outside(text.removeprefix("mesh(").removesuffix(")"), ":")
        parts = [re.fullmatch(r'([xyz])=(\d+)(?: "(.*)")?', p) for p in split_outside(axes, ",")]
        found = [part for part in parts if part is not None]
        sizes = tuple(int(part[2]) for part in found)
        count = math.prod(sizes)
        devices = tuple(map(int, listed[0].split())) if listed else tuple(range(count))
        letters, names = tuple(part[1] for part in found), tuple(part[3] for part in found)
        return cls(letters, sizes, names, devices)

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def coordinates(self, device: int) -> dict[str, int]:
        """Return the place of a device along each mesh axis."""
        place, result = self._position[device], {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            place, result[axis] = divmod(place, size)
        return result

    @functools.cached_property
    def _position(self) -> dict[int, int]:
        return {device: position for position, device in enumerate(self.devices)}

    def at(self, places: Mapping[str, int]) -> Iterator[int]:
        """Yield the devices with these places along mesh axes; any along the others.

        An axis that is shorter than its place has none.
        """
        ranges = []
        for axis, size in zip(self.axes, self.sizes, strict=True):
            place = places.get(axis)
            inside = place is None or 0 <= place < size
            ranges.append(range(size) if place is None else range(place, place + inside))
        for values in product(ranges):
            position = 0
            for value, size in zip(values, self.sizes, strict=True):
                position = position * size + value
            yield self.devices[position]


@dataclass(frozen=True)
class Block:
    """Elements that lie together in memory; ``at(k)`` is the place of the k-th."""

    count: int
    at: Callable[[int], Index]


class Ownership:
    """How the elements of one tensor are divided over the devices of its mesh.

    Axes are known by their names in the text form, ``i2``.
    """

    def __init__(self, tensor: Tensor, extent: Callable[[str], int]) -> None:
        """Read a tensor of a compiled program; ``extent`` gives the value of a size's text."""
        self.axes = tensor.axes()
        self.mesh = MeshShape.parse(tensor.mesh) if tensor.mesh else MeshShape((), (), (), (0,))
        self.extent = {ref: extent(axis.size) for ref, axis in self.axes.items()}
        self.root = [axis.ref for axis in tensor.root]
        self.transforms = [item for item in tensor.items if isinstance(item, Transform)]
        made_logical = _before_logical(tensor)
        self.definition, self.schedule = (
            self.transforms[:made_logical],
            self.transforms[made_logical:],
        )
        self.logical = [axis.ref for axis in tensor.logical()]
        self.loop = tensor.item("loop") or _default_loop(self.logical, self.schedule)
        self.allocation = self._allocation(tensor.item("alloc"))
        #: the tensor's axes as torch has them
        self.dims = [ref for ref in self.logical if self.axes[ref].kind != "r"]
        self.shape = tuple(self.extent[ref] for ref in self.dims)
        self.on_mesh = self._device_axes()

    def _allocation(self, words: list[str] | None) -> list[str]:
        listed = list(itertools.takewhile(lambda word: word != "contig", words or []))
        return self.loop if listed == ["loop"] else listed or self.logical

    def _device_axes(self) -> dict[str, str]:
        """Return the axis on each mesh axis; a broadcast is whole on every device."""
        return {
            axis.parallel: ref
            for ref in self.loop
            if (axis := self.axes[ref]).parallel in MESH_AXES and axis.kind not in "rb"
        }

    def divided(self) -> dict[str, int]:
        """Return for each mesh axis the dim that it divides; of merged ones the first."""
        found = {}
        for axis, ref in self.on_mesh.items():
            sources = {ref}
            for transform in reversed(self.schedule):
                if any(made.ref in sources for made in transform.made):
                    merge = transform.words[0] == "merge"
                    sources.update(transform.words[1:3] if merge else transform.words[1:2])
            dims = [k for k, dim in enumerate(self.dims) if dim in sources]
            if dims:
                found[axis] = dims[0]
        return found

    @property
    def partial(self) -> dict[int, str]:
        """Dims that tell the terms of a sum over a mesh axis apart: dim to mesh axis.

        Every device holds one term for each element of the other dims.
        """
        reduced = {ref for ref in self.root if self.axes[ref].kind == "r"}
        for transform in self.definition:
            if transform.words[1] in reduced:
                reduced.update(axis.ref for axis in transform.made)
        return {
            k: str(self.axes[ref].parallel)
            for k, ref in enumerate(self.dims)
            if (ref in reduced or self.axes[ref].product) and ref in self.on_mesh.values()
        }

    def places(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the places along mesh axes that values of some logical axes decide."""
        known = dict(values)
        for transform in self.schedule:
            operands = (
                transform.words[1:3] if transform.words[0] == "merge" else [transform.words[1]]
            )
            if any(ref not in known for ref in operands):
                continue
            if transform.words[0] == "split":
                inner = max(self.extent[transform.made[1].ref], 1)
                outer_ref, inner_ref = (axis.ref for axis in transform.made)
                known[outer_ref], known[inner_ref] = divmod(known[operands[0]], inner)
            else:
                a, b = operands
                known[transform.made[0].ref] = known[a] * self.extent[b] + known[b]
        return {axis: known[ref] for axis, ref in self.on_mesh.items() if ref in known}

    def owners(self, index: Index) -> list[int]:
        """Return the devices that hold an element."""
        places = self.places(dict(zip(self.dims, index, strict=True)))
        return self.devices_at(places)

    def devices_at(self, places: Mapping[str, int]) -> list[int]:
        """Return the devices with these places along mesh axes; any along the others."""
        return list(self.mesh.at(places))

    def memory(self, device: int) -> Iterator[Index]:
        """Yield the elements of a device, in the order of its memory."""
        for block in self.memory_blocks(device, ()):
            yield block.at(0)

    def memory_axes(self) -> list[str]:
        """Return the axes that a device's memory runs over, the outermost first."""
        return [
            ref
            for ref in self.allocation
            if self.axes[ref].kind not in "rb" and ref not in self.on_mesh.values()
        ]

    def memory_blocks(self, device: int, within: Sequence[str]) -> Iterator[Block]:
        """Yield what lies together, in the order of memory.

        Args:
            device: Of the mesh.
            within: The innermost axis of memory, for blocks that run over it; empty for elements.
        """
        own = self.mesh.coordinates(device)
        fixed = {ref: own[axis] for axis, ref in self.on_mesh.items()}
        outer = [ref for ref in self.memory_axes() if ref not in within]
        left = self.count(device)
        if left == 0:
            return
        for values in product([range(self.extent[ref]) for ref in outer]):
            known = fixed | dict(zip(outer, values, strict=True))
            if self._element(known | dict.fromkeys(within, 0)) is None:
                continue
            count = self._count_along(known, within[0]) if within else 1
            yield Block(count, functools.partial(self._element_along, known, within))
            left -= count
            if left <= 0:  # what follows is beyond the edge of an uneven division
                return

    def _element_along(self, known: Mapping[str, int], within: Sequence[str], k: int) -> Index:
        found = self._element({**known, **dict.fromkeys(within, k)})
        assert found is not None, "blocks end at the edge"
        return found

    def _count_along(self, known: Mapping[str, int], ref: str) -> int:
        """Return the number of elements along a memory axis.

        Uneven divisions leave the end of the axis open.
        """
        low, high = 0, self.extent[ref] - 1
        if self._element({**known, ref: high}) is not None:
            return high + 1
        while low < high:
            middle = (low + high + 1) // 2
            inside = self._element({**known, ref: middle}) is not None
            low, high = (middle, high) if inside else (low, middle - 1)
        return low + 1

    def _element(self, values: Mapping[str, int]) -> Index | None:
        """Return the logical index that memory axes and mesh axes say; None: beyond the edge."""
        known = dict(values)
        for transform in reversed(self.schedule):
            made = [axis.ref for axis in transform.made]
            if any(ref not in known for ref in made):
                continue
            if transform.words[0] == "split":
                source = transform.words[1]
                known[source] = known[made[0]] * self.extent[made[1]] + known[made[1]]
                if known[source] >= self.extent[source]:
                    return None
            else:
                a, b = transform.words[1:3]
                known[a], known[b] = divmod(known[made[0]], max(self.extent[b], 1))
        return tuple(known.get(ref, 0) for ref in self.dims)

    def count(self, device: int) -> int:
        """Return the number of elements that a device holds in memory."""
        uneven = [t for t in self.schedule if t.words[0] == "split" and self._is_uneven(t)]
        total = math.prod(self.extent[ref] for ref in self.memory_axes())
        own = self.mesh.coordinates(device)
        for split in uneven:
            source, (outer, inner) = split.words[1], (axis.ref for axis in split.made)
            held = self.extent[source]
            for axis, ref in self.on_mesh.items():
                if ref == outer:
                    left = self.extent[source] - own[axis] * self.extent[inner]
                    held = min(max(left, 0), self.extent[inner])
            if outer in self.on_mesh.values() and self.extent[inner]:
                total = total // self.extent[inner] * held
        return total

    def _is_uneven(self, split: Transform) -> bool:
        outer, inner = (self.extent[axis.ref] for axis in split.made)
        return outer * inner != self.extent[split.words[1]]


def product(ranges: Sequence[range]) -> Iterator[Index]:
    """Yield what ``itertools.product`` would, which lists all numbers of each range first."""
    if not all(ranges):
        return
    at = [0] * len(ranges)
    axis = 0
    while axis >= 0:
        yield tuple(line[k] for line, k in zip(ranges, at, strict=True))
        axis = len(ranges) - 1
        while axis >= 0 and at[axis] == len(ranges[axis]) - 1:
            at[axis] = 0
            axis -= 1
        if axis >= 0:
            at[axis] += 1


def _before_logical(tensor: Tensor) -> int:
    """Return how many transforms lead from root to logical axes."""
    count = 0
    for item in tensor.items:
        if isinstance(item, Transform):
            count += 1
        elif item.split()[0] == "logical":
            return count
    return 0


def _default_loop(logical: Sequence[str], schedule: Sequence[Transform]) -> list[str]:
    """Return the loop axes that transforms give where the text does not list them."""
    loop = list(logical)
    for transform in schedule:
        sources = transform.words[1:3] if transform.words[0] == "merge" else transform.words[1:2]
        if any(ref not in loop for ref in sources):
            continue
        at = loop.index(sources[0])
        for ref in sources[1:]:
            loop.remove(ref)
        at = loop.index(sources[0])
        loop[at : at + 1] = [axis.ref for axis in transform.made]
    return loop
