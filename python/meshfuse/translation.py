# SPDX-License-Identifier: BSD-3-Clause
"""Copies of definitions, and programs as Python text."""

from __future__ import annotations

from typing import Any

from ._C import DataType, Error, Fusion
from .definition import FusionDefinition
from .lifecycle import Phase
from .python_text import function_text


def translate_fusion(fusion: Fusion) -> str:
    """Return a Python function that adds the program to a definition.

    Example:
        >>> from meshfuse import FusionDefinition, translate_fusion
        >>> with FusionDefinition() as fd:
        ...     fd.add_output(fd.ops.neg(fd.define_tensor([4])))
        >>> print(translate_fusion(fd.fusion).splitlines()[0])
        def nvfuser_fusion(fd : FusionDefinition) -> None :
    """
    return function_text(fusion, "nvfuser_fusion")


def clone(from_fd: FusionDefinition, to_fd: FusionDefinition) -> None:
    """Make ``to_fd`` the program of ``from_fd``; what is done to one does not change the other.

    ``to_fd`` is either not begun, and is complete afterwards, or open, and is added to.

    Raises:
        meshfuse.Error: ``from_fd`` is not defined, or ``to_fd`` is complete already.
    """
    fusion = from_fd.fusion
    if fusion is None:
        raise Error("clone: the first definition is not defined. Define it, or execute it once.")
    lifecycle = to_fd._lifecycle
    if lifecycle.phase is Phase.UNDEFINED:
        lifecycle.adopt(fusion.clone())
    elif lifecycle.phase is Phase.OPEN:
        names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
        exec(function_text(fusion, "definition"), names)
        names["definition"](to_fd)
    else:
        raise Error("clone: the second definition is complete already. Give a new one.")
