# SPDX-License-Identifier: BSD-3-Clause
"""Kinds of torch's tensors that no program computes with: each is refused by its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import Parameter

from .exceptions import Error, UnsupportedError

_PLAIN = (torch.Tensor, Parameter)
_FAKE_MODE = torch._C._TorchDispatchModeKey.FAKE


def refuse_transforms(what: str) -> None:
    """Raise where vmap, grad, jvp or the like of torch.func is active."""
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(
            f"{what}: transforms of torch.func (vmap, grad, jvp, ...) do not reach into the "
            "operations of a definition. Use torch.autograd for gradients, and give the batch as "
            "dims of the inputs."
        )


def refuse_batched(what: str, grads: Iterable[torch.Tensor | None]) -> None:
    """Raise where a backward pass computes many gradients at once.

    Raises:
        meshfuse.UnsupportedError: vmap runs over it, or autograd's own form of vmap.
    """
    refuse_transforms(what)
    for grad in grads:
        if grad is not None and torch._C._functorch.is_legacy_batchedtensor(grad):
            raise UnsupportedError(
                f"{what}: its backward pass was given a batch of gradients "
                "(is_grads_batched=True, or vectorize=True of jacobian or hessian), which does not "
                "reach into the operations of a definition. Call torch.autograd.grad once for each "
                "gradient."
            )


def refuse_tangents(what: str, tensors: Iterable[tuple[str, Any]]) -> None:
    """Raise where a tensor has a tangent, which results would not have.

    Args:
        what: What messages begin with.
        tensors: Name and value of each; values of other types pass.

    Raises:
        meshfuse.UnsupportedError: one of them is a dual tensor.
    """
    if forward_ad._current_level < 0:  # outside of every dual_level
        return
    for name, value in tensors:
        if isinstance(value, torch.Tensor) and _tangent(value) is not None:
            raise UnsupportedError(
                f"{what}: {name} has a tangent of forward-mode AD (torch.autograd.forward_ad or "
                "torch.func.jvp), but programs have none of their results. Use reverse mode, "
                "by meshfuse.autograd.apply or a layer of meshfuse.nn, or pass the tensor without "
                "its tangent: forward_ad.unpack_dual(x).primal."
            )


def _tangent(tensor: torch.Tensor) -> torch.Tensor | None:
    dual = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    tangent: torch.Tensor | None = dual.tangent
    return tangent


def refuse_kind(what: str, name: str, tensor: torch.Tensor) -> None:
    """Raise unless a tensor is a dense one with memory of its own type.

    Raises:
        meshfuse.Error: it is nested, sparse or quantized, or a FakeTensorMode is active.
        TypeError: it is of a class of tensors that torch operations are handed to, as a DTensor is.
    """
    kind = type(tensor)
    if tensor.is_nested:
        raise Error(
            f"{what}: {name} is a nested tensor. Pass a padded one: "
            "torch.nested.to_padded_tensor(x, 0.0)."
        )
    if kind not in _PLAIN and torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
        cure = (
            "Call it outside of FakeTensorMode, with real tensors"
            if kind.__name__ == "FakeTensor"
            else "Pass its local tensor, for a DTensor x.to_local()"
        )
        raise TypeError(f"{what}: {name} is a {kind.__name__}, not a plain tensor. {cure}.")
    if tensor.layout is not torch.strided:
        raise Error(f"{what}: {name} is sparse ({tensor.layout}). Pass x.to_dense().")
    if tensor.is_quantized:
        raise Error(f"{what}: {name} is quantized ({tensor.dtype}). Pass x.dequantize().")


def refuse_input(what: str, position: int, tensor: torch.Tensor) -> None:
    """Raise for an input that no program computes with; dense ones without a tangent pass.

    Transforms of torch.func reach into what is computed on one device, tangents included.
    """
    name = f"input {position}"
    refuse_kind(what, name, tensor)
    if not torch._C._are_functorch_transforms_active():
        refuse_tangents(what, [(name, tensor)])


def refuse_fake_mode(what: str) -> None:
    """Raise where torch makes tensors without memory.

    Raises:
        meshfuse.Error: a FakeTensorMode is active.
    """
    if not torch._C._len_torch_dispatch_stack():
        return
    if torch._C._get_dispatch_mode(_FAKE_MODE) is not None:
        raise Error(
            f"{what}: a FakeTensorMode is active, under which tensors have no memory, but the "
            "program reads and sends it. Leave the mode first."
        )
