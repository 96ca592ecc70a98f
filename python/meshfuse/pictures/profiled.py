# SPDX-License-Identifier: BSD-3-Clause
"""Values of open sizes, as a program had them when it was profiled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..profile import FusionProfile
from ..profiled_run import ProfiledRun, key_of
from ..program_text import Program, Tensor
from .extents import bound_sizes, open_sizes
from .ownership import Ownership

if TYPE_CHECKING:
    from ..definition import FusionDefinition


def profiled_sizes(
    fd: FusionDefinition, program: Program, profile: FusionProfile
) -> dict[str, int]:
    """Return the open sizes of the last execution of a program; those that are known."""
    runs = [run for run in profile.runs if run.program == key_of(fd)]
    if not runs:
        return {}
    last = max(runs, key=lambda run: (run.end_ns, -run.begin_ns))
    uneven = fd._defined().uneven
    shapes: dict[str, tuple[int, ...] | int] = {}
    for statement, size in zip(program.inputs(), last.inputs, strict=False):
        name = statement.names[0]
        if isinstance(size, int):
            shapes[name] = size
        elif size is not None and statement.tensors:
            whole = _global(statement.tensors[0], size, last, uneven)
            if whole is not None:
                shapes[name] = whole
    wanted = set(open_sizes(program))
    return {name: n for name, n in bound_sizes(program, shapes).items() if name in wanted}


def _global(
    tensor: Tensor, shape: tuple[int, ...], run: ProfiledRun, uneven: bool
) -> tuple[int, ...] | None:
    """Return the global shape; None where that of one device does not say it."""
    own = Ownership(tensor, lambda _: 1)
    if not run.is_local or not own.on_mesh:
        return shape
    if uneven:
        return None
    sizes = dict(zip(own.mesh.axes, own.mesh.sizes, strict=True))
    divided = own.divided()
    return tuple(
        n * math.prod(sizes[axis] for axis, dim in divided.items() if dim == k)
        for k, n in enumerate(shape)
    )
