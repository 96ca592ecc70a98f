# SPDX-License-Identifier: BSD-3-Clause
"""Runs a program alone and on the simulated mesh, and compares: a part of ``check``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import _C
from ._C import Error, TensorView, UnsupportedError
from .check_inputs import (
    DTYPES,
    InputPlan,
    Strides,
    check_memory,
    extent_value,
    lay_out,
    random_values,
)
from .check_rounding import Rounding, declared, run_alone, wide
from .program_text import Program, Statement, parse, unsharded
from .remesh import mesh_devices
from .simulation import simulate

if TYPE_CHECKING:
    from .definition import FusionDefinition

_RANDOM_BYTES = 8  # of an element, while it is made


class Skip(Exception):
    """The inputs do not fit the program, be it on a mesh or not."""


@dataclass
class Outcome:
    """What became of one example: "equal", "differs", "raised" or "refused"."""

    kind: str
    text: str = ""
    error: Exception | None = None
    largest: float = 0.0  # absolute difference
    share: float = 0.0  # largest difference as a share of what is allowed
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the mesh gave a wrong result or an exception that is not for the user."""
        return self.kind in ("differs", "raised")


def run_on_mesh(
    fd: FusionDefinition,
    inputs: Sequence[Any],
    strides: Sequence[tuple[Any, ...] | None],
    devices: int,
) -> list[list[torch.Tensor]]:
    """Run a program on simulated devices; return each one's results, those in inputs included.

    Args:
        fd: The program.
        inputs: Global inputs.
        strides: For each input the arguments of ``lay_out`` for its parts, or None.
        devices: Number of devices.
    """
    with simulate(devices) as sim:
        parts = [
            [
                part if how is None or part.dim() != len(how[0]) else lay_out(part, *how)
                for part, how in zip(row, strides, strict=True)
            ]
            for row in sim.shard(fd, inputs)
        ]
        results = fd._executor().run_all(parts, sim._communicator)
    fusion = fd._executor().fusion()
    hidden = fusion.hidden_outputs()
    if not any(hidden):
        return results
    names = [value.name if isinstance(value, TensorView) else "" for value in fusion.inputs()]
    targets = parse(fd.ir()).overwritten()
    complete = []
    for row, inputs_of_device in zip(results, parts, strict=True):
        shown = iter(row)
        complete.append(
            [
                inputs_of_device[names.index(target)] if skip else next(shown)
                for skip, target in zip(hidden, targets, strict=True)
            ]
        )
    return complete


def expected_parts(
    fd: FusionDefinition, output: int, whole: torch.Tensor, devices: int
) -> dict[int, torch.Tensor]:
    """Return what each device must hold of an output; devices outside its mesh are left out."""
    placed = getattr(fd, "_placed", None)
    if placed is None:
        placed = fd._placed = _placed_results(fd)  # type: ignore[attr-defined]
    result = placed[output]
    if result is None:
        return dict.fromkeys(range(devices), whole)
    (tv,) = result._defined().outputs()
    assert isinstance(tv, TensorView)
    members = sorted(tv.get_device_mesh().devices)
    return {device: _C.shard_tensor(whole, tv, device) for device in members}


def _placed_results(fd: FusionDefinition) -> list[FusionDefinition | None]:
    """Return for each result a program that returns a tensor placed like it; None: no mesh."""
    from .definition import parse_ir

    compiled = parse(fd.compiled_ir())
    tensors = compiled.tensors()
    placed: list[FusionDefinition | None] = []
    for name in compiled.result_names():
        tensor = tensors.get(name)
        if tensor is None or tensor.mesh is None:
            placed.append(None)
            continue
        named = Statement(("result_of_check",), None, (tensor.without_reductions(),))
        text = str(Program((*compiled.inputs(), named), named.names))
        placed.append(parse_ir(text, uneven=fd._defined().uneven))
    return placed


