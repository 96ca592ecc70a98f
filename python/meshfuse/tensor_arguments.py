# SPDX-License-Identifier: BSD-3-Clause
"""The arguments of ``define_tensor`` in its three overloads."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ._C import DataType
from .descriptor import Contiguity, compute_tensor_descriptor
from .exceptions import Error


class TensorArguments(NamedTuple):
    """What a tensor input is made of."""

    shape: list[int]
    contiguity: bool | Contiguity
    dtype: DataType
    is_cpu: bool
    stride_order: list[int]


def parse_tensor_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> TensorArguments:
    """Return the arguments of the first overload that they fit.

    Raises:
        TypeError: no overload fits.
        meshfuse.Error: lengths or values are wrong.
    """
    for form in _FORMS:
        try:
            parsed = form(*args, **kwargs)
        except TypeError:  # names or number of arguments
            continue
        if parsed is not None:
            return _checked(parsed)
    raise TypeError(incompatible_arguments("define_tensor", _SIGNATURES, args, kwargs))


def incompatible_arguments(
    name: str, signatures: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Return pybind11's text for arguments that fit no overload."""
    forms = "".join(f"    {i}. {text}\n" for i, text in enumerate(signatures, 1))
    given = ", ".join(map(repr, args))
    if kwargs:
        named = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
        given += f"{', ' if given else ''}kwargs: {named}"
    return (
        f"{name}(): incompatible function arguments. The following argument types are supported:\n"
        f"{forms}\nInvoked with: {given}"
    )


def int_list(value: Any) -> list[int] | None:
    """Return a sequence of ints of at most 64 bits as a list; None when it is something else."""
    if type(value) is list or type(value) is tuple:  # isinstance of an abstract class is slow
        for item in value:
            if type(item) is not int or not -(2**63) <= item < 2**63:
                break
        else:
            return list(value)
    elif isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return None
    result = []
    for item in value:
        if isinstance(item, bool | DataType):
            return None
        try:
            number = operator.index(item)
        except TypeError:
            return None
        if not -(2**63) <= number < 2**63:
            return None
        result.append(number)
    return result


def _flag_list(value: Any) -> Contiguity | None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return None
    return list(value) if all(v is None or isinstance(v, bool) for v in value) else None


def _list_form(
    shape: Any,
    contiguity: Any,
    dtype: Any = DataType.Float,
    is_cpu: Any = False,
    stride_order: Any = (),
) -> TensorArguments | None:
    flags = _flag_list(contiguity)
    return None if flags is None else _shape_form(shape, flags, dtype, is_cpu, stride_order)


def _bool_form(
    shape: Any,
    contiguity: Any = False,
    dtype: Any = DataType.Float,
    is_cpu: Any = False,
    stride_order: Any = (),
) -> TensorArguments | None:
    if not isinstance(contiguity, bool):
        return None
    return _shape_form(shape, contiguity, dtype, is_cpu, stride_order)


def _shape_form(
    shape: Any, contiguity: bool | Contiguity, dtype: Any, is_cpu: Any, stride_order: Any
) -> TensorArguments | None:
    sizes, order = int_list(shape), int_list(stride_order)
    if sizes is None or order is None or not _types_fit(dtype, is_cpu):
        return None
    return TensorArguments(sizes, contiguity, dtype, is_cpu, order)


def _stride_form(
    sizes: Any,
    strides: Any,
    dtype: Any = DataType.Float,
    static_sizes: Any = False,
    is_cpu: Any = False,
) -> TensorArguments | None:
    size_list, stride_list = int_list(sizes), int_list(strides)
    if size_list is None or stride_list is None or not _types_fit(dtype, is_cpu, static_sizes):
        return None
    contiguity, order = compute_tensor_descriptor(size_list, stride_list)
    shape = [n if static_sizes or n == 1 else -1 for n in size_list]
    return TensorArguments(shape, contiguity, dtype, is_cpu, order)


def _types_fit(dtype: Any, is_cpu: Any, static_sizes: Any = False) -> bool:
    return (
        isinstance(dtype, DataType) and isinstance(is_cpu, bool) and isinstance(static_sizes, bool)
    )


# The most frequent one first; the first two exclude each other.
_FORMS: tuple[Callable[..., TensorArguments | None], ...] = (_bool_form, _list_form, _stride_form)
_SIGNATURES = (
    "(shape: Sequence[int], contiguity: Sequence[bool | None], dtype: DataType = DataType.Float, "
    "is_cpu: bool = False, stride_order: Sequence[int] = ())",
    "(shape: Sequence[int], contiguity: bool = False, dtype: DataType = DataType.Float, "
    "is_cpu: bool = False, stride_order: Sequence[int] = ())",
    "(sizes: Sequence[int], strides: Sequence[int], dtype: DataType = DataType.Float, "
    "static_sizes: bool = False, is_cpu: bool = False)",
)


def _checked(args: TensorArguments) -> TensorArguments:
    if args.is_cpu and args.shape:
        raise Error(
            "CPU non-scalar tensor is not supported! define_tensor: is_cpu=True marks a 0-dim CPU "
            f"tensor, but the shape is {args.shape}. Leave is_cpu out; it does not say where the "
            "fusion runs."
        )
    return args
