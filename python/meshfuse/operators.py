# SPDX-License-Identifier: BSD-3-Clause
"""Ops of a definition, made from the registry of the C++ library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from . import _C
from ._C import Scalar, TensorView
from .lifecycle import Lifecycle
from .unsupported import add_unsupported

# Ops on block-scaled numbers; all raise UnsupportedError.
SCALED = (
    "scaled_mm",
    "cutlass_nvfp4_grouped_mm",
    "nv_block_quantize",
    "nv_grouped_block_quantize",
    "preprocess_grouped_matmul_input_sf",
)


class Operators:
    """Namespace ``fd.ops``: each op adds an operation to the definition and returns its result."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        """Serve the definition whose state this is."""
        self._lifecycle = lifecycle

    def size(self, arg: TensorView, dim: int) -> Scalar:
        """Return the global size of one dim; negatives count from the end."""
        return arg.size(dim)

    def shape(self, arg: TensorView) -> list[Scalar]:
        """Return the global sizes of all dims."""
        return arg.shape()

    def tensor_sizes(self, arg: TensorView) -> list[Scalar]:
        """Return the global sizes of all dims."""
        return arg.shape()

    def at(self, vector: Sequence[Scalar], index: int) -> Scalar:
        """Return one scalar of a vector."""
        return vector[index]


def op_signature(info: dict[str, Any]) -> inspect.Signature:
    """Return the Python signature of a registered op."""
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=default if has_default else inspect.Parameter.empty,
            annotation=type_name,
        )
        for name, type_name, has_default, default, _ in info["params"]
    ]
    return inspect.Signature(parameters)


def dress(function: Callable[..., Any], info: dict[str, Any], owner: str) -> Callable[..., Any]:
    """Give a function the name, doc and signature of a registered op."""
    signature = op_signature(info)
    name = info["name"]
    function.__name__ = name
    function.__qualname__ = f"{owner}.{name}" if owner else name
    function.__doc__ = f"{info['signature']}\n\n{info['doc']}"
    if owner:
        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        signature = signature.replace(parameters=[this, *signature.parameters.values()])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _method(info: dict[str, Any]) -> Callable[..., Any]:
    call, name = info["call"], info["name"]

    def method(self: Operators, /, *args: Any, **kwargs: Any) -> Any:
        return call(self._lifecycle.for_op(name), *args, **kwargs)

    return dress(method, info, "Operators")


def _operator_matmul(self: TensorView, other: TensorView) -> TensorView:
    """Return ``matmul(self, other)``."""
    if not isinstance(other, TensorView):
        return NotImplemented
    return _matmul(None, self, other)  # type: ignore[no-any-return]


for _info in _C.registered_ops():
    setattr(Operators, _info["name"], _method(_info))
    if _info["name"] == "matmul":
        _matmul = _info["call"]
TensorView.__matmul__ = _operator_matmul  # type: ignore[method-assign]
add_unsupported(Operators, " ".join(SCALED), "scaled")
