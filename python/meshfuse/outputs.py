# SPDX-License-Identifier: BSD-3-Clause
"""The forms of ``add_output``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from . import _C
from ._C import Error, Fusion, Scalar, TensorView
from .tensor_arguments import incompatible_arguments, int_list

_FORMS = (
    "(output: TensorView | Scalar)",
    "(output: TensorView, alias_input: TensorView | None = None)",
    "(output: TensorView, stride_order: Sequence[int])",
)


def add_output(
    fusion: Fusion,
    output: TensorView | Scalar,
    second: TensorView | Sequence[int] | None,
    stride_order: Sequence[int] | None,
) -> None:
    """Add an output, perhaps into an input's memory or with a memory order."""
    if stride_order is None and not isinstance(second, TensorView):
        stride_order, second = second, None
    order = [] if stride_order is None else int_list(stride_order)
    if not isinstance(output, TensorView | Scalar) or order is None:
        given = tuple(arg for arg in (second, stride_order) if arg is not None)
        raise TypeError(incompatible_arguments("add_output", _FORMS, (output, *given), {}))
    if order:
        output = _with_stride_order(fusion, output, second, order)
    if isinstance(second, TensorView):
        if not isinstance(output, TensorView):
            raise Error(
                "add_output: a scalar cannot be aliased to an input. Leave alias_input out."
            )
        fusion.add_output(output, second)
    else:
        fusion.add_output(output)


def _with_stride_order(
    fusion: Fusion, output: TensorView | Scalar, alias: Any, order: list[int]
) -> TensorView:
    if not isinstance(output, TensorView):
        raise Error("stride_order can't be dictated for scalar outputs. Leave it out.")
    if alias is not None:
        raise Error(
            "stride_order can't be dictated for aliased outputs. The input's memory order holds."
        )
    _check_order(order, output)
    if output.is_fusion_input() or output.is_fusion_output():  # its own layout stays
        output = cast(TensorView, _SET(fusion, output))
    output.set_stride_order(order, "add_output")
    return output


def _check_order(order: list[int], output: TensorView) -> None:
    ndim = output.ndim
    if len(order) != ndim:
        raise Error(
            "stride_order needs to be either empty or the same length of Tensor `output`: "
            f"{output.name} has {ndim} dims, stride_order has {len(order)} entries."
        )
    wrapped = [entry + ndim if entry < 0 else entry for entry in order]
    if any(not 0 <= entry < ndim for entry in wrapped):
        raise Error(
            "stride_order elements need to be within [0, stride_order.size()), but it is "
            f"{order} for {output.name}."
        )
    if len(set(wrapped)) != ndim:
        raise Error(
            f"duplicated elements in stride_order detected! It is {order} for {output.name}. "
            "Give a permutation."
        )


_SET = next(info["call"] for info in _C.registered_ops() if info["name"] == "set")
