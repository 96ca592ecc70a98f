# SPDX-License-Identifier: BSD-3-Clause
"""The way of ``execute`` that is not the short one: a first call, or one with options."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import failure, options
from ._C import (
    Error,
    Fusion,
    FusionExecutorCache,
    TensorView,
    UnsupportedError,
    pipeline_dumps,
)
from .compat.cuda_to_cpu import redirected
from .progress import busy
from .python_text import function_text
from .repro import input_kinds

if TYPE_CHECKING:
    from .definition import FusionDefinition


@dataclass(frozen=True)
class Settings:
    """Options of one call of ``execute``."""

    device: int | str | torch.device | None = None
    contiguous_outputs: bool = False
    ignore_user_schedule: bool = False
    enable: Sequence[str] = ()
    disable: Sequence[str] = ()
    capture_debug_output: bool = False
    print_repro: bool = False
    save_repro_inputs: bool = False

    @property
    def reads_inputs(self) -> bool:
        """Whether inputs are looked at before they are executed."""
        return self.print_repro or self.save_repro_inputs or self.device is not None


def execute(fd: FusionDefinition, inputs: Iterable[Any], settings: Settings) -> list[torch.Tensor]:
    """Define the program if need be, run it, and do what the options ask."""
    options.check_options(settings.enable, settings.disable)
    cache = fd._executor(settings.ignore_user_schedule)
    if settings.print_repro:
        print(fd.repro_script_for(inputs))
    if settings.save_repro_inputs:
        fd._kinds = input_kinds(inputs)
    first = fd._run is None
    with busy("compiling and executing") if first else contextlib.nullcontext():
        results = run(cache, inputs, settings)
    if first:
        fd.fec = cache
        fd._run = cache.runner()
    if settings.capture_debug_output:
        fd._debug_output = pipeline_dumps(cache.fusion()) + _dump(cache, inputs)
    elif first:
        print(_dump(cache, inputs), end="")
    return results


def run(
    cache: FusionExecutorCache, inputs: Iterable[Any], settings: Settings
) -> list[torch.Tensor]:
    """Run a program and do what the options ask."""
    _check_settings(cache.fusion(), settings)
    device = None if settings.device is None else _device(settings.device)
    if device is not None:
        inputs = list(inputs)
        _check_device(inputs, device)
    try:
        results = cache.run(inputs)
        if settings.contiguous_outputs:
            results = _row_major(cache.fusion(), results)
        if device is not None and not any(isinstance(x, torch.Tensor) for x in inputs):
            results = [result.to(device) for result in results]
    except Exception as error:
        failure.mark_told(error, cache)
        raise
    return results


def check_user_schedule(fd: FusionDefinition, ignore: bool) -> None:
    """Refuse, or ignore with a warning, a class that schedules CUDA kernels by hand."""
    if getattr(fd, "schedule", None) is None:
        return
    if getattr(fd, "multidevice_schedule", None) is not None:
        raise AssertionError(
            "A definition has either schedule() or multidevice_schedule(), not both. "
            "Remove schedule(): it controls CUDA kernels."
        )
    name = type(fd).__name__
    if not ignore and os.environ.get("MESHFUSE_IGNORE_USER_SCHEDULE") != "1":
        raise UnsupportedError(
            f"{name}.schedule() controls a generated CUDA kernel. meshfuse evaluates every "
            "operation through ATen, so there is none. Remove the method, or pass "
            "override_user_schedule=True to ignore it; results are the same."
        )
    warnings.warn(f"{name}.schedule() is ignored: meshfuse has no CUDA kernels.", stacklevel=4)


def _check_settings(fusion: Fusion, settings: Settings) -> None:
    options.check_options(settings.enable, settings.disable)
    enable = options.environment("ENABLE") | set(settings.enable)
    disable = options.environment("DISABLE") | set(settings.disable)
    if not ("fuse_matmul" in enable and "matmul_expr_eval" in disable):
        return
    if any(expr.op in ("matmul", "linear") for expr in fusion.exprs()):
        raise Error(
            "Can not find a scheduler to schedule fusion segment: matmul_expr_eval is disabled, "
            "and meshfuse has no CUDA matmul kernels. Do not disable it."
        )


def _device(device: int | str | torch.device) -> torch.device:
    if isinstance(device, int):
        if device > 255:
            raise Error(f"Maximum device index is 255, but device is {device}.")
        return redirected(torch.device("cuda", device))
    return redirected(torch.device(device))


def _check_device(inputs: Iterable[Any], device: torch.device) -> None:
    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            continue
        scalar = value.dim() == 0 and value.device.type == "cpu"
        index_fits = device.index is None or device.index == value.device.index
        if not scalar and not (value.device.type == device.type and index_fits):
            raise Error(
                "Inputs are not all on the same device or don't match selection! "
                f"Input {position} is on {value.device}, device is {device}."
            )


def _row_major(fusion: Fusion, results: list[torch.Tensor]) -> list[torch.Tensor]:
    hidden = fusion.hidden_outputs()
    visible = [v for v, skip in zip(fusion.outputs(), hidden, strict=True) if not skip]
    return [
        result.contiguous() if isinstance(v, TensorView) and not v.has_allocation() else result
        for v, result in zip(visible, results, strict=True)
    ]


def _dump(cache: FusionExecutorCache, inputs: Iterable[Any]) -> str:
    """Return what MESHFUSE_DUMP asks for."""
    wanted = options.environment("DUMP")
    fusion = cache.fusion()
    texts: dict[str, Callable[[], str]] = {
        "fusion_ir": fusion.ir,
        "fusion_ir_original": fusion.ir,
        "fusion_ir_math": fusion.print_math,
        "fusion_ir_preseg": cache.compiled_ir,
        "segmented_fusion": cache.compiled_ir,
        "host_ir": cache.plan,
        "communication": lambda: _communications(cache.plan()),
        "fusion_args": lambda: "\n".join(map(str, input_kinds(inputs))),
        "python_definition": lambda: function_text(fusion, "nvfuser_fusion"),
    }
    return "".join(f"{text()}\n" for name, text in texts.items() if name in wanted)


def _communications(plan: str) -> str:
    kinds = ("reduce", "gather", "scatter", "all-to-all", "broadcast", "send", "exchange")
    return "\n".join(line for line in plan.splitlines() if any(kind in line for kind in kinds))
