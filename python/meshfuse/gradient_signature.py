# SPDX-License-Identifier: BSD-3-Clause
"""Which inputs and outputs of a definition have gradients, and whether a backward one fits them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from . import failure
from ._C import DataType, Scalar, TensorView
from .definition import FusionDefinition
from .exceptions import Error
from .program_text import parse

_DIFFERENTIABLE = (
    DataType.Double,
    DataType.Float,
    DataType.Half,
    DataType.BFloat16,
    DataType.ComplexFloat,
    DataType.ComplexDouble,
)


class Signature:
    """What autograd needs to know of a forward definition.

    Attributes:
        name: How messages call it.
        inputs: For every input, whether it may have a gradient.
        outputs: The same for every visible output.
        writes: Whether results go into the memory of inputs.
    """

    __slots__ = ("_executor", "_fits", "inputs", "name", "outputs", "writes")

    def __init__(self, fd: FusionDefinition) -> None:
        """Read a definition; its hooks run if they did not yet."""
        self._executor = fd._executor()
        fusion = self._executor.fusion()
        hidden = fusion.hidden_outputs()
        self.name = definition_name(fd, "fd_forward")
        self.inputs = [_is_differentiable(value) for value in fusion.inputs()]
        self.outputs = [
            _is_differentiable(value)
            for value, skip in zip(fusion.outputs(), hidden, strict=True)
            if not skip
        ]
        self.writes = any(hidden)
        self._fits: Any = lambda: None  # the backward definition that was checked last

    def report(self, error: Exception, backward: Any) -> None:
        """Keep other ranks from waiting for this one, which gives up the execution.

        Those of the first program that communicates are told; all, where the forward program is on
        a mesh but local, and a function knows what is communicated.
        """
        doing = "computing gradients"
        caches = [self._executor]
        if isinstance(backward, FusionDefinition):
            caches.append(backward._executor())
        cache = next((cache for cache in caches if failure.communicates(cache)), None)
        tensors = self._executor.fusion().tensors()
        if cache is None and (len(caches) == 2 or not any(tv.has_device_mesh() for tv in tensors)):
            failure.log_once(error, doing)
        else:
            failure.report(error, doing, cache)

    def check_backward(self, backward: Any) -> None:
        """Raise unless ``backward`` can give the gradients.

        Raises:
            meshfuse.Error: a definition has a wrong number of inputs or outputs.
            TypeError: it is neither a definition nor a function.
        """
        if self._fits() is backward:
            return
        if not isinstance(backward, FusionDefinition):
            if not callable(backward):
                raise TypeError(
                    "autograd.apply: fd_backward must be a FusionDefinition or a function, but it "
                    f"is a {type(backward).__name__}."
                )
            return
        fusion = backward._executor().fusion()
        name = definition_name(backward, "fd_backward")
        given = len(fusion.inputs())
        grads, inputs = sum(self.outputs), len(self.inputs)
        if given != grads + inputs:
            refuse(
                f"{name} has {count_of(given, 'input')}, but it is given {grads + inputs} values: "
                f"gradients of the {count_of(grads, 'tensor output')} of floating type of "
                f"{self.name}, then its {count_of(inputs, 'input')}. Define inputs for all of "
                "them, in this order."
            )
        returned, wanted = fusion.hidden_outputs().count(False), sum(self.inputs)
        if returned != wanted:
            positions = ", ".join(str(i) for i, has in enumerate(self.inputs) if has) or "none"
            refuse(
                f"{name} has {count_of(returned, 'output')}, but {self.name} has "
                f"{count_of(wanted, 'tensor input')} of floating type (positions: {positions}). "
                "Add their gradients as outputs, in this order, or pass a function that returns "
                "None for some of them."
            )
        self._fits = weakref.ref(backward)

    def check_overwritten(self, backward: Any, inputs: Sequence[Any]) -> None:
        """Raise if ``backward`` is a definition that writes into an input that requires grad.

        Raises:
            meshfuse.Error: it does.
        """
        if not isinstance(backward, FusionDefinition):
            return
        before = sum(self.outputs)
        overwritten = overwritten_inputs(backward)
        for position, value in enumerate(inputs):
            if position + before in overwritten and getattr(value, "requires_grad", False):
                refuse(
                    f"{definition_name(backward, 'fd_backward')} writes a result into input "
                    f"{position} of {self.name}, which requires grad and belongs to the "
                    "caller. Add the result as an ordinary output, or leave it out."
                )


def refuse(fact: str) -> NoReturn:
    """Raise ``Error``."""
    raise Error(f"autograd.apply: {fact}")


def count_of(number: int, what: str) -> str:
    """Return such as "1 input", "2 inputs"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def signature_of(fd: FusionDefinition) -> Signature:
    """Return the signature of a definition; it is made once."""
    known: Signature | None = fd.__dict__.get("_gradient_signature")
    if known is None:
        known = Signature(fd)
        fd.__dict__["_gradient_signature"] = known
    return known


def overwritten_inputs(fd: FusionDefinition) -> frozenset[int]:
    """Return the positions of inputs whose memory takes a result; found once."""
    known: frozenset[int] | None = fd.__dict__.get("_overwritten_inputs")
    if known is None:
        fusion = fd._executor().fusion()
        known = frozenset()
        if any(fusion.hidden_outputs()):
            targets = parse(fusion.ir()).overwritten()
            known = frozenset(
                position
                for position, value in enumerate(fusion.inputs())
                if isinstance(value, TensorView) and value.name in targets
            )
        fd.__dict__["_overwritten_inputs"] = known
    return known


def definition_name(fd: FusionDefinition, role: str) -> str:
    """Return how messages call a definition: by its argument, class, inputs and outputs."""
    fusion = fd._executor().fusion()
    kind = "" if type(fd) is FusionDefinition else f"{type(fd).__name__}: "
    inputs, outputs = (_names(values) for values in (fusion.inputs(), fusion.outputs()))
    return f"{role} ({kind}{inputs} -> {outputs})"


def _names(values: Sequence[TensorView | Scalar]) -> str:
    names = [v.name if isinstance(v, TensorView) else str(v) for v in values]
    return ", ".join(names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"])


def backward_name(backward: Any) -> str:
    """Return how messages call what computes gradients."""
    if isinstance(backward, FusionDefinition):
        return definition_name(backward, "fd_backward")
    return str(getattr(backward, "__qualname__", type(backward).__name__))


def _is_differentiable(value: TensorView | Scalar) -> bool:
    return isinstance(value, TensorView) and value.dtype() in _DIFFERENTIABLE
