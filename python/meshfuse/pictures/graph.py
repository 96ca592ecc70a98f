# SPDX-License-Identifier: BSD-3-Clause
"""The program as a graph: inputs and operations in layers, operands above those that read them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..explanation import Communication, Explanation, Place
from ..program_text import STRING, Program, Statement


@dataclass
class Node:
    """An input or an operation, and its place: layer from above, order within it from the left."""

    names: tuple[str, ...]
    op: str | None
    text: str
    operands: list[int] = field(default_factory=list)
    communication: Communication | None = None
    is_output: bool = False
    layer: int = 0
    order: float = 0
    bends: list[float] = field(default_factory=list)  #: order of its line in each layer below


def make_graph(program: Program, explanation: Explanation) -> list[Node]:
    """Return the nodes in order of execution."""
    waiting = list(explanation.communications)
    shardings = {t.name: t.sharding for t in explanation.tensors}
    nodes: list[Node] = []
    made_by: dict[str, int] = {}
    results = set(program.result_names())
    read = {word for result in results for word in re.findall(r"[A-Za-z_]\w*", result)}
    for statement in program.statements:
        is_scalar = not statement.tensors and statement.call is None
        if is_scalar and not (statement.names[0] in read or _is_read(program, statement)):
            continue
        operands = sorted({made_by[name] for name in _operands(statement) & made_by.keys()})
        node = Node(statement.names, statement.op, statement.call or "input", operands)
        node.communication = _communication(statement, waiting, shardings)
        node.is_output = bool(results & set(statement.names))
        made_by.update((name, len(nodes)) for name in statement.names)
        nodes.append(node)
    for k, result in enumerate(program.result_names()):
        if result not in made_by:
            nodes.append(_scalar_result(k, result, made_by))
    _set_layers(nodes)
    _set_order(nodes)
    return nodes


def _scalar_result(place: int, text: str, made_by: Mapping[str, int]) -> Node:
    """Return the node of a result that the text form writes as an expression of scalars."""
    bare = text.removeprefix("(").removesuffix(")") if text.startswith("(") else text
    words = re.findall(r"[A-Za-z_]\w*", bare)
    operands = sorted({made_by[word] for word in words if word in made_by})
    op = bare.partition("(")[0]
    return Node((f"result {place}",), op, bare, operands, is_output=True)


def _communication(
    statement: Statement,
    waiting: list[Communication],
    shardings: Mapping[str, Mapping[str, Place]],
) -> Communication | None:
    """Take the communication that a statement is from those that wait, in order of execution."""
    for k, c in enumerate(waiting):
        after = shardings.get(statement.names[0], {}).get(c.mesh_axis)
        if c.sent in _operands(statement) and after == c.after:
            return waiting.pop(k)
    return None


def _operands(statement: Statement) -> set[str]:
    """Return the names that a call reads; ``T0.1`` is a size and no operand."""
    call = (statement.call or "").partition("(")[2]
    words = re.findall(rf"{STRING}|[A-Za-z_]\w*(?:\.\d+)?", call)
    return {word for word in words if "." not in word}


def _is_read(program: Program, statement: Statement) -> bool:
    return any(statement.names[0] in other.mentions() for other in program.statements)


def _set_layers(nodes: list[Node]) -> None:
    for node in nodes:
        node.layer = max((nodes[k].layer + 1 for k in node.operands), default=0)
    for k in reversed(range(len(nodes))):  # inputs stand right above their first reader
        readers = [n.layer for n in nodes if k in n.operands]
        if not nodes[k].operands and readers:
            nodes[k].layer = min(readers) - 1


class _Slot:
    """A place in a layer: of a node, or of a line that passes through."""

    def __init__(self, width: float) -> None:
        self.order = 0.0
        self.width = width
        self.near: list[_Slot] = []


def _set_order(nodes: list[Node]) -> None:
    """Order each layer by the mean place of its neighbours, to have few crossings."""
    own = [_Slot(1) for _ in nodes]
    layers: dict[int, list[_Slot]] = {}
    for node, slot in zip(nodes, own, strict=True):
        layers.setdefault(node.layer, []).append(slot)
    lines: list[list[_Slot]] = []
    for k, node in enumerate(nodes):
        readers = [reader for reader in nodes if k in reader.operands]
        last = max((reader.layer for reader in readers), default=0)
        line = [_Slot(0.15) for _ in range(node.layer + 1, last)]
        for layer, slot in enumerate(line, start=node.layer + 1):
            layers[layer].append(slot)
        path = [own[k], *line]
        for a, b in itertools.pairwise(path):
            _join(a, b)
        for reader in readers:
            _join(path[reader.layer - node.layer - 1], own[nodes.index(reader)])
        lines.append(line)
    for slots in layers.values():
        _spread(slots)
    for sweep in range(8):
        for k in sorted(layers, reverse=sweep % 2 == 1):
            layers[k].sort(key=_mean)
            _spread(layers[k])
    for node, slot, line in zip(nodes, own, lines, strict=True):
        node.order, node.bends = slot.order, [bend.order for bend in line]


def _join(a: _Slot, b: _Slot) -> None:
    a.near.append(b)
    b.near.append(a)


def _mean(slot: _Slot) -> float:
    return sum(s.order for s in slot.near) / len(slot.near) if slot.near else slot.order


def _spread(layer: list[_Slot]) -> None:
    at = -sum(slot.width for slot in layer) / 2
    for slot in layer:
        slot.order = at + slot.width / 2
        at += slot.width
