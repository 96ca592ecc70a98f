# SPDX-License-Identifier: BSD-3-Clause
"""CUTLASS kernels: every name is a function that raises UnsupportedError when called."""

from __future__ import annotations

from typing import Any

from .unsupported import unsupported


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return unsupported(f"nvf_cutlass.{name}", "cutlass")
