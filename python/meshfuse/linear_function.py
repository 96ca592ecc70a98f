# SPDX-License-Identifier: BSD-3-Clause
"""A linear layer over a mesh as a function of torch's autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from . import failure
from ._C import DataType
from .autograd import first_order_only, run
from .definition import FusionDefinition
from .linear_programs import LinearLayout, define_backward, define_forward
from .tensor_kinds import refuse_batched, refuse_tangents

_unsafe_view = torch.ops.aten._unsafe_view.default


class LinearPrograms:
    """The definitions of a layer for one data type; each is made when it is first needed.

    Attributes:
        name: Name of the layer, for messages.
        in_features: Local size of the last dim of inputs.
        out_features: Local size of the last dim of results.
    """

    def __init__(self, name: str, layout: LinearLayout, dtype: DataType) -> None:
        """Prepare to make programs of that layout and type."""
        self.name = name
        self.in_features = layout.local_in_features
        self.out_features = layout.local_out_features
        self._layout = layout
        self._dtype = dtype
        self._forward: dict[bool, FusionDefinition] = {}
        self._backward: dict[tuple[bool, bool, bool], FusionDefinition] = {}

    def forward(self, bias: bool) -> FusionDefinition:
        """Return the program of the result."""
        fd = self._forward.get(bias)
        if fd is None:
            fd = self._forward.setdefault(bias, define_forward(self._layout, self._dtype, bias))
        return fd

    def backward(self, needed: tuple[bool, bool, bool]) -> FusionDefinition:
        """Return the program of gradients of those of input, weight and bias that are needed."""
        fd = self._backward.get(needed)
        if fd is None:
            made = define_backward(self._layout, self._dtype, *needed)
            fd = self._backward.setdefault(needed, made)
        return fd

    def report(self, error: Exception) -> None:
        """Keep the other devices of the layer from waiting for this one.

        Where the program that failed is local they wait in the next that is not.
        """
        shared = (
            self.backward((True, False, False))
            if self._layout.columns and not self._layout.whole  # the forward program is local
            else self.forward(False)
        )
        failure.report(error, "calling a layer", shared._executor())

    def apply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the layer's result, as a node of autograd where gradients are needed."""
        if torch.is_grad_enabled() and (
            x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        ):
            y: torch.Tensor = _Linear.apply(self, x, weight, bias)  # type: ignore[no-untyped-call]
            return y
        return self._evaluate(x, weight, bias)

    def _evaluate(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        inputs = [_rows(x), weight] if bias is None else [_rows(x), weight, bias]
        (y,) = run(self.forward(bias is not None), inputs)
        # Not a view: results of views may not be changed in place where autograd has a Function.
        return y if x.dim() == 2 else _unsafe_view(y, [*x.shape[:-1], self.out_features])


class _Linear(Function):
    """One call of a layer."""

    @staticmethod
    def forward(
        ctx: Any,
        programs: LinearPrograms,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        _, of_x, of_weight, _ = ctx.needs_input_grad
        ctx.programs = programs
        ctx.shape = x.shape
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return programs._evaluate(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        if grad is None:
            return None, None, None, None
        programs = ctx.programs
        x, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        with torch.no_grad():
            try:
                refuse_batched(programs.name, [grad])
                refuse_tangents(programs.name, [("the gradient of the result", grad)])
                given = [_rows(grad)]
                if x is not None:
                    given.append(_rows(x))
                if weight is not None:
                    given.append(weight)
                found = iter(run(programs.backward(needed), given))
            except Exception as error:
                programs.report(error)
                raise
            results: list[torch.Tensor | None] = [next(found) if n else None for n in needed]
            if results[0] is not None:
                results[0] = results[0].view(ctx.shape)
        return None, *first_order_only(programs.name, results, [grad, x, weight])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with all dims but the last in one."""
    if tensor.dim() == 2:
        return tensor
    return tensor.flatten(0, -2) if tensor.dim() > 2 else tensor.unsqueeze(0)
