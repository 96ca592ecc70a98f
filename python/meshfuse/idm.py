# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of the axes of CUDA kernels: the names exist, but graphs cannot be made."""

from __future__ import annotations

from .cuda_names import CudaOnly

__all__ = ["IdModel", "ValGraph"]


class IdModel(CudaOnly):
    """Which axes of a CUDA kernel are one loop."""

    _what = "is a model of the loops of a generated CUDA kernel"
    _instead = "see fd.explain() for how axes of tensors go together"


class ValGraph(CudaOnly):
    """One of the graphs of an IdModel."""

    _what = "is a graph of the loops of a generated CUDA kernel"
    _instead = "see fd.explain() for how axes of tensors go together"
