# SPDX-License-Identifier: BSD-3-Clause
"""Sends torch's CUDA calls of scripts to the CPU, on machines without CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CUDA = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")


class Redirection:
    """CUDA calls go to the CPU until ``stop()``, or the end of a ``with`` block."""

    def __init__(self) -> None:
        """Begin."""
        self._block: ExitStack | None = ExitStack()
        self._block.enter_context(_ToCpu())
        self._saved: list[tuple[Any, str, Any]] = []
        for name in ("set_device", "synchronize"):
            self._replace(torch.cuda, name, _do_nothing)
        self._replace(torch.cuda, "current_device", lambda: 0)
        self._replace(torch, "Generator", _Generator)
        Redirection.active += 1

    active = 0  #: number of redirections that are in force

    def stop(self) -> None:
        """Let CUDA calls be CUDA calls again."""
        if self._block is None:
            return
        self._block.close()
        self._block = None
        for owner, name, function in reversed(self._saved):
            setattr(owner, name, function)
        Redirection.active -= 1

    def __enter__(self) -> Redirection:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        self._saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)


def redirect_cuda_to_cpu() -> Redirection:
    """Send CUDA calls of this thread to the CPU: for scripts that hard-code CUDA.

    Concerned are torch functions and methods with a device ``cuda`` or ``cuda:<i>``, as
    ``torch.randn(..., device="cuda")`` and ``x.to("cuda:0")``; ``x.cuda()``; the ``device`` of
    ``execute``; ``torch.Generator``, ``torch.cuda.set_device``, ``synchronize`` and
    ``current_device``. ``torch.cuda.is_available()`` stays as it is.

    Returns:
        An object whose ``stop()`` ends it; it is a context manager, too.

    Example:
        >>> import torch
        >>> from meshfuse.compat import redirect_cuda_to_cpu
        >>> with redirect_cuda_to_cpu():
        ...     torch.ones(2, device="cuda:0").cuda().device
        device(type='cpu')
    """
    return Redirection()


def redirected(device: torch.device) -> torch.device:
    """Return the device that stands for ``device`` now."""
    return _CPU if Redirection.active and device.type == "cuda" else device


class _ToCpu(TorchFunctionMode):
    """Replaces CUDA devices among the arguments of torch's functions."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        named = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        if named.get("pin_memory"):
            named["pin_memory"] = False
        return func(*(_on_cpu(value) for value in args), **named)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str):
        return "cpu" if _CUDA.fullmatch(value) else value
    return _CPU if isinstance(value, torch.device) and value.type == "cuda" else value


def _do_nothing(device: Any = None) -> None:
    pass


_real_generator = torch.Generator


class _GeneratorType(type):
    """Makes generators of the CPU, and takes all generators for its instances."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return _real_generator(_on_cpu(device))

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _real_generator)


class _Generator(metaclass=_GeneratorType):
    """Stands for ``torch.Generator``."""
