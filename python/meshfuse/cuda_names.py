# SPDX-License-Identifier: BSD-3-Clause
"""Classes of scripts that schedule CUDA kernels by hand: they exist, but cannot be made."""

from __future__ import annotations

from typing import Any, NoReturn

from .exceptions import UnsupportedError

__all__ = [
    "CompileParams",
    "HeuristicParams",
    "KernelExecutor",
    "LaunchParams",
    "MatmulParams",
    "PointwiseParams",
    "ReductionParams",
    "SchedulerHyperParameters",
]


class CudaOnly:
    """Base of the classes that raise UnsupportedError when an object is made."""

    _what = "controls a generated CUDA kernel"
    _instead = "remove the call and use execute()"

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise UnsupportedError."""
        raise UnsupportedError(
            f"{cls.__name__} {cls._what}. meshfuse evaluates every operation through ATen, so "
            f"there is none; {cls._instead}."
        )


class LaunchParams(CudaOnly):
    """Grid and block sizes of a CUDA kernel."""


class CompileParams(CudaOnly):
    """How a CUDA kernel is compiled."""


class HeuristicParams(CudaOnly):
    """How a CUDA kernel is scheduled."""


class PointwiseParams(HeuristicParams):
    """How an elementwise CUDA kernel is scheduled."""


class ReductionParams(HeuristicParams):
    """How a CUDA kernel with reductions is scheduled."""


class MatmulParams(HeuristicParams):
    """How a CUDA kernel of a matrix product is scheduled."""


class SchedulerHyperParameters(CudaOnly):
    """Parameters of the scheduling of CUDA kernels."""


class KernelExecutor(CudaOnly):
    """One CUDA kernel that was scheduled by hand."""
