# SPDX-License-Identifier: BSD-3-Clause
"""Names of scripts that control CUDA kernels, or that this version does not have."""

from __future__ import annotations

from collections.abc import Callable
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
    "later": "is not available in this version of meshfuse; schedule with split and parallelize",
}


def unsupported(name: str, why: str) -> Callable[..., Any]:
    """Return a function that raises UnsupportedError; ``why`` is cuda, code or later."""
    text = f"{name} {_EXPLAIN[why]}."

    def function(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(text)

    function.__name__ = name
    function.__qualname__ = name
    function.__doc__ = f"Not supported: {text}"
    return function


def add_unsupported(cls: type, names: str, why: str) -> None:
    """Give a class methods of these names that raise UnsupportedError."""
    for name in names.split():
        setattr(cls, name, unsupported(name, why))
