# SPDX-License-Identifier: BSD-3-Clause
"""The HTML page: one file with its styles, its script and the picture as JSON inside."""

from __future__ import annotations

import html
import json
from importlib import resources
from string import Template
from typing import Any

_PARTS = ("grid.js", "tree.js", "graph.js", "timeline.js", "page.js")


def page(model: dict[str, Any], title: str) -> str:
    """Return the page that shows a picture; it needs no network and no other file."""
    folder = resources.files(__package__) / "web"
    read = {name: (folder / name).read_text(encoding="utf-8") for name in (*_PARTS, "page.css")}
    template = Template((folder / "page.html").read_text(encoding="utf-8"))
    # "</" would end the script element, and <!-- begins a comment in it.
    data = json.dumps(model, separators=(",", ":")).replace("<", "\\u003c")
    return template.substitute(
        title=html.escape(title),
        style=read["page.css"],
        script="\n".join(read[name] for name in _PARTS),
        data=data,
    )
