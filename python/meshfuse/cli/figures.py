# SPDX-License-Identifier: BSD-3-Clause
"""Figures of links and devices that estimates use, and where they are from."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..limits import cut

if TYPE_CHECKING:
    from ..planner.links import Links

_DEFAULT = "shared-memory"


def find_links(given: str | None) -> tuple[Links, str]:
    """Return the figures that a name or a file has, or those of this machine; and what they are.

    Raises:
        click.BadParameter: there are none of that name, and no such file.
        meshfuse.Error: a file is not one of figures.
    """
    from ..planner.links import PRESETS, Links, saved_path

    if given in PRESETS:
        return PRESETS[given], f"{given}, published"
    if given is not None and not Path(given).is_file():
        raise click.BadParameter(
            f"{cut(given)!r} is neither a file nor one of {', '.join(PRESETS)}.",
            param_hint="--links",
        )
    path = saved_path() if given is None else Path(given)
    if given is None and not os.environ.get("MESHFUSE_LINKS") and not path.exists():
        return PRESETS[_DEFAULT], (
            f"{_DEFAULT}, published; measure those of this machine by meshfuse doctor --measure"
        )
    found = Links.load(path)
    date = datetime.fromtimestamp(path.stat().st_mtime).date()
    return found, f"{path}, {found.inner.source or found.inner.name}, of {date}"
