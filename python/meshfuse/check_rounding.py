# SPDX-License-Identifier: BSD-3-Clause
"""By how much rounding may move the results of a program: a part of ``check``.

The program runs in float64 while its inputs, and what its operations round, move by about half a
step of the program's coarsest type; the results are then watched. This is the first-order error
analysis of Higham, Accuracy and Stability of Numerical Algorithms (2002), chapters 2 and 3, by
sampling: every operation gives the exact result of its operands times 1 + delta. Inputs alone
would not do: ``sum(x - mean(x))`` is 0 for any ``x``, and its rounding is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from ._C import Error
from .check_inputs import DTYPES
from .program_text import Axis, Program, Statement, Tensor, in_double
from .simulation import simulate

if TYPE_CHECKING:
    from .definition import FusionDefinition

_SAMPLES = 8  # fewer: all of them may leave an element where it is by chance
_SHAKEN = {"f64", "f32", "f16", "bf16", "c64", "c128"}  # types that mul takes


class Rounding:
    """A program alone, in float64 where its ops allow that, and the steps that it rounds."""

    def __init__(self, bare: Program) -> None:
        """Read a program without meshes."""
        self.bare = bare
        self.statements = bare.inputs()
        self._shaken: dict[frozenset[str], FusionDefinition | None] = {}

    @cached_property
    def epsilon(self) -> float:
        """The step of the coarsest floating-point type that the program has; 0: it has none."""
        types = {DTYPES[t.dtype] for t in self.bare.tensors().values() if t.dtype in DTYPES}
        steps = [torch.finfo(t).eps for t in types if t.is_floating_point or t.is_complex]
        return max(steps, default=0.0)

    @cached_property
    def _is_double(self) -> bool:
        return _read(in_double(self.bare)) is not None

    @cached_property
    def _program(self) -> Program:
        return in_double(self.bare) if self._is_double else self.bare

    @cached_property
    def _alone(self) -> FusionDefinition | None:
        return _read(self._program)

    @cached_property
    def _made(self) -> tuple[str, ...]:
        """Names of the tensors that operations make."""
        return tuple(
            name for s in self._program.statements if s.call and s.tensors for name in s.names
        )

    @cached_property
    def _in_steps(self) -> FusionDefinition | None:
        """The program that returns the result of every operation."""
        return _read(replace(self._program, results=self._made))

    def moved(self, inputs: Sequence[Any], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return for every element of the results by how much rounding moves it.

        That is the largest of: the distance between the results in the program's types and in
        float64, and the changes of the latter when inputs and intermediate results move.

        Args:
            inputs: Global inputs.
            wanted: The results of the program alone, in its own types.
        """
        exact_inputs = [_widened(x) if self._is_double else x for x in inputs]
        exact = self._run(self._alone, exact_inputs) or wanted
        moved = [(wide(w) - wide(e)).abs() for w, e in zip(wanted, exact, strict=True)]
        step = self.epsilon / (2 if self._is_double else 1)
        values = self._values(exact_inputs)
        program = self._shaking(frozenset(values))
        for sample in range(_SAMPLES):
            generator = torch.Generator().manual_seed(sample)
            near = [_nudged(x, step, generator) for x in exact_inputs]
            # A factor of 1 + delta for every element of what an operation rounds.
            factors = [_nudged(torch.ones_like(v), step, generator) for v in values.values()]
            found = self._run(program, [*near, *factors]) or self._run(self._alone, near)
            for k, other in enumerate(found or exact):
                change = (wide(other) - wide(exact[k])).abs()
                moved[k] = torch.maximum(moved[k], change)
        return moved

    def _run(
        self, program: FusionDefinition | None, inputs: list[Any]
    ) -> list[torch.Tensor] | None:
        if program is None:
            return None
        try:
            copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
            return run_alone(program, declared(self.statements, copies))
        except Exception:  # an op may lack float64, or be at the edge of its domain
            return None

    def _values(self, inputs: list[Any]) -> dict[str, torch.Tensor]:
        """Return the intermediate results that are rounded, by name.

        An operation whose results are elements of its operands only moves or selects them: that
        is exact, and a comparison of its result with them must not be disturbed.
        """
        results = self._run(self._in_steps, inputs)
        if results is None:
            return {}
        known = dict(zip(self._made, results, strict=True))
        known.update(
            (s.names[0], x)
            for s, x in zip(self.statements, inputs, strict=True)
            if isinstance(x, torch.Tensor)
        )
        rounded: dict[str, torch.Tensor] = {}
        for statement in self._program.statements:
            if statement.call is None:
                continue
            read = [known[name] for name in statement.mentions() if name in known]
            for name, tensor in zip(statement.names, statement.tensors, strict=False):
                if tensor.dtype in _SHAKEN and read and not _expanded(tensor):
                    if not _all_among(known[name], read):
                        rounded[name] = known[name]
        return rounded

    def _shaking(self, names: frozenset[str]) -> FusionDefinition | None:
        """Return the program in which these tensors are multiplied by further inputs."""
        if names not in self._shaken:
            ordered = [name for name in self._made if name in names]
            self._shaken[names] = _read(_multiplied(self._program, ordered)) if ordered else None
        return self._shaken[names]


