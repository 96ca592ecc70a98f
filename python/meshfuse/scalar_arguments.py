# SPDX-License-Identifier: BSD-3-Clause
"""The arguments of ``define_scalar`` and ``define_vector`` in their overloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._C import DataType, Scalar
from .exceptions import Error
from .tensor_arguments import incompatible_arguments

_SCALAR_FORMS = (
    "(dtype: DataType = DataType.Double)",
    "(value: bool | int | float | complex | None, dtype: DataType | None = None)",
)
_VECTOR_FORMS = (
    "(size: int)",
    "(values: Sequence[int | Scalar], dtype: DataType = DataType.Int)",
)


def scalar_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[complex | None, DataType | None]:
    """Return value and dtype of either form of define_scalar; value None is symbolic.

    Raises:
        TypeError: neither form fits.
    """
    names = ("dtype",) if len(args) == 1 and isinstance(args[0], DataType) else ("value", "dtype")
    given = dict(zip(names, args, strict=False)) | kwargs
    complete = len(given) == len(args) + len(kwargs)  # no name twice, none too many
    value, dtype = given.pop("value", None), given.pop("dtype", None)
    if complete and not given and _is_number(value) and isinstance(dtype, DataType | None):
        return value, dtype
    raise TypeError(incompatible_arguments("define_scalar", _SCALAR_FORMS, args, kwargs))


def vector_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int | Sequence[Any], DataType]:
    """Return the size or the values, and the dtype, of either form of define_vector.

    Raises:
        TypeError: neither form fits.
        meshfuse.Error: a value is less than -1.
    """
    given = dict(zip(("values", "dtype"), args, strict=False)) | kwargs
    complete = len(given) == len(args) + len(kwargs)
    values = given.pop("size", None) if "size" in given else given.pop("values", None)
    dtype = given.pop("dtype", DataType.Int)
    if complete and not given and isinstance(dtype, DataType):
        if type(values) is int:
            return values, dtype
        if isinstance(values, Sequence) and all(_is_vector_item(v) for v in values):
            _check_values(values)
            return values, dtype
    raise TypeError(incompatible_arguments("define_vector", _VECTOR_FORMS, args, kwargs))


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return isinstance(value, bool | float | complex | None)


def _is_vector_item(value: Any) -> bool:
    return isinstance(value, Scalar) or type(value) is int


def _check_values(values: Sequence[Any]) -> None:
    for i, value in enumerate(values):
        if isinstance(value, int) and value < -1:
            raise Error(
                f"define_vector: The value {value} at index {i} was neither symbolic(-1), "
                "zero_element(0), broadcast(1), or static(>1)."
            )
