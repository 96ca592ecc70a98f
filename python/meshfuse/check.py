# SPDX-License-Identifier: BSD-3-Clause
"""``FusionDefinition.check``: does a program give on a mesh what it gives alone?"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._C import DeviceMesh, Error
from .check_inputs import (
    InputPlan,
    extent_value,
    fixed_sizes,
    lay_out,
    plain_strides,
    random_strides,
    random_values,
    sizes_that_meet,
    units,
)
from .check_run import Outcome, Pair, Skip, expected_parts, run_alone, run_on_mesh
from .limits import MAX_DEVICES, cut
from .program_text import parse
from .progress import tracked
from .remesh import mesh_devices, remesh

if TYPE_CHECKING:
    from .definition import FusionDefinition

__all__ = [
    "CheckFailure",
    "CheckReport",
    "check",
    "expected_parts",
    "lay_out",
    "random_values",
    "run_alone",
    "run_on_mesh",
]

# What integer inputs hold, tried in this order until the program alone accepts them.
_SPANS = ((-8, 8), (0, 8), (0, 1), (0, 0))


class CheckFailure(AssertionError):
    """A program gives another result on the mesh than alone.

    Attributes:
        script: Python text that shows it, by itself.
        sizes: The symbolic sizes of the smallest example found.
        program: The smallest program found, in text form.
    """

    def __init__(self, message: str, script: str, program: str, sizes: dict[str, int]) -> None:
        """Hold the shrunk example."""
        super().__init__(message)
        self.script, self.program, self.sizes = script, program, sizes


@dataclass
class CheckReport:
    """What ``check`` ran.

    Attributes:
        mesh: The meshes of the program, in text form.
        examples: Number of examples whose results were compared.
        sizes: The symbolic sizes of each of them.
        refused: Sizes and message of each example that the mesh refused with an ``Error``.
        skipped: Number of examples whose inputs the program does not accept alone either.
        max_error: Largest absolute difference of an element.
        max_share: Largest difference of an element as a share of what is allowed for it.
    """

    mesh: str
    examples: int = 0
    sizes: list[dict[str, int]] = field(default_factory=list)
    refused: list[tuple[dict[str, int], str]] = field(default_factory=list)
    skipped: int = 0
    max_error: float = 0.0
    max_share: float = 0.0

    def __str__(self) -> str:
        """Return the report as text of a few lines."""
        lines = [
            f"check: {self.examples} examples on {self.mesh or 'no mesh'} equal the program alone",
            f"  largest difference {self.max_error:.3g}, "
            f"{100 * self.max_share:.2g} % of what rounding may do",
        ]
        for name in self.sizes[0] if self.sizes else ():
            found = sorted({sizes[name] for sizes in self.sizes})
            lines.append(f"  {name}: {', '.join(map(str, found))}")
        if self.skipped:
            lines.append(f"  {self.skipped} examples with inputs that the program does not accept")
        for message in dict.fromkeys(message for _, message in self.refused):
            count = sum(message == other for _, other in self.refused)
            lines.append(f"  {count} examples refused: {message.splitlines()[0]}")
        return "\n".join(lines)


def check(
    fd: FusionDefinition,
    mesh: int | Sequence[int] | DeviceMesh | None = None,
    rtol: float | None = None,
    examples: int = 20,
    seed: int = 0,
) -> CheckReport:
    """Compare a program on the simulated mesh with itself alone; see ``FusionDefinition.check``."""
    if examples < 1:
        raise Error(f"check: examples is {examples}. Give a number of at least 1.")
    program = parse(fd.ir())
    if mesh is not None:
        program = remesh(program, device_mesh(mesh, "check"))
    return _Search(Pair(program, rtol, uneven=fd._defined().uneven), seed).run(examples)


def device_mesh(mesh: int | Sequence[int] | DeviceMesh, caller: str) -> DeviceMesh:
    """Return the mesh of a shape, on the first devices.

    Raises:
        meshfuse.Error: it has no sizes, too many, one below 1, or more than 1048576 devices.
        TypeError: it is neither a mesh nor a shape.
    """
    if isinstance(mesh, DeviceMesh):
        return mesh
    advice = "Give 1 to 3 sizes of at least 1, or a DeviceMesh."
    sizes: object = [mesh] if isinstance(mesh, int) else mesh
    is_text = isinstance(sizes, str | bytes | bytearray)  # elements of bytes are numbers
    if is_text or not isinstance(sizes, Sequence) or not all(map(_is_number, sizes[:4])):
        raise TypeError(
            f"{caller}: mesh is {mesh!r}, which is neither a mesh nor the shape of one. {advice} "
            "For several meshes, call it for each."
        )
    shape = tuple(sizes[:4])
    bits = max((n.bit_length() for n in shape), default=0)
    shown = cut(f"{mesh}") if bits < 64 else f"a size of {bits} bits"  # Python prints no longest
    if not 1 <= len(shape) <= 3 or any(n < 1 for n in shape):
        raise Error(f"{caller}: {shown} is not the shape of a mesh. {advice}")
    if math.prod(shape) > MAX_DEVICES:
        raise Error(
            f"{caller}: mesh is {shown}, and a mesh has at most {MAX_DEVICES} devices. Give sizes "
            "whose product is at most that."
        )
    import torch

    return DeviceMesh(torch.arange(math.prod(shape)).reshape(shape))


def _is_number(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool)


class _Search:
    """Draws examples and remembers what it learned of the program's inputs."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.program = program = pair.program
        self.random = random.Random(seed)
        self.units = units(program)
        self.same: dict[str, str] = {}  # sizes that must be equal: to a number, or to another one
        for name, size in fixed_sizes(program).items():
            self.same[name] = str(size)
        self.span = 0
        self.report = CheckReport("; ".join(program.meshes()))

    def run(self, examples: int) -> CheckReport:
        """Run the examples.

        Raises:
            CheckFailure: one of them fails.
            meshfuse.Error: the mesh refuses all of them.
        """
        refusal: Exception | None = None
        for number in tracked(range(examples), "check: examples"):
            try:
                plan, outcome = self._example(number)
            except Skip as skip:
                self.report.skipped += 1
                refusal = refusal or skip
                continue
            if outcome.failed:
                from .check_shrink import shrink

                raise shrink(self.pair, plan, self.classes(), outcome)
            if outcome.kind == "refused":
                self.report.refused.append((plan.sizes, outcome.text))
                refusal = outcome.error
                continue
            self.report.examples += 1
            self.report.sizes.append(plan.sizes)
            self.report.max_error = max(self.report.max_error, outcome.largest)
            self.report.max_share = max(self.report.max_share, outcome.share)
        if self.report.examples == 0 and refusal is not None:
            self._give_up(refusal)
        return self.report

    def _give_up(self, reason: Exception) -> None:
        if isinstance(reason, Skip):
            raise Error(
                f"check: no inputs were found that the program accepts without a mesh: {reason} "
                "Make its sizes constants, or run it on inputs of your own."
            ) from reason
        raise reason

    def _example(self, number: int) -> tuple[InputPlan, Outcome]:
        """Draw inputs until they fit, and run them."""
        grown = False
        for _ in range(len(self.units) + len(_SPANS) + 2):
            plan = self._plan(number)
            try:
                outcome = self.pair.run(plan)
            except Skip as skip:
                if not self._learn(str(skip)):
                    raise
                continue
            if outcome.kind == "refused" and "divisible" in outcome.text and not grown:
                total = math.prod(map(len, map(mesh_devices, self.program.meshes())))
                self.units = {name: math.lcm(unit, total) for name, unit in self.units.items()}
                grown = True
                continue
            return plan, outcome
        raise Skip("its sizes do not fit together")

    def _learn(self, message: str) -> bool:
        """Take from an error which sizes are equal, or draw other integers from now on."""
        found = sizes_that_meet(self.pair.bare, message)
        if found is not None:
            left, right = (self.root(size) for size in found)
            if left.isdigit():
                left, right = right, left
            if left != right and not left.isdigit():
                self.same[left] = right
                if right in self.units:
                    self.units[right] = math.lcm(self.units[right], self.units.get(left, 1))
                return True
            return False
        if self.span + 1 < len(_SPANS):
            self.span += 1
            return True
        return False

    def root(self, size: str) -> str:
        """Return the size, or number, that a size is equal to."""
        while size in self.same:
            size = self.same[size]
        return size

    def classes(self) -> dict[str, tuple[list[str], int]]:
        """Return the sizes that are free, each with those equal to it and what divides it."""
        found: dict[str, tuple[list[str], int]] = {}
        for name in self.units:
            root = self.root(name)
            if root in self.units:
                found.setdefault(root, ([], self.units[root]))[0].append(name)
        return found

    def _plan(self, number: int) -> InputPlan:
        rng = self.random
        plan = InputPlan({}, rng.randrange(2**31), _SPANS[self.span])
        for position, root in enumerate(self.classes()):
            times = 1 + position % 3 if number == 0 else rng.choice([1, 1, 2, 2, 3, 5])
            if number > 0 and rng.random() < 0.08:
                times = 0
            plan.sizes[root] = times * self.units[root]
        for name in self.units:
            root = self.root(name)
            plan.sizes[name] = int(root) if root.isdigit() else plan.sizes[root]
        written = set(self.program.overwritten())
        for statement in self.pair.statements:
            if not statement.tensors:
                continue
            name, tensor = statement.names[0], statement.tensors[0]
            shape = [extent_value(size, plan.sizes) or 0 for size in tensor.shape()]
            how = plain_strides(tensor)
            if number % 2:
                how = random_strides(tensor, shape, rng, name not in written) or how
            plan.strides[name] = how
        return dataclasses.replace(plan)
