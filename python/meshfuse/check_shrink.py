# SPDX-License-Identifier: BSD-3-Clause
"""Makes a failing example of ``check`` small, and prints it as a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ._C import Error, UnsupportedError
from .check import CheckFailure
from .check_inputs import DTYPES, InputPlan, plain_strides
from .check_run import Outcome, Pair, Skip
from .program_text import Program, Tensor

_TRIES = 400  # runs of a program, at most


def shrink(
    pair: Pair, plan: InputPlan, classes: dict[str, tuple[list[str], int]], outcome: Outcome
) -> CheckFailure:
    """Return the exception for the smallest failing example that is found.

    In turn: plain strides, fewer operations and results, no annotations where they do not matter,
    the smallest sizes, until nothing helps.

    Args:
        pair: The program that failed.
        plan: The inputs that it failed with.
        classes: For each free size those equal to it, and what must divide it.
        outcome: How it failed.
    """
    shrinker = _Shrinker(pair, plan, classes, outcome)
    while shrinker.step() and shrinker.tries < _TRIES:
        pass
    return shrinker.failure()


class _Shrinker:
    def __init__(
        self,
        pair: Pair,
        plan: InputPlan,
        classes: dict[str, tuple[list[str], int]],
        outcome: Outcome,
    ) -> None:
        self.pair, self.plan, self.classes, self.outcome = pair, plan, classes, outcome
        self.tries = 0

    def step(self) -> bool:
        """Try to make the example smaller in every way; return whether one worked."""
        helped = False
        for plan in self._plainer():
            helped |= self._try(self.pair.program, plan)
        for program in self._fewer_results():
            if self._try(program, self.plan):
                helped = True
                break
        for name in list(self.pair.program.tensors()):
            barer = _without_annotations(self.pair.program, name)
            if barer is not None:
                helped |= self._try(barer, self.plan)
        for root, (names, unit) in self.classes.items():
            present = [name for name in names if name in self.plan.sizes]
            if present:
                helped |= self._smaller(root, names, unit, self.plan.sizes[present[0]])
        return helped

    def _smaller(self, root: str, names: list[str], unit: int, current: int) -> bool:
        for size in range(0, current, unit):
            sizes = {n: size if n in names else s for n, s in self.plan.sizes.items()}
            if self._try(self.pair.program, dataclasses.replace(self.plan, sizes=sizes)):
                return True
        return False

    def _try(self, program: Program, plan: InputPlan) -> bool:
        """Run a smaller example; keep it when it fails, too."""
        if self.tries >= _TRIES:
            return False
        self.tries += 1
        try:
            pair = self.pair
            if program is not pair.program:
                pair = Pair(program, self.pair.rtol, uneven=self.pair.uneven)
            outcome = pair.run(plan)
        except (Skip, Error, UnsupportedError):
            return False
        if outcome.kind != self.outcome.kind or type(outcome.error) is not type(self.outcome.error):
            return False
        self.pair, self.plan, self.outcome = pair, plan, outcome
        return True

    def _plainer(self) -> Iterator[InputPlan]:
        for statement in self.pair.statements:
            name = statement.names[0]
            if not statement.tensors or name not in self.plan.strides:
                continue
            plain = plain_strides(statement.tensors[0])
            if self.plan.strides[name] != plain:
                strides = {**self.plan.strides, name: plain}
                yield dataclasses.replace(self.plan, strides=strides)

    def _fewer_results(self) -> Iterator[Program]:
        program = self.pair.program
        current = len(program.statements) + len(program.results)
        computed = [s for s in program.statements if s.call is not None]
        for statement in computed:
            for name in statement.names:
                smaller = program.keep_results([name])
                if len(smaller.statements) + 1 < current:
                    yield smaller
        for result in program.results:
            smaller = program.keep_results([result])
            if len(smaller.statements) + 1 < current:
                yield smaller

    def failure(self) -> CheckFailure:
        """Return the exception that shows the example."""
        program, sizes = str(self.pair.program), self._sizes()
        shown = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        message = (
            f"check: {self.outcome.text}.\n"
            f"The smallest program found{f' (sizes {shown})' if shown else ''}:\n\n{program}\n"
            f"To see it again, run this:\n\n{self.script()}"
        )
        failure = CheckFailure(message, self.script(), program, sizes)
        failure.__cause__ = self.outcome.error
        return failure

    def _sizes(self) -> dict[str, int]:
        mentioned = {size for s in self.pair.statements for t in s.tensors for size in t.shape()}
        return {name: size for name, size in self.plan.sizes.items() if name in mentioned}

    def script(self) -> str:
        """Return a script that runs the example and compares."""
        lines = []
        for number, statement in enumerate(self.pair.statements):
            seed, name = self.plan.seed + number, statement.names[0]
            how = self.plan.strides.get(name)
            shape = self.pair.shape(statement, self.plan) if statement.tensors else []
            dtype = statement.scalar or statement.tensors[0].dtype
            span = f", span={self.plan.span}" if _is_integer(dtype) else ""
            expanded = f", expanded={how.expanded}" if how and how.expanded else ""
            item = ".item()" if statement.scalar else ""
            lines.append(
                f"    random_values({shape}, {DTYPES[dtype]}, seed={seed}{span}{expanded}){item},"
                f"  # {name}"
            )
        inputs = "\n".join(lines)
        layouts = "".join(f"    {layout},\n" for layout in self.pair.layouts(self.plan))
        return _SCRIPT.format(
            program=self.pair.program,
            uneven=", uneven=True" if self.pair.uneven else "",
            alone=self.pair.bare,
            inputs=inputs,
            layouts=layouts.rstrip("\n"),
            devices=self.pair.devices,
            rtol=f"{self.outcome.rtol:.3g}",
            atol=f"{self.outcome.atol:.3g}",
        )


def _is_integer(dtype: str) -> bool:
    return not (DTYPES[dtype].is_floating_point or DTYPES[dtype].is_complex)


def _without_annotations(program: Program, name: str) -> Program | None:
    """Return the program with one tensor's mesh and schedule dropped; None if it has none."""
    tensor = program.tensors()[name]
    if tensor.mesh is None or tensor.item("logical") is not None:
        return None

    def change(other: str, old: Tensor) -> Tensor:
        if other != name:
            return old
        memory = old.item("alloc")
        items: tuple[str, ...] = ()
        if memory is not None and any(name == s.names[0] for s in program.inputs()):
            flags = ["n" if axis.kind in "br" else "f" for axis in old.root]
            items = (f"alloc contig {' '.join(flags)}",)
        root = tuple(dataclasses.replace(axis, parallel=None) for axis in old.root)
        return dataclasses.replace(old, root=root, items=items, mesh=None)

    return program.map_tensors(change)


_SCRIPT = '''\
import torch
import meshfuse
from meshfuse.check import expected_parts, random_values, run_alone, run_on_mesh

PROGRAM = """\\
{program}"""
ALONE = """\\
{alone}"""
inputs = [
{inputs}
]
strides = [  # of the parts: order of axes in memory, gaps, axes of stride 0
{layouts}
]
fd = meshfuse.parse_ir(PROGRAM{uneven})
want = run_alone(meshfuse.parse_ir(ALONE), inputs)
got = run_on_mesh(fd, inputs, strides, {devices})
for k, whole in enumerate(want):
    for device, part in expected_parts(fd, k, whole, {devices}).items():
        torch.testing.assert_close(
            got[device][k], part, rtol={rtol}, atol={atol}, equal_nan=True,
            msg=lambda text: f"result {{k}} on device {{device}}: {{text}}",
        )
'''
