# SPDX-License-Identifier: BSD-3-Clause
"""Definitions as functions of torch's autograd: a forward program, and one of its gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd import Function

from . import _C, failure
from .definition import FusionDefinition
from .exceptions import Error
from .gradient_signature import (
    Signature,
    backward_name,
    count_of,
    overwritten_inputs,
    refuse,
    signature_of,
)
from .simulation import flat_inputs
from .tensor_kinds import refuse_batched, refuse_fake_mode, refuse_tangents, refuse_transforms

__all__ = ["apply"]

Backward = FusionDefinition | Callable[..., Sequence[torch.Tensor | None] | torch.Tensor | None]


def apply(fd_forward: FusionDefinition, fd_backward: Backward, *inputs: Any) -> list[torch.Tensor]:
    """Execute a definition so that its outputs take part in torch autograd.

    Gradients flow from outputs that are tensors of floating or complex type to inputs that are such
    tensors. ``fd_backward`` is given the gradients of those outputs, zeros where one has none, and
    then all inputs of ``fd_forward``. It is

    - a definition, with as many outputs as ``fd_forward`` has inputs of such a type, in their
      order; or
    - a function, which returns a sequence with a gradient or None for every input of
      ``fd_forward`` (numbers, too). With one input it may return the gradient itself.

    A gradient has the local shape of its input; its type may differ, and becomes that of the input.
    A backward definition that writes results into gradients (``alias_input``) is given copies of
    these; into inputs that require grad it may not write.
    All ranks of a mesh must build the same graph and call ``backward`` alike: what it communicates
    is communicated in the order of autograd, which is then the same on all of them.

    Args:
        fd_forward: The definition to execute.
        fd_backward: What computes the gradients.
        *inputs: As for ``fd_forward.execute``.

    Returns:
        What ``fd_forward.execute(inputs)`` returns. An output that is an input is a view of it.

    Raises:
        meshfuse.Error: the definitions do not fit each other, or overwrite an input that requires
            grad; in backward, a gradient has a wrong
            shape, there is a wrong number of them, or gradients of gradients are asked for.
        meshfuse.UnsupportedError: a transform of torch.func is active, an input has a tangent of
            forward-mode AD; in backward, gradients come as a batch.
        TypeError: an argument is of the wrong type.

    Example:
        >>> import torch
        >>> from meshfuse import FusionDefinition, autograd
        >>> with FusionDefinition() as square:
        ...     x = square.define_tensor([-1])
        ...     square.add_output(square.ops.mul(x, x))
        >>> with FusionDefinition() as square_backward:
        ...     grad, x = (square_backward.define_tensor([-1]) for _ in range(2))
        ...     half = square_backward.ops.mul(grad, x)
        ...     square_backward.add_output(square_backward.ops.mul(half, 2.0))
        >>> x = torch.tensor([1.0, 3.0], requires_grad=True)
        >>> (y,) = autograd.apply(square, square_backward, x)
        >>> y.sum().backward()
        >>> x.grad
        tensor([2., 6.])
    """
    _C.communicator()  # started, so that the other ranks can be told of whatever fails
    signature = None
    try:
        if not isinstance(fd_forward, FusionDefinition):
            raise TypeError(
                "autograd.apply: fd_forward must be a FusionDefinition, but it is a "
                f"{type(fd_forward).__name__}."
            )
        signature = signature_of(fd_forward)
        refuse_transforms("autograd.apply")
        refuse_fake_mode("autograd.apply")
        signature.check_backward(fd_backward)
        if any(isinstance(value, list | tuple) for value in inputs):
            inputs = tuple(flat_inputs(inputs))
        refuse_tangents("autograd.apply", _named("input", inputs))
        if not (torch.is_grad_enabled() and any(_requires_grad(value) for value in inputs)):
            return run(fd_forward, inputs)
        signature.check_overwritten(fd_backward, inputs)
        return list(_Apply.apply(signature, fd_forward, fd_backward, *inputs))  # type: ignore[no-untyped-call]
    except Exception as error:  # in a local program, too: other ranks wait in the next one
        if signature is None:
            failure.report(error, "computing gradients")
        else:
            signature.report(error, fd_backward)
        raise


class _Apply(Function):
    """Runs the definitions for one call of ``apply``."""

    @staticmethod
    def forward(
        ctx: Any,
        signature: Signature,
        fd_forward: FusionDefinition,
        fd_backward: Backward,
        *inputs: Any,
    ) -> tuple[torch.Tensor, ...]:
        before = _values(inputs) if signature.writes else ()
        outputs = run(fd_forward, inputs)
        if before:
            inputs = _as_read(signature, inputs, before)
        ctx.mark_non_differentiable(
            *(
                out
                for out, differentiable in zip(outputs, signature.outputs, strict=True)
                if not differentiable
            )
        )
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.strides = [out.stride() for out in outputs]
        ctx.program = signature, fd_backward
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        signature, fd_backward = ctx.program
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if other is None else other for other in ctx.others]
        what = f"autograd.apply({signature.name}, ...)"
        try:
            refuse_batched(what, grads)
            refuse_tangents(what, _named("the gradient of output", grads))
            with torch.no_grad():
                of_outputs = [
                    _in_layout(grad, strides)
                    for grad, strides, differentiable in zip(
                        grads, ctx.strides, signature.outputs, strict=True
                    )
                    if differentiable
                ]
                results = _gradients(signature, fd_backward, of_outputs, inputs)
                needed = ctx.needs_input_grad[_BEFORE_INPUTS:]
                results = [g if need else None for g, need in zip(results, needed, strict=True)]
                _check_shapes(signature, fd_backward, results, inputs)
        except Exception as error:
            signature.report(error, fd_backward)
            raise
        return (
            *[None] * _BEFORE_INPUTS,
            *first_order_only(what, results, [*grads, *inputs]),
        )


def _named(what: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"{what} {position}", value) for position, value in enumerate(values)]


def _values(inputs: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the version of each input, and a copy of what may be overwritten."""
    return [
        (_version(x), x.clone() if isinstance(x, torch.Tensor) and not x.requires_grad else x)
        for x in inputs
    ]


