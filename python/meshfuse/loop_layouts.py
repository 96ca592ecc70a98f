# SPDX-License-Identifier: BSD-3-Clause
"""The layouts of tensor axes that follow from the splits and merges of the loop domain."""

from __future__ import annotations

from collections.abc import Sequence

from ._C import IterDomain, Merge, ParallelType
from .axis_layout import REST, Factor, Layout, simplified
from .sharding import Obstacle

_MERGED = "divides axes {axes} merged, not in whole pieces of one of them"
_UNKNOWN = "divides axis {axes}, which is split by a size that is not known yet"


def layouts_of(
    logical: Sequence[IterDomain], loop: Sequence[IterDomain]
) -> tuple[dict[int, Layout], list[Obstacle]]:
    """Return the layout of each logical axis, and mesh axes that no layout can express.

    Args:
        logical: The axes that layouts are for, by position.
        loop: All loop axes of the tensor.
    """
    transforms = _Transforms(loop)
    layouts: dict[int, Layout] = {}
    obstacles: dict[ParallelType, Obstacle] = {}
    for k, axis in enumerate(logical):
        if not transforms.is_merged(axis):
            _add(layouts, obstacles, k, [_factor(leaf) for leaf in transforms.leaves(axis)])
    for merged, pair in transforms.merges.items():
        leaves = transforms.leaves(merged)
        parts = _dealt(leaves, pair) if all(axis in logical for axis in pair) else None
        if parts is not None:
            for axis, part in zip(pair, parts, strict=True):
                _add(layouts, obstacles, logical.index(axis), part)
            continue
        origins = [k for k, axis in enumerate(logical) if transforms.leads_to(axis, merged)]
        text = _MERGED.format(axes=" and ".join(map(str, origins)))
        for axis in leaves:
            if axis.is_device_dim() and origins:  # none: it divides a reduction
                kind = axis.get_parallel_type()
                obstacles.setdefault(kind, Obstacle(kind, origins[0], text))
    return layouts, list(obstacles.values())


def _add(
    layouts: dict[int, Layout],
    obstacles: dict[ParallelType, Obstacle],
    axis: int,
    factors: Sequence[Factor],
) -> None:
    layout = simplified(factors)
    if layout.count(REST) == 1:
        layouts[axis] = layout
        return
    for factor in factors:
        if isinstance(factor, ParallelType):
            obstacles[factor] = Obstacle(factor, axis, _UNKNOWN.format(axes=axis))


class _Transforms:
    """The splits and merges between the logical and the loop axes of a tensor."""

    def __init__(self, loop: Sequence[IterDomain]) -> None:
        self._made: dict[IterDomain, list[IterDomain]] = {}
        self.merges: dict[IterDomain, list[IterDomain]] = {}  #: operands of merged axes
        pending = list(loop)
        while pending:
            definition = pending.pop().definition()
            if definition is None or definition.input(0) in self._made:
                continue
            inputs = definition.inputs()
            if isinstance(definition, Merge):
                self.merges[definition.output(0)] = inputs
            for axis in inputs:
                self._made[axis] = definition.outputs()
            pending.extend(inputs)

    def is_merged(self, axis: IterDomain) -> bool:
        """Whether an axis or a part of it is merged with another."""
        return any(self.leads_to(axis, merged) for merged in self.merges)

    def leads_to(self, axis: IterDomain, target: IterDomain) -> bool:
        """Whether ``target`` is made of an axis, or of a part of it."""
        return axis == target or any(self.leads_to(p, target) for p in self._made.get(axis, ()))

    def leaves(self, axis: IterDomain) -> list[IterDomain]:
        """Return the loop axes that an axis is split into, outer before inner."""
        parts = self._made.get(axis)
        return [leaf for part in parts for leaf in self.leaves(part)] if parts else [axis]


def _factor(leaf: IterDomain) -> Factor:
    return leaf.get_parallel_type() if leaf.is_device_dim() else _size(leaf)  # None is REST


def _size(axis: IterDomain) -> int | None:
    text = str(axis.extent())
    return int(text) if text.isdigit() else None


def _dealt(
    leaves: Sequence[IterDomain], pair: Sequence[IterDomain]
) -> tuple[list[Factor], list[Factor]] | None:
    """Deal the loop axes of a merged axis out to its operands; None: one belongs to both."""
    outer: list[Factor] = []
    inner: list[Factor] = []
    left = _size(pair[0])
    if left is None or _size(pair[1]) is None:
        return None
    for leaf in leaves:
        size = _size(leaf)
        if size is None:
            return None
        if left == 1:
            inner.append(_factor(leaf))
        elif left % size == 0:
            outer.append(_factor(leaf))
            left //= size
        elif size % left == 0 and not leaf.is_device_dim():
            outer.append(left)
            inner.append(size // left)
            left = 1
        else:
            return None
    return outer, inner
