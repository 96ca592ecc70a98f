# SPDX-License-Identifier: BSD-3-Clause
"""Ops on block-scaled numbers, which only CUDA kernels compute: the names exist."""

from __future__ import annotations

from . import ops
from .operators import Operators
from .unsupported import add_unsupported

_NAMES = (
    "scaled_mm cutlass_nvfp4_grouped_mm nv_block_quantize nv_grouped_block_quantize "
    "preprocess_grouped_matmul_input_sf"
)


def add_unsupported_ops() -> None:
    """Give ``ops`` and ``fd.ops`` the ops of the list that the registry does not have."""
    names = " ".join(name for name in _NAMES.split() if not hasattr(Operators, name))
    add_unsupported(Operators, names, "scaled")
    add_unsupported(ops, names, "scaled")