def _as_read(
    signature: Signature, inputs: Sequence[Any], before: list[tuple[int, Any]]
) -> tuple[Any, ...]:
    """Return the inputs with the values that the program read, which backward is given."""
    found = list(inputs)
    for position, (version, copy) in enumerate(before):
        if _version(inputs[position]) == version:
            continue
        if _requires_grad(inputs[position]):
            raise Error(
                f"autograd.apply: {signature.name} writes a result into input {position}, "
                "which requires grad, so that its former value is lost for autograd. Add the "
                "result as an ordinary output, or pass the input's detach()."
            )
        found[position] = copy
    return tuple(found)


_BEFORE_INPUTS = 3  # arguments of _Apply.forward that are not the definition's inputs


def _gradients(
    signature: Signature,
    fd_backward: Backward,
    of_outputs: list[torch.Tensor],
    inputs: list[Any],
) -> list[torch.Tensor | None]:
    """Return a gradient or None for every input."""
    if isinstance(fd_backward, FusionDefinition):
        found = iter(run(fd_backward, [*_own(fd_backward, of_outputs), *inputs]))
        return [next(found) if differentiable else None for differentiable in signature.inputs]
    with without_autocast(inputs):
        results = fd_backward(*of_outputs, *inputs)
    if results is None or isinstance(results, torch.Tensor):
        results = [results]
    if len(results) != len(inputs):
        refuse(
            f"{backward_name(fd_backward)} returned {count_of(len(results), 'gradient')}, but "
            f"{signature.name} has {count_of(len(inputs), 'input')}. Return a "
            "gradient or None for each of them.",
        )
    return list(results)


def _own(fd_backward: FusionDefinition, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy the gradients that the definition overwrites: they are torch's, and may be shared."""
    overwritten = overwritten_inputs(fd_backward)
    if not overwritten:
        return grads
    return [g.clone() if i in overwritten else g for i, g in enumerate(grads)]


def _check_shapes(
    signature: Signature,
    fd_backward: Backward,
    results: list[torch.Tensor | None],
    inputs: list[Any],
) -> None:
    for position, (grad, value) in enumerate(zip(results, inputs, strict=True)):
        if grad is None:
            continue
        name = backward_name(fd_backward)
        what = f"the gradient of input {position} of {signature.name}"
        if not isinstance(grad, torch.Tensor):
            refuse(
                f"{what} that {name} returned is a {type(grad).__name__}. Return a tensor or None.",
            )
        if grad.shape != value.shape:
            refuse(
                f"{what} that {name} returned has local shape {list(grad.shape)}, but the input "
                f"has {list(value.shape)}. Sum over what was broadcast, and divide the gradient "
                "over the mesh as the input is.",
            )


def run(fd: FusionDefinition, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Execute with the types that the definition declares, also where autocast is on."""
    if not torch._C._is_any_autocast_enabled():
        return fd.execute(inputs)
    with without_autocast(inputs):
        return fd.execute(inputs)


_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def without_autocast(values: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which autocast does not reach into operations on these tensors."""
    for value in values:
        if isinstance(value, torch.Tensor):
            kind = value.device.type
            if autocast_enabled(kind):
                return torch.autocast(kind, enabled=False)
            break
    return _NOTHING


def autocast_enabled(kind: str) -> bool:
    """Return whether autocast is on for a type of devices; not all have it."""
    return is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def first_order_only(
    what: str, results: list[torch.Tensor | None], sources: list[Any]
) -> list[torch.Tensor | None]:
    """Make gradients that refuse to be differentiated, where ``create_graph`` asks for a graph."""
    if not torch.is_grad_enabled():
        return results
    roots = [x for x in sources if _requires_grad(x)]
    places = [i for i, grad in enumerate(results) if grad is not None]
    if not roots or not places:
        return results
    found = [results[i] for i in places]
    linked = _FirstOrderOnly.apply(what, len(found), *found, *roots)  # type: ignore[no-untyped-call]
    results = list(results)
    for i, grad in zip(places, linked, strict=True):
        results[i] = grad
    return results


class _FirstOrderOnly(Function):
    """The identity of some tensors, as a function of others, whose backward raises."""

    @staticmethod
    def forward(ctx: Any, what: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.what = what
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise Error(
            f"{ctx.what}: gradients of its gradients are not available: the backward pass is a "
            "program that has none of its own. Call backward or torch.autograd.grad without "
            "create_graph=True, or write this part with torch operations."
        )


def _in_layout(grad: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return the gradient in the memory order of its output, which a definition may rely on."""
    if grad.stride() == strides:
        return grad
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(
        grad
    )


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _version(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) else 0
