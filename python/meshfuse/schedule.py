# SPDX-License-Identifier: BSD-3-Clause
"""Scheduling by functions that take a tensor, as class-style definitions use it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ._C import DeviceMesh, Fusion, MemoryType, ParallelType, Scalar, TensorView
from .exceptions import Error, UnsupportedError
from .lifecycle import Lifecycle
from .unsupported import add_unsupported


class SchedOperators:
    """Namespace ``fd.sched``. Axes are positions in a tensor's loop domain, reductions counted."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        """Serve the definition whose state this is."""
        self._lifecycle = lifecycle

    def _check(self) -> None:
        if self._lifecycle.in_hook:
            raise Error(
                "Attempting to use a SchedOperators Op prior to definition! "
                "Move the call from definition() to multidevice_schedule()."
            )

    def _set_device_mesh(self, tensor: TensorView, mesh: DeviceMesh) -> None:
        """Place a tensor on a mesh."""
        self._check()
        tensor.set_device_mesh(mesh)

    def parallelize(self, tensor: TensorView, axis: int, parallel_type: ParallelType | str) -> None:
        """Divide a loop axis over a mesh axis, named by its type or by the mesh's name for it."""
        self._check()
        tensor.axis(axis).parallelize(parallel_type)

    def split(
        self, arg: TensorView, dim: int, factor: int | Scalar, inner_split: bool = True
    ) -> None:
        """Split a loop axis in two; ``factor`` is the inner extent, or the outer one."""
        self._check()
        arg.split(dim, factor, inner_split)

    def set_allocation_as_loop(self, arg: TensorView) -> None:
        """Store a tensor as its loop axes say."""
        self._check()
        arg.set_allocation_as_loop()

    def merge(self, arg: TensorView, dim: int) -> None:
        """Merge loop axes ``dim`` and ``dim + 1``."""
        self._check()
        arg.merge(dim, dim + 1)

    def reorder(self, arg: TensorView, old2new: dict[int, int]) -> None:
        """Move loop axes."""
        self._check()
        arg.reorder(old2new)

    def rfactor(self, arg: TensorView, dims: Sequence[int]) -> TensorView:
        """Move the reductions ``dims`` to a new producer, which is returned."""
        self._check()
        return arg.rfactor(dims)

    def reduction_factor(self, arg: TensorView, dims: Sequence[int]) -> TensorView:
        """Do the same as ``rfactor``."""
        return self.rfactor(arg, dims)

    def tensors(self) -> list[TensorView]:
        """Return all tensors of the definition in order of creation."""
        self._check()
        fusion = self._lifecycle.fusion
        return [] if fusion is None else fusion.tensors()

    def is_reduction(self, tensor: TensorView) -> bool:
        """Return whether a tensor is the result of a reduction that stays on one device."""
        self._check()
        reduced = [axis for axis in tensor.get_loop_domain() if axis.is_reduction()]
        return bool(reduced) and not any(axis.is_device_dim() for axis in reduced)

    def to_string(self, tensor: TensorView) -> str:
        """Return the printed form of a tensor."""
        self._check()
        return str(tensor)

    def user_schedule_ir(self) -> str:
        """Return the scheduled program as text."""
        self._check()
        fusion = self._lifecycle.fusion
        return "" if fusion is None else fusion.print_math(False)

    def set_memory_type(self, tensor: TensorView, memory_type: MemoryType) -> None:
        """Accept global and symmetric memory; others exist in CUDA kernels only."""
        _set_memory_type(tensor, memory_type)


def _set_memory_type(tensor: TensorView, memory_type: MemoryType) -> None:
    if memory_type.name not in ("global", "symmetric"):
        raise UnsupportedError(
            f"set_memory_type: {memory_type} of {tensor.name} controls a generated CUDA kernel. "
            "meshfuse evaluates every operation through ATen; remove the call."
        )


_CUDA_FUNCTIONS = (
    "inline_most inline_at can_schedule find_compatible_schedulers compute_heuristics schedule "
    "warp_specialize"
)
add_unsupported(sys.modules[__name__], _CUDA_FUNCTIONS, "cuda")
add_unsupported(
    sys.modules[__name__], "bounded_transform_backward transform_like parallelize_like", "later"
)

_CUDA_ONLY = (
    "inline_most inline_at can_schedule find_compatible_schedulers schedule "
    "compute_pointwise_heuristics compute_reduction_heuristics compute_matmul_heuristics "
    "compute_heuristics schedule_hyperparameters warp_specialize swizzle"
)
add_unsupported(SchedOperators, _CUDA_ONLY, "cuda")
add_unsupported(
    SchedOperators,
    "cache_after cache_before cache_fork transform_like parallelize_like "
    "bounded_transform_backward",
    "later",
)
add_unsupported(TensorView, "swizzle", "cuda")
add_unsupported(TensorView, "swizzle1d cache_after cache_before", "later")
add_unsupported(Fusion, "print_kernel", "code")
TensorView.set_memory_type = _set_memory_type  # type: ignore[method-assign,assignment]
