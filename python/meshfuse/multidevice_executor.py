# SPDX-License-Identifier: BSD-3-Clause
"""MultiDeviceExecutor: a program run by a host program, as direct-style scripts ask for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from . import _C, failure
from ._C import CommunicatorBackend, Error, Fusion, FusionExecutorCache

# Backends that a communicator of this name stands for.
_AVAILABLE = {
    "mpi": ("mpi",),
    "simulated": ("simulated",),
    "c10d": ("gloo", "nccl"),
}


@dataclass
class MultiDeviceExecutorParams:
    """Wishes about the execution.

    All but ``backend_type`` are hints for engines with streams and make no difference here.
    """

    use_allocation_cache: bool = False
    number_of_streams: int = 4
    backend_type: CommunicatorBackend | None = None  #: None: the one in use
    offset_stream_indexing_by_rank: bool = False
    inter_stream_synchronization: bool = False


class MultiDeviceExecutor:
    """Runs a program on local tensors; the results equal those of ``FusionDefinition.execute``.

    Example:
        >>> import torch
        >>> from meshfuse import FusionDefinition
        >>> from meshfuse.multidevice import MultiDeviceExecutor, MultiDeviceExecutorParams
        >>> with FusionDefinition() as fd:
        ...     fd.add_output(fd.ops.neg(fd.define_tensor([2])))
        >>> executor = MultiDeviceExecutor(fd.fusion, MultiDeviceExecutorParams())
        >>> executor.run([torch.ones(2)])
        [tensor([-1., -1.])]
    """

    def __init__(self, fusion: Fusion, params: MultiDeviceExecutorParams | None = None) -> None:
        """Prepare to run ``fusion``."""
        self._cache = FusionExecutorCache(fusion)
        self.params = params or MultiDeviceExecutorParams()

    def run(self, args: Iterable[Any]) -> list[torch.Tensor]:
        """Run on local inputs; return one local tensor per output.

        Raises:
            meshfuse.Error: the backend asked for is not the one in use, or inputs do not fit.
        """
        try:
            self._check_backend()
            return self._cache.run(args)
        except Exception as error:
            failure.report(error, "executing a fusion", self._cache, inputs=args)
            raise

    def __str__(self) -> str:
        """Return the steps of the last run; before it, the program after the passes."""
        return self._cache.plan() if self._cache.was_run() else self._cache.compiled_ir()

    def _check_backend(self) -> None:
        wanted = self.params.backend_type
        if wanted is None or not _C.is_distributed():
            return
        backend = _C.communicator().backend()
        available = _AVAILABLE.get(backend, (backend,))
        if wanted.name not in available:
            raise Error(
                f"MultiDeviceExecutor: backend_type is {wanted.name}, but the ranks talk through "
                f"{' or '.join(available)}. Set params.backend_type to that, or start them with "
                f"another launcher."
            )
