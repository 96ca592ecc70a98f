# SPDX-License-Identifier: BSD-3-Clause
"""Scripts that define a program again and execute it on inputs of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._C import DataType, Fusion
from .package_version import version
from .python_text import INDENT, function_text
from .python_values import float_text

CLASS_STYLE = "nvfuser"  # the _api_name of class-style definitions


@dataclass(frozen=True)
class TensorKind:
    """What a script needs to know of a tensor to make one like it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorKind:
        """Describe a tensor."""
        size, stride = tuple(tensor.size()), tuple(tensor.stride())
        return cls(size, stride, tensor.dtype, str(tensor.device))

    def __str__(self) -> str:
        """Return a Python expression that makes a tensor of this kind, with random values."""
        like = f"dtype={self.dtype}, device='{self.device}'"
        if _is_contiguous(self.size, self.stride):
            return f"torch.testing.make_tensor({self.size}, {like})"
        extent = [(n - 1) * s for n, s in zip(self.size, self.stride, strict=True)]
        count = 1 + sum(extent) if 0 not in self.size else 0
        if self.dtype.is_floating_point and self.dtype.itemsize == 1:
            made = f"torch.randn({count}, device='{self.device}').to({self.dtype})"
        elif self.dtype.is_floating_point or self.dtype.is_complex:
            made = f"torch.randn({count}, {like})"
        else:
            top = 2 if self.dtype == torch.bool else 10
            made = f"torch.randint(0, {top}, ({count},), {like})"
        return f"{made}.as_strided({self.size}, {self.stride})"


def input_kinds(inputs: Iterable[Any]) -> list[Any]:
    """Return the inputs with tensors replaced by their kinds; lists inside are flattened."""
    kinds: list[Any] = []
    for value in inputs:
        if isinstance(value, list | tuple):
            kinds += input_kinds(value)
        else:
            kinds.append(TensorKind.of(value) if isinstance(value, torch.Tensor) else value)
    return kinds


def function_name(api_name: str, number: int | None, complete: bool = True) -> str:
    """Return the name that the printed function of a definition has."""
    if api_name != CLASS_STYLE:
        return "nvfuser_fusion"
    return "nvfuser_incomplete_fusion" if not complete else f"nvfuser_fusion_id{number or 0}"


def repro_script(
    fusion: Fusion, api_name: str, number: int | None, kinds: Sequence[Any] | None
) -> str:
    """Return a script that defines the program again; with ``kinds`` it executes it, too."""
    name = function_name(api_name, number)
    lines = _environment(api_name)
    lines += ["import torch", f"from {api_name} import FusionDefinition, DataType", ""]
    lines += [function_text(fusion, name, api_name == CLASS_STYLE).strip("\n"), ""]
    lines += [f"with FusionDefinition({_settings(fusion)}) as fd:", f"{INDENT}{name}(fd)"]
    if kinds is not None:
        lines += ["", "inputs = [", *(f"{INDENT}{_literal(kind)}," for kind in kinds), "]"]
        lines += ["fd.execute(inputs)"]
    return "\n".join(lines) + "\n"


def _environment(api_name: str) -> list[str]:
    """Comment lines about the machine."""
    lines = ["# CUDA devices:"]
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            lines.append(f"#  {i}: {torch.cuda.get_device_name(i)}")
    lines += [f"# torch version: {torch.__version__}", f"# cuda version: {torch.version.cuda}"]
    if api_name == CLASS_STYLE:
        lines.append(f"# {api_name} version: {version()}")
    return lines


def _settings(fusion: Fusion) -> str:
    """Return the arguments of the constructor that belong to the program."""
    wanted = [f"{name}=True" for name in ("strict", "uneven") if getattr(fusion, name)]
    if fusion.reduce_dtype != DataType.Null:
        wanted.append(f"reduce_dtype=DataType.{fusion.reduce_dtype.name}")
    return ", ".join(wanted)


def _literal(value: Any) -> str:
    if isinstance(value, complex):
        return f"complex({_exact(value.real)}, {_exact(value.imag)})"
    return _exact(value) if isinstance(value, float) else str(value)


def _exact(value: float) -> str:
    return repr(value) if abs(value) < float("inf") else float_text(value)


def _is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n == 0:
            return True
        if n != 1 and s != expected:
            return False
        expected *= n
    return True
