# SPDX-License-Identifier: BSD-3-Clause
"""A sequence of scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ._C import Scalar


class Vector(Sequence[Scalar]):
    """Scalars in order, as ``FusionDefinition.define_vector`` returns them."""

    __slots__ = ("_index", "_items")

    def __init__(self, items: Sequence[Scalar], index: int = -1) -> None:
        """Hold ``items``; ``index`` is the record number that is printed."""
        self._items = tuple(items)
        self._index = index

    @property
    def size(self) -> int:
        """Number of scalars."""
        return len(self._items)

    def at(self, index: int) -> Scalar:
        """Return one scalar; negative indices count from the end."""
        return self._items[index]

    def __len__(self) -> int:
        """Return the number of scalars."""
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Scalar]: ...
    def __getitem__(self, index: int | slice) -> Scalar | Sequence[Scalar]:
        """Return one scalar, or several."""
        return self._items[index]

    def __repr__(self) -> str:
        """Return number and size, as scripts print a vector."""
        return f"Vector(index={self._index}, size={len(self._items)})"
