# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of a program: who holds what of each tensor, what is communicated, how long it took.

``fd.visualize("picture.html")`` writes a page, ``terminal(fd)`` gives text, ``to_dot(fd)`` a graph
for Graphviz.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..profile import FusionProfile
from .model import make_picture
from .page import page

if TYPE_CHECKING:
    from ..definition import FusionDefinition

__all__ = ["visualize"]


def visualize(
    fd: FusionDefinition,
    path: str | os.PathLike[str] | None = None,
    inputs: Iterable[Any] | None = None,
    sizes: Mapping[Any, Any] | None = None,
    profile: FusionProfile | None = None,
) -> str:
    """Return the page that shows a program; see ``FusionDefinition.visualize``."""
    picture = make_picture(fd, inputs, sizes, profile)
    text = page(picture.to_dict(), "meshfuse program")
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
