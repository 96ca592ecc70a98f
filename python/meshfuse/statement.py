# SPDX-License-Identifier: BSD-3-Clause
"""The common base of the nodes of a program, for ``isinstance``."""

from __future__ import annotations

from abc import ABC

from ._C import Expr, IterDomain, Scalar, TensorDomain, TensorView


class Statement(ABC):  # noqa: B024 - nothing is abstract; classes are registered below
    """A tensor, scalar, axis, domain or operation of a program."""


for _node in (TensorView, Scalar, IterDomain, TensorDomain, Expr):
    Statement.register(_node)
