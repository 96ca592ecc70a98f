# SPDX-License-Identifier: BSD-3-Clause
"""A program as a Python function that defines it again, its schedule included."""

from __future__ import annotations

from collections.abc import Iterator

from ._C import Fusion
from .program_text import Program, Statement, parse, split_outside
from .python_schedule import ScheduleText, input_arguments, mesh_call, needed_imports
from .python_values import ValueText, define_scalar_text, dtype_text, number_in

INDENT = "    "


def function_text(fusion: Fusion, name: str, numbered: bool = False) -> str:
    """Return a function that adds the program to a definition.

    Args:
        fusion: The program; operations that no output needs are left out.
        name: Name of the function.
        numbered: Count tensors, scalars and constants together, as class-style programs are
            printed (``T0``, ``S1``), and not tensors and symbolic scalars apart (``tv0``, ``c0``).
    """
    writer = _Writer(parse(fusion.ir()), numbered)
    body = writer.lines()
    head = f"def {name}(fd : FusionDefinition) -> None :"
    lines = [head, *(INDENT + line for line in body or ["pass"])]
    return ("\n" if numbered else "") + "\n".join(lines) + "\n"


class _Names:
    """Hands out names of variables."""

    def __init__(self, numbered: bool) -> None:
        self._numbered = numbered
        self._tensors = 0
        self._scalars = 0

    def tensor(self) -> str:
        """Return the next name of a tensor."""
        self._tensors += 1
        if self._numbered:
            return f"T{self._tensors + self._scalars - 1}"
        return f"tv{self._tensors - 1}"

    def scalar(self) -> str:
        """Return the next name of a scalar."""
        self._scalars += 1
        if self._numbered:
            return f"S{self._tensors + self._scalars - 1}"
        return f"c{self._scalars - 1}"


class _Writer:
    """Writes the lines of the function."""

    def __init__(self, program: Program, numbered: bool) -> None:
        self._program = program
        self._halves = _halves(program)
        self._numbered = numbered
        self._names = _Names(numbered)
        self._constants: dict[tuple[str, str], str] = {}
        self._known: dict[str, str] = {}
        self._values = ValueText(self._known, self._constant if numbered else None)
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        """Return the body: inputs, operations, outputs, schedule."""
        for statement in self._program.inputs():
            self._input(statement)
        for statement in self._program.statements:
            if statement.call is not None and not self._is_half(statement):
                self._operation(statement)
        names, overwritten = self._program.result_names(), self._program.overwritten()
        for name, alias in zip(names, overwritten, strict=True):
            self._output(name, alias)
        schedule = list(self._schedule())
        return [*needed_imports(schedule), *self._lines, *schedule]

    def _is_half(self, statement: Statement) -> bool:
        return statement.names[0] in self._halves.values()

    def _input(self, statement: Statement) -> None:
        if statement.scalar is not None:
            name = self._names.scalar()
            call = f"fd.define_scalar(None, dtype={dtype_text(statement.scalar)})"
        else:
            (tensor,) = statement.tensors
            name = self._names.tensor()
            arguments, comma, order = input_arguments(tensor).partition(", stride_order")
            call = (
                f"fd.define_tensor({arguments}, dtype={dtype_text(tensor.dtype)}, "
                f"is_cpu={tensor.cpu}{comma}{order})"
            )
        self._known[statement.names[0]] = name
        self._lines.append(f"{name} = {call}")

    def _operation(self, statement: Statement) -> None:
        call = statement.call or ""
        if statement.names[0] in self._halves:  # the whole reduction again
            call = self._statement(self._halves[statement.names[0]]).call or ""
        op, _, rest = call.partition("(")
        arguments = []
        for part in split_outside(rest[:-1], ","):
            keyword, value = self._values.argument(part)
            arguments.append(value if keyword is None else f"{keyword}={value}")
        names = [self._names.tensor() for _ in statement.names]
        self._known.update(zip(statement.names, names, strict=True))
        self._lines.append(f"{', '.join(names)} = fd.ops.{op}({', '.join(arguments)})")

    def _output(self, value: str, alias: str) -> None:
        constant = number_in(value)
        if constant is None:
            text = self._values.value(value)
        elif self._numbered:
            text = self._constant(*constant)
        else:
            text = define_scalar_text(*constant)
        more = f", {self._known[alias]}" if alias else ""
        self._lines.append(f"fd.add_output({text}{more})")

    def _constant(self, value: str, dtype: str) -> str:
        if (value, dtype) not in self._constants:
            name = self._constants[value, dtype] = self._names.scalar()
            self._lines.append(f"{name} = {define_scalar_text(value, dtype)}")
        return self._constants[value, dtype]

    def _schedule(self) -> Iterator[str]:
        """Write meshes, then what was done to each tensor in order of definition."""
        meshes = {mesh: f"mesh{i or ''}" for i, mesh in enumerate(self._program.meshes())}
        for mesh, name in meshes.items():
            yield f"{name} = {mesh_call(mesh)}"
        for statement in self._program.statements:
            for name, tensor in zip(statement.names, statement.tensors, strict=False):
                if self._is_half(statement):
                    continue
                if name in self._halves:
                    yield from self._rfactor(name)
                part = ScheduleText(self._known[name], tensor, self._values, statement.call is None)
                part.schedule_steps(meshes.get(tensor.mesh or ""))
                yield from part.lines
                if name in self._halves:
                    yield from self._half_schedule(meshes, name)

    def _rfactor(self, name: str) -> Iterator[str]:
        half = self._statement(self._halves[name])
        steps = ScheduleText(self._known[name], half.tensors[0], self._values, False)
        axes = steps.definition_steps()
        self._known[half.names[0]] = self._names.tensor()
        yield from steps.lines
        yield f"{self._known[half.names[0]]} = {self._known[name]}.rfactor(axes={axes})"

    def _half_schedule(self, meshes: dict[str, str], name: str) -> Iterator[str]:
        half = self._statement(self._halves[name])
        (tensor,) = half.tensors
        steps = ScheduleText(self._known[half.names[0]], tensor, self._values, False)
        steps.definition_steps()
        steps.lines.clear()
        steps.schedule_steps(meshes.get(tensor.mesh or ""))
        yield from steps.lines

    def _statement(self, name: str) -> Statement:
        return next(s for s in self._program.statements if s.names[0] == name)


def _halves(program: Program) -> dict[str, str]:
    """Return, by the result of a reduction that an rfactor cut in two, its first half."""
    parts = [s.names[0] for s in program.statements if s.call and s.tensors[0].item("logical")]
    readers = {
        part: [s for s in program.statements if s.call and part in s.mentions()] for part in parts
    }
    return {using[0].names[0]: part for part, using in readers.items() if len(using) == 1}
