# SPDX-License-Identifier: BSD-3-Clause
"""Comparison of results with references, within what rounding may do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from ._C import Error, Fusion, FusionExecutorCache, parse_fusion
from .check_inputs import DTYPES, extent_value
from .program_text import Program, parse, unsharded

Tolerances = list[tuple[float, float]]


def get_val_tolerances(fusion: Fusion, args: Iterable[Any]) -> Tolerances:
    """Return (atol, rtol) of every output: what rounding may do on inputs of the order of 1.

    They follow from the coarsest floating-point type and the longest chain of reductions that lead
    to the output; outputs of integers have (0, 0).

    Args:
        fusion: The program.
        args: Inputs, for sizes that the program leaves open.
    """
    program = parse(fusion.ir())
    sizes = _sizes(program, list(args))
    terms, steps = _terms_and_steps(program, sizes)
    found = []
    for name in program.result_names():
        step = steps.get(name, torch.finfo(torch.float64).eps)
        growth = 1 + math.sqrt(terms.get(name, 1))
        found.append((4 * step * growth, 4 * step * growth))
    return found


def validate_with_auto_inferred_outputs(
    fusion: Fusion, outputs: Sequence[torch.Tensor], args: Iterable[Any]
) -> None:
    """Compare outputs with those of the program without its schedule, on the same inputs.

    Raises:
        AssertionError: an output differs by more than rounding explains.
        meshfuse.Error: the program runs on several devices, so that its inputs are parts.
    """
    args = list(args)
    compare(fusion, outputs, _alone(fusion, args), args)


def compare(
    fusion: Fusion,
    outputs: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    args: Iterable[Any],
) -> None:
    """Compare outputs with references.

    Raises:
        AssertionError: they differ in number, shape, type or by more than rounding explains.
    """
    assert len(outputs) == len(references), (
        f"validate: there are {len(outputs)} outputs, but {len(references)} references"
    )
    shown = zip(fusion.hidden_outputs(), get_val_tolerances(fusion, args), strict=True)
    visible = [tolerance for hidden, tolerance in shown if not hidden]
    for k, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        atol, rtol = visible[k]
        torch.testing.assert_close(
            output,
            torch.as_tensor(reference).to(output.device),
            atol=atol,
            rtol=rtol,
            equal_nan=True,
            msg=partial("validate: output {} is not its reference. {}".format, k),
        )


def _alone(fusion: Fusion, args: list[Any]) -> list[torch.Tensor]:
    """Run the program without schedule and meshes."""
    program = parse(fusion.ir())
    if any(math.prod(tv.get_device_mesh().shape) > 1 for tv in fusion.tensors() if _placed(tv)):
        raise Error(
            "validate: the program runs on several devices, so its inputs are parts of tensors. "
            "Give reference_outputs, or use fd.check()."
        )
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    return FusionExecutorCache(parse_fusion(str(unsharded(program)))).run(copies)


def _placed(tv: Any) -> bool:
    return bool(tv.has_device_mesh())


def _sizes(program: Program, args: list[Any]) -> dict[str, int]:
    """Return the open sizes by name, from the inputs."""
    found = {}
    for statement, value in zip(program.inputs(), args, strict=False):
        if isinstance(value, torch.Tensor):
            for axis, n in enumerate(value.shape):
                found[f"{statement.names[0]}.{axis}"] = n
    return found


def _terms_and_steps(
    program: Program, sizes: dict[str, int]
) -> tuple[dict[str, int], dict[str, float]]:
    """Return for every tensor how many terms its sums have, and its coarsest rounding step."""
    terms: dict[str, int] = {}
    steps: dict[str, float] = {}
    for statement in program.statements:
        sources = [name for name in statement.mentions() if name in terms]
        before = max((terms[name] for name in sources), default=1)
        coarsest = max((steps[name] for name in sources), default=0.0)
        for name, tensor in zip(statement.names, statement.tensors, strict=False):
            reduced = [axis.extent for axis in tensor.root if axis.kind == "r"]
            count = math.prod(extent_value(extent, sizes) or 1 for extent in reduced)
            terms[name] = before * max(1, count)
            steps[name] = max(coarsest, _step(tensor.dtype))
    return terms, steps


def _step(dtype: str) -> float:
    kind = DTYPES.get(dtype)
    if kind is None or not (kind.is_floating_point or kind.is_complex):
        return 0.0
    return float(torch.finfo(kind).eps)
