# SPDX-License-Identifier: BSD-3-Clause
"""Normalisation layers on CUDA kernels: the names exist, but layers cannot be made."""

from __future__ import annotations

from ...cuda_names import CudaOnly

__all__ = ["InstanceNorm1dNVFuser", "InstanceNorm2dNVFuser", "InstanceNorm3dNVFuser"]


class _InstanceNorm(CudaOnly):
    _what = "is a layer on generated CUDA kernels"
    _instead = "use the layer of torch.nn with the same dims"


class InstanceNorm1dNVFuser(_InstanceNorm):
    """See ``torch.nn.InstanceNorm1d``."""


class InstanceNorm2dNVFuser(_InstanceNorm):
    """See ``torch.nn.InstanceNorm2d``."""


class InstanceNorm3dNVFuser(_InstanceNorm):
    """See ``torch.nn.InstanceNorm3d``."""
