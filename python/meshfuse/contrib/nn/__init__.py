# SPDX-License-Identifier: BSD-3-Clause
"""Layers on CUDA kernels: the names exist, but layers cannot be made."""

from __future__ import annotations

from .normalization import InstanceNorm1dNVFuser, InstanceNorm2dNVFuser, InstanceNorm3dNVFuser

__all__ = ["InstanceNorm1dNVFuser", "InstanceNorm2dNVFuser", "InstanceNorm3dNVFuser"]
