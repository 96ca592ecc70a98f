# SPDX-License-Identifier: BSD-3-Clause
"""What a program is given: tensors, scalars and constants, and their forms for type checkers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, overload

import torch

from ._C import DataType, Error, Fusion, FusionGuard, Scalar, TensorView
from .lifecycle import Lifecycle
from .pytorch_utils import python_scalar_to_nvfuser_dtype, torch_dtype_to_nvfuser_dtype
from .scalar_arguments import scalar_arguments, vector_arguments
from .tensor_arguments import parse_tensor_arguments
from .vector import Vector


class InputDefinitions:
    """Base of FusionDefinition: adds inputs and constants."""

    _lifecycle: Lifecycle
    _api_name: str

    @overload
    def define_tensor(
        self,
        shape: Sequence[int],
        contiguity: bool | Sequence[bool | None] = False,
        dtype: DataType = ...,
        is_cpu: bool = False,
        stride_order: Sequence[int] = (),
    ) -> TensorView: ...

    @overload
    def define_tensor(
        self,
        sizes: Sequence[int],
        strides: Sequence[int],
        dtype: DataType = ...,
        static_sizes: bool = False,
        is_cpu: bool = False,
    ) -> TensorView: ...

    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """Add a tensor input of a global shape.

        Takes ``(shape, contiguity=False, dtype=DataType.Float, is_cpu=False, stride_order=())``,
        where contiguity is a bool or one flag per dim in memory order, or
        ``(sizes, strides, dtype=DataType.Float, static_sizes=False, is_cpu=False)``. A size of -1
        is symbolic, 1 is broadcast.
        """
        fusion = self._lifecycle.for_definition("define_tensor")
        tensor = fusion.define_tensor(*parse_tensor_arguments(args, kwargs))
        fusion.add_input(tensor)
        return tensor

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> TensorView:
        """Add a tensor input like ``tensor``; its sizes other than 1 are symbolic unless static."""
        if tensor.device.type == "cpu" and tensor.dim() > 0:
            _reject_cpu_if_asked(self._api_name)
        return self.define_tensor(
            sizes=list(tensor.size()),
            strides=list(tensor.stride()),
            dtype=torch_dtype_to_nvfuser_dtype(tensor.dtype),
            static_sizes=static_sizes,
            is_cpu=tensor.device.type == "cpu" and tensor.dim() == 0,
        )

    @overload
    def define_scalar(self, dtype: DataType = ...) -> Scalar: ...

    @overload
    def define_scalar(self, value: complex | None, dtype: DataType | None = None) -> Scalar: ...

    def define_scalar(self, *args: Any, **kwargs: Any) -> Scalar:
        """Add a scalar input ``(dtype=DataType.Double)``, or a constant ``(value, dtype=None)``."""
        fusion = self._lifecycle.for_definition("define_scalar")
        scalar = _make_scalar(fusion, *scalar_arguments(args, kwargs))
        if scalar.is_symbolic():
            fusion.add_input(scalar)
        return scalar

    def define_constant(self, value: complex, dtype: DataType | None = None) -> Scalar:
        """Add a constant; the same as ``define_scalar(value, dtype)``."""
        return self.define_scalar(value, dtype)

    @overload
    def define_vector(self, size: int) -> Vector: ...

    @overload
    def define_vector(self, values: Sequence[int | Scalar], dtype: DataType = ...) -> Vector: ...

    def define_vector(self, *args: Any, **kwargs: Any) -> Vector:
        """Add ``size`` Int inputs, or hold ``(values, dtype=DataType.Int)`` as constants."""
        self._lifecycle.for_definition("define_vector")
        values, dtype = vector_arguments(args, kwargs)
        if isinstance(values, int):
            return Vector([self.define_scalar(None, dtype) for _ in range(values)])
        scalars = [v if isinstance(v, Scalar) else self.define_scalar(v, dtype) for v in values]
        return Vector(scalars)


@overload
def define_tensor(
    shape: Sequence[int],
    contiguity: bool | Sequence[bool | None] = False,
    dtype: DataType = ...,
    is_cpu: bool = False,
    stride_order: Sequence[int] = (),
) -> TensorView: ...


@overload
def define_tensor(
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: DataType = ...,
    static_sizes: bool = False,
    is_cpu: bool = False,
) -> TensorView: ...


def define_tensor(*args: Any, **kwargs: Any) -> TensorView:
    """Make a tensor in the active definition that is not yet an input; see Fusion.add_input."""
    return _active_fusion("define_tensor").define_tensor(*parse_tensor_arguments(args, kwargs))


@overload
def define_scalar(dtype: DataType = ...) -> Scalar: ...


@overload
def define_scalar(value: complex | None, dtype: DataType | None = None) -> Scalar: ...


def define_scalar(*args: Any, **kwargs: Any) -> Scalar:
    """Make a scalar in the active definition that is not yet an input; see Fusion.add_input."""
    return _make_scalar(_active_fusion("define_scalar"), *scalar_arguments(args, kwargs))


def _active_fusion(name: str) -> Fusion:
    fusion = FusionGuard.get_cur_fusion()
    if fusion is None:
        raise Error(
            f"{name} must be called from an initialized definition. Make a FusionGuard first."
        )
    return fusion


def _make_scalar(fusion: Fusion, value: complex | None, dtype: DataType | None) -> Scalar:
    if value is None:
        return fusion.symbol(dtype or DataType.Double)
    return fusion.constant(value, dtype or python_scalar_to_nvfuser_dtype(value))


def _reject_cpu_if_asked(api_name: str) -> None:
    """Refuse CPU tensors where the environment or an alias package on a CUDA machine says so."""
    alias = api_name != "meshfuse" and torch.cuda.is_available()
    if not alias and os.environ.get("MESHFUSE_REJECT_CPU_INPUTS") != "1":
        return
    if api_name == "nvfuser":
        raise ValueError("CPU non-scalar tensor is not supported!")
    raise ValueError("Found unsupported device cpu, only scalar CPU or CUDA tensors are supported")
