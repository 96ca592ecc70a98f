# SPDX-License-Identifier: BSD-3-Clause
"""The picture of one tensor: as it is compiled, or as it stands where that is not possible."""

from __future__ import annotations

from typing import Any

from .._C import Error, Fusion, TensorView
from ..explanation import Explanation
from ..program_text import parse
from .extents import open_sizes, stand_in
from .model import Picture, make_picture

__all__ = ["tensor_model"]


def tensor_model(tv: TensorView) -> dict[str, Any] | None:
    """Return what the page of one tensor shows; None where its program does not have it."""
    fusion = tv.fusion()
    program = parse(fusion.ir())
    if tv.name not in program.tensors():
        return None
    picture = _compiled(fusion) if program.results else None
    if picture is None or tv.name not in picture.program.tensors():
        assumed = {size: stand_in(program) for size in open_sizes(program)}
        picture = Picture(program, Explanation([], []), assumed, assumed, [])
    return picture.to_dict([tv.name]) | {"nodes": []}


def _compiled(fusion: Fusion) -> Picture | None:
    """Return the picture of a program; None where the passes refuse it."""
    from ..definition import FusionDefinition

    definition = FusionDefinition()
    definition._lifecycle.adopt(fusion.clone())
    try:
        return make_picture(definition)
    except (Error, NotImplementedError):
        return None
