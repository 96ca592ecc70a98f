# SPDX-License-Identifier: BSD-3-Clause
"""Names of scripts that control CUDA kernels, or that this version does not have."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .exceptions import UnsupportedError

_EXPLAIN = {
    "cuda": (
        "controls a generated CUDA kernel. meshfuse evaluates every operation through ATen, so "
        "there is no such kernel; remove the call"
    ),
    "code": (
        "shows a generated CUDA kernel. meshfuse evaluates every operation through ATen, so there "
        "is none; see last_scheduled_fusion_ir()"
    ),
    "cutlass": (
        "calls a CUTLASS kernel. meshfuse evaluates every operation through ATen, so it has none; "
        "use matmul, linear or grouped_mm on a type that torch multiplies"
    ),
    "scaled": (
        "computes with block-scaled numbers in a CUDA kernel. meshfuse evaluates every operation "
        "through ATen, which has no such operation; cast the operands and use matmul"
    ),
    "later": "is not available in this version of meshfuse; schedule with split and parallelize",
}


def unsupported(name: str, why: str) -> Callable[..., Any]:
    """Return a function that raises UnsupportedError; ``why`` is a key of ``_EXPLAIN``."""
    text = f"{name} {_EXPLAIN[why]}."

    def function(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(text)

    function.__name__ = name
    function.__qualname__ = name
    function.__doc__ = f"Not supported: {text}"
    return function


def add_unsupported(owner: type | ModuleType, names: str, why: str) -> None:
    """Give a class or module functions of these names that raise UnsupportedError."""
    for name in names.split():
        setattr(owner, name, unsupported(name, why))
