# SPDX-License-Identifier: BSD-3-Clause
"""How often the devices of a mesh compute the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..program_text import MESH_AXES
from ..remesh import mesh_shape
from .local_program import Step

__all__ = ["Repetition", "repetition_of"]


@dataclass(frozen=True)
class Repetition:
    """What devices compute that others compute, too.

    Attributes:
        times: Time that all devices compute, by the time if none repeated another's work.
        over: Mesh axes over which no operation is divided, ``"mesh_y"``.
    """

    times: float
    over: list[str]


def repetition_of(steps: Iterable[tuple[Step, float]]) -> Repetition:
    """Return how often the same is computed by these local operations, each with its time."""
    spent = needed = 0.0
    found: dict[str, bool] = {}  # mesh axis: is something divided over it?
    for step, time in steps:
        if time == 0 or step.outs[0].mesh is None:
            continue
        divided = {axis for tensor in step.outs for axis in tensor.places}
        copies = 1
        shape = mesh_shape(step.outs[0].mesh)
        for axis, size in zip(MESH_AXES, reversed(shape), strict=False):
            if size == 1:
                continue
            found[axis] = found.get(axis, False) or axis in divided
            copies *= 1 if axis in divided else size
        spent += time
        needed += time / copies
    over = [f"mesh_{axis}" for axis in MESH_AXES if not found.get(axis, True)]
    return Repetition(spent / needed if needed else 1.0, over)
