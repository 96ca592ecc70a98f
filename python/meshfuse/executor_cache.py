# SPDX-License-Identifier: BSD-3-Clause
"""Methods of FusionExecutorCache that are written in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from . import execution, failure
from ._C import Error, FusionExecutorCache, TensorView
from .sharding import Sharding, make_sharding
from .tensor_sharding import sharding_of
from .unsupported import add_unsupported

__all__ = ["FusionExecutorCache"]


def _execute(
    self: FusionExecutorCache,
    inputs: Iterable[Any],
    *,
    device: int | str | torch.device | None = None,
    _enable_options: Sequence[str] = (),
    _disable_options: Sequence[str] = (),
) -> list[torch.Tensor]:
    """Run the program on local tensors; return one local tensor per output."""
    settings = execution.Settings(device=device, enable=_enable_options, disable=_disable_options)
    try:
        return execution.run(self, inputs, settings)
    except Exception as error:
        failure.report(error, "executing a fusion", self, inputs=inputs)
        raise


def _get_scheduled_ir(
    self: FusionExecutorCache,
    inputs: Iterable[Any],
    tensor_transforms: bool = False,
    device: int = 0,
) -> str:
    """Return the program after the passes; it must have run with inputs of this kind."""
    if not self.is_compiled(inputs, device):
        raise Error("Fusion is not compiled! Execute it with inputs of these sizes first.")
    return self.compiled_ir()


def _get_most_recent_scheduled_ir(
    self: FusionExecutorCache, tensor_transforms: bool = False
) -> str:
    """Return the program after the passes; it must have run."""
    if not self.was_run():
        raise Error("Invalid fusion definition! It was not executed yet. Call execute first.")
    return self.compiled_ir()


def compiled_outputs(cache: FusionExecutorCache) -> list[TensorView | None]:
    """Return the results of the program that ran last, after the passes; None for a number."""
    fusion = cache.compiled_fusion()
    hidden = fusion.hidden_outputs()
    return [
        value if isinstance(value, TensorView) else None
        for value, skip in zip(fusion.outputs(), hidden, strict=True)
        if not skip
    ]


def _get_output_shardings(self: FusionExecutorCache) -> list[Sharding]:
    """Return how each result is divided; nothing when no tensor of the program has a mesh.

    Raises:
        meshfuse.Error: the program has not run yet.
    """
    if not self.was_run():
        raise Error(
            "get_output_shardings: Invalid fusion definition! It was not executed yet. Call "
            "execute first."
        )
    if not any(tensor.has_device_mesh() for tensor in self.fusion().tensors()):
        return []
    return [
        make_sharding(None, {}) if tv is None else sharding_of(tv) for tv in compiled_outputs(self)
    ]


FusionExecutorCache.execute = _execute  # type: ignore[method-assign]
FusionExecutorCache.get_scheduled_ir = _get_scheduled_ir  # type: ignore[method-assign]
FusionExecutorCache.get_most_recent_scheduled_ir = (  # type: ignore[method-assign]
    _get_most_recent_scheduled_ir
)
FusionExecutorCache.get_output_shardings = (  # type: ignore[method-assign]
    _get_output_shardings
)
add_unsupported(FusionExecutorCache, "get_cuda_kernel", "code")
