# SPDX-License-Identifier: BSD-3-Clause
"""Peak memory of one device, from the steps of the compiled program."""

from __future__ import annotations

from .local_program import LocalProgram
from .operations import is_view

__all__ = ["input_bytes", "peak_bytes"]


def peak_bytes(program: LocalProgram) -> int:
    """Return the most bytes that are alive at once.

    Inputs are the caller's and stay; what a step makes is freed after the last step that reads it,
    or a view of it; results stay. Operands are there until a step has ended, its result already.
    """
    owner = _owners(program)
    last_use = dict.fromkeys(owner.values(), -1)
    for i, step in enumerate(program.steps):
        for name in (*step.reads, *step.names):
            last_use[owner[name]] = i
    for name in program.results:
        last_use[owner[name]] = len(program.steps)
    ends: dict[int, list[str]] = {}
    for name, i in last_use.items():
        ends.setdefault(i, []).append(name)
    alive = peak = input_bytes(program)
    mine = set(program.inputs)
    for i, step in enumerate(program.steps):
        made = [name for name in step.names if name in owner and owner[name] == name]
        alive += sum(program.tensors[name].bytes for name in made)
        peak = max(peak, alive)
        alive -= sum(program.tensors[name].bytes for name in ends.get(i, ()) if name not in mine)
    return peak


def input_bytes(program: LocalProgram) -> int:
    """Return the bytes of a device's parts of the inputs."""
    return sum(program.tensors[name].bytes for name in program.inputs)


def _owners(program: LocalProgram) -> dict[str, str]:
    """Return for every tensor the one whose memory it lies in."""
    owner = {name: name for name in program.inputs}
    for step in program.steps:
        for name in step.names:
            owner[name] = owner[step.reads[0]] if is_view(step) else name
    return owner
