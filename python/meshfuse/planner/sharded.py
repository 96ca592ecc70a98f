# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse.autoshard``: annotations that make a program cheap on a mesh."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._C import DeviceMesh, Error, Fusion, TensorView
from ..limits import cut
from ..program_text import parse
from ..progress import Progress
from .annotations import Annotation, is_annotated
from .candidates import Evaluator, apply, choices_of, final_results, unused_inputs
from .links import current_links
from .open_sizes import assume_sizes, known_sizes
from .plan_cost import compiled_text, fusion_of, fusion_on
from .search import Found, search

if TYPE_CHECKING:
    from ..definition import FusionDefinition

__all__ = ["autoshard"]

_log = logging.getLogger("meshfuse")


def autoshard(
    fd: FusionDefinition,
    mesh: DeviceMesh | int | Sequence[int],
    memory_limit: int | None = None,
) -> FusionDefinition:
    """Return a new definition of the program, annotated so that it is modelled to take least time.

    What ``fd`` has annotated stays as it is (carried over to ``mesh``), and ``fd`` is not changed.
    Inputs may be divided. Results that nothing in the program reads are whole on every device,
    unless ``fd`` annotates them. Axes of open size are not divided, and counted as 256 elements.
    Needs no devices. All ranks find the same, where they have the same figures of links.

    Args:
        fd: The definition.
        mesh: The mesh, or its shape.
        memory_limit: Most bytes that a device may hold at once, its parts of the inputs among them.

    Raises:
        meshfuse.Error: no annotations keep the limit, the annotations of ``fd`` do not fit the
            mesh, or the program is refused.
        TypeError: ``fd`` is no definition, or ``mesh`` is neither a mesh nor the shape of one.

    Example:
        >>> import meshfuse
        >>> with meshfuse.FusionDefinition() as fd:
        ...     x, w1 = fd.define_tensor([1, 64]), fd.define_tensor([64, 256])
        ...     w2 = fd.define_tensor([256, 64])
        ...     h = fd.ops.relu(fd.ops.matmul(x, w1))
        ...     fd.add_output(fd.ops.matmul(h, w2))
        >>> sharded = meshfuse.autoshard(fd, mesh=4, memory_limit=50_000)
        >>> [c.kind for c in sharded.explain().communications]
        ['all-reduce']
        >>> [t.sharding for t in sharded.explain().tensors[:3]]
        [{}, {'mesh_x': 1}, {'mesh_x': 0}]
    """
    from ..check import device_mesh
    from ..definition import FusionDefinition

    _check_limit(memory_limit)
    wanted = device_mesh(mesh, "autoshard")
    fusion = fusion_on(fusion_of(fd, "autoshard"), wanted, "autoshard")
    annotated = _annotated(fusion, wanted, memory_limit)
    result = FusionDefinition()
    result._lifecycle.adopt(annotated)
    return result


def _annotated(fusion: Fusion, mesh: DeviceMesh, memory_limit: int | None) -> Fusion:
    program = parse(fusion.ir())
    constants = known_sizes(fusion, program, [])
    sizes = assume_sizes(program, constants)
    whole = Annotation((None,) * len(mesh.shape))
    fixed = {tv.name: whole for tv in (*final_results(fusion), *unused_inputs(fusion))}
    evaluator = Evaluator(fusion, mesh, current_links(), sizes, fixed)
    choices = choices_of(fusion, mesh, constants, fixed)
    with Progress("autoshard") as progress:
        found = search(evaluator, choices, progress, memory_limit)
    if found is None:  # then the program is refused without further annotations, too
        compiled_text(evaluator.base)  # says why
    assert found is not None
    _log.debug(
        "autoshard: %d programs tried%s, %.1f us",
        found.evaluations,
        ", all there are" if found.exact else "",
        found.score.time_us,
    )
    _check_memory(found, memory_limit, mesh)
    chosen = apply(evaluator.base, mesh, found.assignment)
    return _with_inputs_on_mesh(chosen, mesh, whole)


def _check_limit(limit: Any) -> None:
    if limit is None:
        return
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not is_number or not 1 <= limit < math.inf:  # NaN is neither
        raise Error(
            f"autoshard: memory_limit is {cut(repr(limit))}. Give a number of bytes above 0, or "
            "None for no limit."
        )


def _check_memory(found: Found, limit: int | None, mesh: DeviceMesh) -> None:
    least = found.score.peak_memory
    if limit is None or least <= limit:
        return
    possible = "possible" if found.exact else "found"
    raise Error(
        f"autoshard: memory_limit is {limit} bytes per device, but the least that was {possible} "
        f"on {mesh.size} devices is {least}. Raise the limit to that, use a larger mesh, or make "
        "sizes divisible by it."
    )


def _with_inputs_on_mesh(fusion: Fusion, mesh: DeviceMesh, whole: Annotation) -> Fusion:
    """Say of inputs that stay whole that they do, where that changes nothing."""
    given = {
        tv.name: whole
        for tv in fusion.inputs()
        if isinstance(tv, TensorView) and not tv.is_cpu_scalar() and not is_annotated(tv)
    }
    said = apply(fusion, mesh, given)
    return said if compiled_text(said) == compiled_text(fusion) else fusion
