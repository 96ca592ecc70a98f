# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of a program: who holds what of each tensor, what is communicated, how long it took.

``fd.visualize("picture.html")`` writes a page, ``terminal(fd)`` gives text, ``to_dot(fd)`` a graph
for Graphviz.
"""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._C import TensorView
from ..profile import FusionProfile
from .dot import dot_text
from .model import make_picture
from .page import page
from .tensor import tensor_model
from .terminal import terminal_text

if TYPE_CHECKING:
    from ..definition import FusionDefinition

__all__ = ["notebook", "notebook_of_tensor", "terminal", "to_dot", "visualize"]


def visualize(
    fd: FusionDefinition,
    path: str | os.PathLike[str] | None = None,
    inputs: Iterable[Any] | None = None,
    sizes: Mapping[Any, Any] | None = None,
    profile: FusionProfile | None = None,
) -> str:
    """Return the page that shows a program; see ``FusionDefinition.visualize``."""
    picture = make_picture(fd, inputs, sizes, profile)
    text = page(picture.to_dict(), picture.title)
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def terminal(
    fd: FusionDefinition,
    inputs: Iterable[Any] | None = None,
    sizes: Mapping[Any, Any] | None = None,
    colour: bool | None = None,
) -> str:
    """Return the steps of a program and who holds what of its tensors, as text.

    A cell has the numbers of the devices that hold it; "+" before them says that each holds a term
    of a sum.

    Args:
        fd: The definition.
        inputs: Global tensors for sizes that the program leaves open, as for ``fd.explain``.
        sizes: Instead: their sizes.
        colour: Whether devices have colours, which needs ``rich``. None: where stdout is a
            terminal.

    Example:
        >>> from meshfuse import FusionDefinition, pictures
        >>> with FusionDefinition() as fd:
        ...     fd.add_output(fd.ops.relu(fd.define_tensor([4, 6])))
        >>> print(pictures.terminal(fd, colour=False).splitlines()[1])
        T1 = relu(T0)  [4, 6]
    """
    wanted = sys.stdout.isatty() if colour is None else colour
    return terminal_text(make_picture(fd, inputs, sizes).to_dict(), wanted)


def to_dot(
    fd: FusionDefinition,
    inputs: Iterable[Any] | None = None,
    sizes: Mapping[Any, Any] | None = None,
) -> str:
    """Return a program as a Graphviz graph; see ``FusionDefinition.to_dot``."""
    return dot_text(make_picture(fd, inputs, sizes).to_dict())


def notebook(fd: FusionDefinition, profile: FusionProfile | None = None) -> str:
    """Return the page in a frame of its own, for a cell of a notebook."""
    return _frame(visualize(fd, profile=profile), "meshfuse program", 640)


def notebook_of_tensor(tv: TensorView) -> str | None:
    """Return a page of one tensor in a frame; None where its program does not have it yet."""
    model = tensor_model(tv)
    if model is None:
        return None
    title = f"meshfuse tensor {tv.name}"
    return _frame(page(model, title), title, 420)


def _frame(text: str, title: str, height: int) -> str:
    style = f"width: 100%; height: {height}px; resize: vertical; "
    style += "border: 1px solid #8888; border-radius: 8px"
    title = html.escape(title)
    return f'<iframe title="{title}" srcdoc="{html.escape(text)}" style="{style}"></iframe>'
