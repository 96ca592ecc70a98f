# SPDX-License-Identifier: BSD-3-Clause
"""The program as a graph in the language of Graphviz."""

from __future__ import annotations

from typing import Any

_HEAD = """digraph program {
  rankdir=TB;
  node [shape=box, style=rounded, fontname="sans-serif", fontsize=11];
  edge [color="#5a636d", arrowsize=0.7];
"""
_COMMUNICATION = ', style="rounded,filled", fillcolor="#fdeee4", color="#b3470b"'


def dot_text(model: dict[str, Any]) -> str:
    """Return the graph; communications are filled boxes with kind, mesh axis and bytes."""
    tensors = {tensor["name"]: tensor for tensor in model["tensors"]}
    lines = []
    for k, node in enumerate(model["nodes"]):
        names = ", ".join(node["names"])
        label = [f"{names} = {node['op'] or 'input'}"]
        label += [shard_text(tensors[name]) for name in node["names"] if name in tensors]
        style = "" if node["op"] else ', style="rounded,dashed"'
        if node["communication"] is not None:
            label.append(communication_text(node["communication"]))
            label += local_text(node["communication"])
            style = _COMMUNICATION
        if node["output"]:
            style += ", penwidth=2.5"
        lines.append(f"  n{k} [label={_quoted(label)}{style}];\n")
        lines += [f"  n{source} -> n{k};\n" for source in node["operands"]]
    return _HEAD + "".join(lines) + "}\n"


def shard_text(tensor: dict[str, Any]) -> str:
    """Return a shape with the mesh axes that divide it: ``[4@y, 6, 8@x]``."""
    dims = [
        f"{n}" + "".join(f"@{axis}" for axis, dim in tensor["on_mesh"].items() if dim == k)
        for k, n in enumerate(tensor["shape"])
    ]
    parts = ", ".join(axis.removeprefix("mesh_") for axis in tensor["partial"])
    return f"[{', '.join(dims)}]" + (f" partial over {parts}" if parts else "")


def communication_text(facts: dict[str, Any]) -> str:
    """Return kind, mesh axis and bytes of a communication."""
    sent = "" if facts["bytes"] is None else f", {facts['bytes']} B per device"
    return f"{facts['kind']} over {facts['mesh_axis']}{sent}"


def local_text(facts: dict[str, Any]) -> list[str]:
    """Return the shapes that a device has before and after, in a list; empty if not known."""
    before, after = facts["local"]
    return [] if before is None or after is None else [f"{before} -> {after} on each device"]


def _quoted(lines: list[str]) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
