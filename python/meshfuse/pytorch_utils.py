# SPDX-License-Identifier: BSD-3-Clause
"""Data types of torch and Python as those of meshfuse, and what scripts need around CUDA."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ._C import DataType

_Result = TypeVar("_Result")

_DTYPES: dict[Any, DataType] = {
    torch.cdouble: DataType.ComplexDouble,
    torch.cfloat: DataType.ComplexFloat,
    torch.double: DataType.Double,
    torch.float: DataType.Float,
    torch.half: DataType.Half,
    torch.bfloat16: DataType.BFloat16,
    torch.float8_e4m3fn: DataType.Float8_e4m3fn,
    torch.float8_e5m2: DataType.Float8_e5m2,
    torch.long: DataType.Int,
    torch.int: DataType.Int32,
    torch.bool: DataType.Bool,
    complex: DataType.ComplexDouble,
    float: DataType.Double,
    int: DataType.Int,
    bool: DataType.Bool,
}
for _name, _dtype in (
    ("uint64", DataType.UInt64),
    ("float8_e8m0fnu", DataType.Float8_e8m0fnu),
    ("float4_e2m1fn_x2", DataType.Float4_e2m1fn_x2),
):
    if hasattr(torch, _name):
        _DTYPES[getattr(torch, _name)] = _dtype


def torch_dtype_to_meshfuse_dtype(dtype: torch.dtype | type) -> DataType:
    """Return the DataType of a torch dtype or a Python number type.

    Raises:
        KeyError: meshfuse has no such type.

    Example:
        >>> torch_dtype_to_meshfuse_dtype(torch.float32)
        <DataType.Float: 1>
    """
    return _DTYPES[dtype]


torch_dtype_to_nvfuser_dtype = torch_dtype_to_meshfuse_dtype


def python_scalar_to_nvfuser_dtype(value: complex) -> DataType:
    """Return the DataType of a Python number by its type."""
    return _DTYPES[type(value)]


def retry_on_oom_or_skip_test(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorate a test: free CUDA memory and try again on out-of-memory, then skip."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> _Result:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            import pytest

            pytest.skip(f"not enough CUDA memory: {error}")

    return wrapper


@functools.cache
def get_device_properties() -> Any:
    """Return the properties of the current CUDA device; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(torch.cuda.current_device())


def __getattr__(name: str) -> Any:
    if name == "DEVICE_PROPERTIES":  # asked for late: importing must not touch CUDA
        return get_device_properties()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