class Pair:
    """A program on its mesh and the same program alone."""

    def __init__(
        self, program: Program, rtol: float | None = None, *, uneven: bool = False
    ) -> None:
        """Read both; ``rtol`` stands in for the tolerance that follows from the program."""
        from .definition import parse_ir

        self.program = program
        self.rtol = rtol
        self.uneven = uneven
        self.bare = unsharded(program)
        self.fd = parse_ir(str(program), uneven=uneven)
        self.alone = parse_ir(str(self.bare))
        meshes = [mesh_devices(mesh) for mesh in program.meshes()]
        self.devices = 1 + max((max(mesh) for mesh in meshes), default=0)
        self.statements = program.inputs()
        self.rounding = Rounding(self.bare)

    def shape(self, statement: Statement, plan: InputPlan) -> list[int]:
        """Return the sizes of an input tensor."""
        shape = [extent_value(size, plan.sizes) for size in statement.tensors[0].shape()]
        if None in shape:
            raise Skip(f"the size of {statement.names[0]} is an expression")
        return [size for size in shape if size is not None]

    def inputs(self, plan: InputPlan) -> list[Any]:
        """Return the global inputs of an example.

        Raises:
            meshfuse.Error: they do not fit into memory.
        """
        elements = [math.prod(self.shape(s, plan)) for s in self.statements if s.tensors]
        advice = "Check the program with smaller sizes."
        check_memory("check", _RANDOM_BYTES * sum(elements), self.devices, advice)
        values: list[Any] = []
        for number, statement in enumerate(self.statements):
            seed = plan.seed + number
            if statement.scalar is not None:
                dtype = DTYPES[statement.scalar]
                values.append(random_values([], dtype, seed, plan.span).item())
                continue
            tensor = statement.tensors[0]
            if tensor.dtype not in DTYPES:
                raise UnsupportedError(
                    f"check: input {statement.names[0]} is of type {tensor.dtype}, for which no "
                    "random values can be made. Check the program with another type."
                )
            how = plan.strides.get(statement.names[0])
            expanded = how.expanded if how else ()
            shape = self.shape(statement, plan)
            values.append(random_values(shape, DTYPES[tensor.dtype], seed, plan.span, expanded))
        return values

    def layouts(self, plan: InputPlan) -> list[tuple[Any, ...] | None]:
        """Return the arguments of ``lay_out`` for each input."""
        every = [plan.strides.get(statement.names[0]) for statement in self.statements]
        return [None if how is None else (how.order, how.gaps, how.expanded) for how in every]

    def expected(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run the program alone.

        Raises:
            Skip: the inputs do not fit it.
        """
        copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        try:
            return run_alone(self.alone, declared(self.statements, copies))
        except Exception as error:
            raise Skip(str(error)) from error

    def run(self, plan: InputPlan) -> Outcome:
        """Run one example and compare.

        Raises:
            Skip: the inputs do not fit the program.
        """
        return self.run_on(self.inputs(plan), self.layouts(plan), plan.sizes)

    def run_on(
        self,
        inputs: Sequence[Any],
        layouts: Sequence[tuple[Any, ...] | None],
        sizes: Mapping[str, int],
    ) -> Outcome:
        """Run on these global inputs, whose symbolic sizes are ``sizes``, and compare.

        Raises:
            Skip: the inputs do not fit the program.
        """
        wanted = self.expected(inputs)
        try:
            found = run_on_mesh(self.fd, inputs, layouts, self.devices)
        except (Error, UnsupportedError) as error:
            return Outcome("refused", str(error), error)
        except Exception as error:
            return Outcome("raised", f"{type(error).__name__}: {error}", error)
        terms = self.longest_reduction(sizes)
        roundings = self.rounding.moved(inputs, wanted)
        outcome = Outcome("equal")
        for number, (whole, rounding) in enumerate(zip(wanted, roundings, strict=True)):
            self._compare(number, whole, rounding, terms, found, outcome)
        return outcome

    def longest_reduction(self, sizes: Mapping[str, int]) -> int:
        """Return the greatest number of terms that one element of a tensor is the sum of."""
        longest = 1
        for tensor in self.program.tensors().values():
            terms = [extent_value(a.size, sizes) or 1 for a in tensor.root if a.kind == "r"]
            longest = max(longest, math.prod(terms))
        return longest

    def _compare(
        self,
        number: int,
        whole: torch.Tensor,
        rounding: torch.Tensor,
        terms: int,
        found: list[list[torch.Tensor]],
        outcome: Outcome,
    ) -> None:
        """Compare every device's part of one result, and note it in ``outcome``."""
        rtol, allowed = self.tolerance(whole, rounding, terms)
        parts = expected_parts(self.fd, number, whole, self.devices)
        limits = expected_parts(self.fd, number, allowed, self.devices)
        name = self.bare.results[number]
        for device, part in parts.items():
            got = found[device][number]
            where = f"result {number} ({name}) on device {device}"
            if got.shape != part.shape or got.dtype != part.dtype:
                outcome.kind = "differs"
                outcome.text = outcome.text or (
                    f"{where} is {got.dtype} of shape {tuple(got.shape)}, but should be "
                    f"{part.dtype} of shape {tuple(part.shape)}"
                )
                continue
            error = difference(got, part)
            limit = limits[device]
            error = torch.where(limit.isfinite(), error, torch.zeros_like(error))
            if error.numel() == 0:
                continue
            outcome.largest = max(outcome.largest, float(error.max()))
            bad = error > limit
            share = torch.where(error > 0, error / limit, torch.zeros_like(error))
            outcome.share = max(outcome.share, float(share.max()))
            if bool(bad.any()) and outcome.kind == "equal":
                at = int(share.argmax())
                outcome.kind, outcome.rtol = "differs", rtol
                finite = allowed[allowed.isfinite()]
                outcome.atol = float(finite.max()) if finite.numel() else 0.0
                index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), error.shape))
                outcome.text = (
                    f"{where} is {got.flatten()[at].item()} at {list(index)}, but should be "
                    f"{part.flatten()[at].item()} (within {float(limit.flatten()[at]):.3g}); "
                    f"{int(bad.sum())} of {bad.numel()} elements differ"
                )

    def tolerance(
        self, whole: torch.Tensor, rounding: torch.Tensor, terms: int
    ) -> tuple[float, torch.Tensor]:
        """Return rtol, and the difference that is allowed for each element; inf: not compared."""
        size = wide(whole).abs()
        if self.rtol is not None:
            finite = size[size.isfinite()]
            mean = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
            return self.rtol, (self.rtol * (size + mean)).nan_to_num(0.0, 0.0)
        growth = 1 + math.sqrt(terms)
        exact = not (whole.is_floating_point() or whole.is_complex())
        rtol = 0.0 if exact else 2 * self.rounding.epsilon * growth
        # Rounding that makes an element infinite, or not a number, leaves nothing to compare.
        unstable = ~rounding.isfinite() & size.isfinite()
        allowed = (rtol * size).nan_to_num(0.0, 0.0) + 4 * growth * rounding.nan_to_num(0.0, 0.0)
        return rtol, torch.where(unstable, torch.inf, allowed)


def difference(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Return |got - want| in float64; 0 where both are nan or the same infinity, else inf there."""
    left, right = wide(got), wide(want)
    same = (got == want) | (left.isnan() & right.isnan())
    error = (left - right).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    return torch.where(same, torch.zeros_like(error), error)


__all__ = ["Outcome", "Pair", "Skip", "Strides", "expected_parts", "run_alone", "run_on_mesh"]
