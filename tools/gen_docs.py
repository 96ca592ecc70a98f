# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/ops.md and docs/passes.md from the registries, and the table of placements.

Usage: PYTHONPATH=python python tools/gen_docs.py [--check]

With --check nothing is written; the exit code is 1 when a file is out of date. The table comes from
docs/placements.json, which tests/python/placements.py writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from meshfuse import _C

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by tools/gen_docs.py. -->\n"


def op_text(info: dict[str, Any]) -> str:
    """Return the section of one op."""
    results = ", ".join(info["results"])
    arrow = f" -> {results}" if len(info["results"]) == 1 else f" -> ({results})"
    text = f"## {info['name']}\n\n```text\n{info['signature']}{arrow}\n```\n\n{info['doc']}\n"
    others = [
        f"`{alias}` for `{name}`" for name, _, _, _, aliases in info["params"] for alias in aliases
    ]
    if others:
        text += f"\nAlso accepted as keywords: {', '.join(others)}.\n"
    return text


def ops_text() -> str:
    """Return docs/ops.md."""
    head = (
        "# Ops\n\nCallable as `fd.ops.<name>` and, on the active definition, as "
        "`meshfuse.ops.<name>`. Shapes are global shapes; dims may be negative.\n\n"
    )
    sections = "\n".join(op_text(info) for info in _C.registered_ops())
    return NOTE + head + sections + "\n" + placements_text()


def placements_text() -> str:
    """Return the table of what became of the placements of each op, and the messages."""
    table = json.loads((DOCS / "placements.json").read_text())
    meshes = list(next(iter(table.values())))
    lines = [
        "## Placements\n",
        "Operands and results placed on a mesh in every way (each mesh axis nowhere or on any "
        "axis of the tensor, two on one axis in both orders, or no mesh given), or in a sample of "
        "the ways: how many give torch's result, and how many are refused with a message. "
        "`python -m placements` in `tests/python` runs them.\n",
        "| op | " + " | ".join(f"mesh {mesh}" for mesh in meshes) + " |",
        "|---|" + "---|" * len(meshes),
    ]
    messages: dict[str, int] = {}
    for op, row in table.items():
        cells = []
        for mesh in meshes:
            refused = row[mesh]["refused"]
            for message, count in refused.items():
                messages[message] = messages.get(message, 0) + count
            total = sum(refused.values())
            cells.append(f"{row[mesh]['run']}" + (f", {total} refused" if total else ""))
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    if messages:
        lines += ["\nMessages, names and numbers taken out:\n"]
        lines += [f"- {message} ({count})" for message, count in sorted(messages.items())]
    return "\n".join(lines) + "\n"


def passes_text() -> str:
    """Return docs/passes.md."""
    order = " → ".join(f"`{name}`" for name in _C.pipeline())
    head = (
        "# Passes\n\nA pass changes a program and leaves its values as they are. "
        f"Before compilation these run, in this order: {order}.\n\n"
        "`meshfuse._C.run_pass(text, name)` runs one on a program's text form; see "
        "[Add a pass](add_a_pass.md).\n\n"
    )
    sections = (f"## {name}\n\n{doc}\n" for name, doc in _C.registered_passes())
    return NOTE + head + "\n".join(sections)


def pages() -> dict[str, str]:
    """Return the text of every generated page, by file name."""
    return {"ops.md": ops_text(), "passes.md": passes_text()}


def main() -> int:
    """Write the pages, or check them."""
    texts = pages()
    stale = [
        name
        for name, text in texts.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is out of date: run tools/gen_docs.py", file=sys.stderr)
        return 1 if stale else 0
    DOCS.mkdir(exist_ok=True)
    for name in stale:
        (DOCS / name).write_text(texts[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
