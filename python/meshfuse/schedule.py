# SPDX-License-Identifier: BSD-3-Clause
"""Scheduling by functions that take a tensor, as class-style definitions use it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from . import schedule_functions as functions
from ._C import (
    CacheOp,
    DeviceMesh,
    Fusion,
    LoadStoreOpType,
    MemoryType,
    ParallelType,
    Scalar,
    TensorView,
)
from .exceptions import Error, UnsupportedError
from .lifecycle import Lifecycle
from .schedule_functions import bounded_transform_backward as bounded_transform_backward
from .schedule_functions import parallelize_like as parallelize_like
from .schedule_functions import transform_like as transform_like
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

    def cache_after(
        self,
        tensor: TensorView,
        op_type: LoadStoreOpType = LoadStoreOpType.set,
        cache_op: CacheOp = CacheOp.unspecified,
    ) -> TensorView:
        """Insert a copy of a tensor, which all that read the tensor read instead."""
        self._check()
        return functions.cache_after(tensor, op_type, cache_op)

    def cache_before(
        self, tensor: TensorView, op_type: LoadStoreOpType = LoadStoreOpType.set
    ) -> TensorView:
        """Make a tensor a copy of a new one, which takes its definition and schedule."""
        self._check()
        return functions.cache_before(tensor, op_type)

    def cache_fork(self, tensor: TensorView) -> TensorView:
        """Put a copy of an output that operations read in its place among the outputs."""
        self._check()
        return functions.cache_fork(tensor)

    def transform_like(
        self, tensor: TensorView, selected_tensors: Sequence[TensorView] = ()
    ) -> None:
        """Repeat the transforms of a tensor on those connected with it, or on selected ones."""
        self._check()
        transform_like(tensor, selected_tensors)

    def parallelize_like(
        self,
        tensor: TensorView,
        pos: int = -1,
        selected_tensors: Sequence[TensorView] = (),
        selected_parallel_types: Collection[ParallelType] = (),
        propagate_padding: bool = True,
    ) -> None:
        """Copy the parallel types of the first ``pos`` loop axes of a tensor (-1: all)."""
        self._check()
        parallelize_like(tensor, pos, selected_tensors, selected_parallel_types, propagate_padding)

    def bounded_transform_backward(
        self,
        from_tv: TensorView,
        pos: int,
        to: Sequence[TensorView],
        propagate_parallel_type: bool = False,
    ) -> None:
        """Repeat transforms of a tensor on those between it and the tensors ``to``."""
        self._check()
        bounded_transform_backward(from_tv, pos, to, propagate_parallel_type)

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


def _set_device_mesh(self: TensorView, mesh: DeviceMesh) -> None:
    """Place the tensor on a mesh.

    Raises:
        TypeError: ``mesh`` is not a DeviceMesh.
    """
    if not isinstance(mesh, DeviceMesh):
        devices = repr(mesh) if isinstance(mesh, range | list | tuple) else "..."
        raise TypeError(
            "set_device_mesh(): incompatible function arguments. The mesh of "
            f"{self.name} must be a DeviceMesh, but it is {mesh!r}, a {type(mesh).__name__}. "
            f"Write {self.name}.set_device_mesh(DeviceMesh({devices}))."
        )
    _place_on_mesh(self, mesh)


_CUDA_FUNCTIONS = (
    "inline_most inline_at can_schedule find_compatible_schedulers compute_heuristics schedule "
    "warp_specialize"
)
add_unsupported(sys.modules[__name__], _CUDA_FUNCTIONS, "cuda")

_CUDA_ONLY = (
    "inline_most inline_at can_schedule find_compatible_schedulers schedule "
    "compute_pointwise_heuristics compute_reduction_heuristics compute_matmul_heuristics "
    "compute_heuristics schedule_hyperparameters warp_specialize swizzle"
)
add_unsupported(SchedOperators, _CUDA_ONLY, "cuda")
add_unsupported(TensorView, "swizzle", "cuda")
add_unsupported(Fusion, "print_kernel", "code")
TensorView.cache_after = functions.cache_after  # type: ignore[method-assign,assignment]
TensorView.cache_before = functions.cache_before  # type: ignore[method-assign,assignment]
TensorView.cache_fork = functions.cache_fork  # type: ignore[method-assign,assignment]
TensorView.swizzle1d = functions.swizzle1d  # type: ignore[method-assign,assignment]
TensorView.set_memory_type = _set_memory_type  # type: ignore[method-assign,assignment]
_place_on_mesh = TensorView.set_device_mesh
TensorView.set_device_mesh = _set_device_mesh  # type: ignore[method-assign]