def _multiplied(program: Program, names: list[str]) -> Program:
    factors: list[Statement] = []
    statements: list[Statement] = []
    for statement in program.statements:
        hit = [name for name in statement.names if statement.call and name in names]
        renamed = tuple(f"exact_{n}" if n in hit else n for n in statement.names)
        statements.append(replace(statement, names=renamed))
        for name in hit:
            made = statement.tensors[statement.names.index(name)].without_reductions()
            factor = _input_like(f"factor_{name}", made)
            factors.append(factor)
            call = f"mul(exact_{name}, {factor.names[0]})"
            statements.append(Statement((name,), call, (made,)))
    order = {f"factor_{name}": place for place, name in enumerate(names)}
    factors.sort(key=lambda statement: order[statement.names[0]])
    inputs = [s for s in statements if s.call is None]
    rest = [s for s in statements if s.call is not None]
    return replace(program, statements=(*inputs, *factors, *rest))


def _input_like(name: str, tensor: Tensor) -> Statement:
    """Return an input of a tensor's type and number of axes; sizes that are not numbers are its."""
    shown = [axis for axis in tensor.logical() if axis.kind != "r"]
    axes = tuple(
        Axis(
            "b" if axis.kind == "b" else "i",
            place,
            axis.extent if axis.extent.isdigit() else f"{name}.{place}",
        )
        for place, axis in enumerate(shown)
    )
    return Statement((name,), None, (Tensor(tensor.dtype, axes),))


def run_alone(fd: FusionDefinition, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Run a program without meshes on one device."""
    with simulate(1) as sim:
        return fd._executor().run_all([list(inputs)], sim._communicator)[0]


def declared(statements: Sequence[Statement], values: Sequence[Any]) -> list[Any]:
    """Give inputs the stride 0 on the axes that the program declares to be expanded.

    Values behind those of ``statements`` are left as they are.
    """
    ready = list(values)
    for number, statement in enumerate(statements):
        value = ready[number]
        if not isinstance(value, torch.Tensor) or not statement.tensors:
            continue
        shown = [axis for axis in statement.tensors[0].logical() if axis.kind != "r"]
        for place, axis in enumerate(shown):
            if axis.expanded is not None:
                value = value.narrow(place, 0, min(1, value.size(place))).expand(value.shape)
        ready[number] = value
    return ready


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _read(program: Program) -> FusionDefinition | None:
    from .definition import parse_ir

    try:
        return parse_ir(str(program))
    except Error:
        return None


def _expanded(tensor: Tensor) -> bool:
    return any(axis.expanded is not None for axis in tensor.logical())


def _all_among(made: torch.Tensor, read: list[torch.Tensor]) -> bool:
    """Whether every element is an element of the operands, signs aside."""
    sources = torch.cat([wide(x).abs().flatten() for x in read]).sort().values
    if sources.numel() == 0:
        return made.numel() == 0
    values = wide(made).abs().flatten()
    places = torch.searchsorted(sources, values).clamp_(max=sources.numel() - 1)
    return bool((sources[places] == values).all())


def _widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return wide(value) if value.is_floating_point() or value.is_complex() else value


def _nudged(value: Any, step: float, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not (value.is_floating_point() or value.is_complex()):
        return value
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    noise += torch.where(noise < 0, -1, 1)  # less than one step of float64 would round to none
    return (value * (1 + step * noise)).to(value.dtype)
