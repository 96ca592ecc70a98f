# SPDX-License-Identifier: BSD-3-Clause
"""Kinds of operations, for ``isinstance``: what ``tv.definition()`` returns."""

from __future__ import annotations

from typing import ClassVar

from ._C import Expr


class _Kind(type):
    """An Expr is an instance of the kind whose ops list its op."""

    ops: tuple[str, ...]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Expr) and value.op in cls.ops


class BroadcastOp(metaclass=_Kind):
    """An operation that inserts broadcast dims."""

    ops: ClassVar[tuple[str, ...]] = ("broadcast", "broadcast_in_dim")


class ReshapeOp(metaclass=_Kind):
    """An operation that changes the shape and keeps the elements."""

    ops: ClassVar[tuple[str, ...]] = ("reshape",)


class SqueezeOp(metaclass=_Kind):
    """An operation that removes broadcast dims."""

    ops: ClassVar[tuple[str, ...]] = ("squeeze",)
