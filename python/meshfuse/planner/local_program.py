# SPDX-License-Identifier: BSD-3-Clause
"""The compiled program as the steps of one device: local operations, and communications.

Nothing is decided here about shardings: the compiler has inserted every communication, and the text
of the compiled program shows each as an operation whose operand and result lie differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..program_text import MESH_AXES, Statement, parse
from ..remesh import mesh_devices
from .collectives import buffer_bytes, bytes_sent
from .local_tensor import LocalTensor, local_tensor, mesh_teams

__all__ = ["LocalProgram", "ProgramReader", "Step", "Transfer"]

_STRING = re.compile(r'"[^"]*"')
#: A name in a call that is neither a keyword, nor the tensor of a size such as ``T0.1``.
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(]|\.\d|\s*=)")


@dataclass(frozen=True)
class Transfer:
    """A communication.

    Attributes:
        kind: As ``fd.explain()`` names it; "local-slice" where nothing is sent.
        mesh_axis: ``"x"``; the first that differs.
        teams: Devices that communicate with each other.
        bytes: That a device sends, at least.
        buffer: Bytes that the formulas of ``collectives`` count.
    """

    kind: str
    mesh_axis: str
    teams: list[list[int]]
    bytes: int
    buffer: int


@dataclass(frozen=True)
class Step:
    """An operation of the compiled program on one device."""

    op: str
    names: tuple[str, ...]
    outs: tuple[LocalTensor, ...]
    reads: tuple[str, ...]
    ins: tuple[LocalTensor, ...]
    call: str
    transfer: Transfer | None = None


@dataclass(frozen=True)
class LocalProgram:
    """The steps of one device, in order.

    Attributes:
        inputs: Names of the tensors that the caller gives.
        steps: What is done.
        results: Names of the tensors that the caller gets.
        tensors: All tensors by name.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    tensors: Mapping[str, LocalTensor]


@dataclass(frozen=True)
class _Line:
    statement: Statement
    tensors: tuple[LocalTensor, ...]
    named: tuple[str, ...]  # in the call, each once


class ProgramReader:
    """Reads compiled programs; what it has read of a line is kept, since candidates share most."""

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        """Prepare to read programs whose open sizes have these values."""
        self.sizes = dict(sizes or {})
        self._lines: dict[str, _Line] = {}
        self._teams: dict[tuple[str, str], list[list[int]]] = {}

    def read(self, text: str) -> LocalProgram:
        """Return the steps of a compiled program in text form.

        Raises:
            meshfuse.Error: a size is not known.
        """
        known: dict[str, LocalTensor] = {}
        inputs: list[str] = []
        steps: list[Step] = []
        results: list[str] = []
        for line in text.split("\n"):
            if line.startswith("return"):
                results = parse(line).result_names()
                continue
            if not line:
                continue
            found = self._lines.get(line) or self._line(line)
            statement = found.statement
            if statement.call is None:
                inputs += statement.names if found.tensors else ()
            else:
                reads = tuple(name for name in found.named if name in known)
                ins = tuple(known[name] for name in reads)
                transfer = self._transfer(statement, ins, found.tensors)
                op = statement.op or ""
                steps.append(
                    Step(op, statement.names, found.tensors, reads, ins, statement.call, transfer)
                )
            known.update(zip(statement.names, found.tensors, strict=False))
        shown = tuple(name for name in results if name in known)
        return LocalProgram(tuple(inputs), tuple(steps), shown, known)

    def _line(self, line: str) -> _Line:
        (statement,) = parse(line).statements
        tensors = tuple(local_tensor(tensor, self.sizes) for tensor in statement.tensors)
        names = _NAME.findall(_STRING.sub("", statement.call or ""))
        found = _Line(statement, tensors, tuple(dict.fromkeys(names)))
        self._lines[line] = found
        return found

    def _transfer(
        self,
        statement: Statement,
        ins: tuple[LocalTensor, ...],
        outs: tuple[LocalTensor, ...],
    ) -> Transfer | None:
        if len(ins) != 1 or len(outs) != 1 or ins[0].mesh is None or outs[0].mesh is None:
            return None
        before, after = ins[0], outs[0]
        if before.mesh != after.mesh and before.mesh is not None:
            return _between(before, after)
        if after.sums_over:
            axis = after.sums_over[0]
            kind = "reduce-scatter" if axis in after.places else "all-reduce"
            return self._within(kind, axis, before, after)
        if statement.op != "set":
            return None
        for axis in MESH_AXES:
            old, new = before.places.get(axis), after.places.get(axis)
            if old != new:
                kind = "local-slice" if old is None else "all-to-all" if new else "all-gather"
                return self._within(kind, axis, before, after)
        return None

    def _within(self, kind: str, axis: str, before: LocalTensor, after: LocalTensor) -> Transfer:
        mesh = before.mesh or ""
        teams = self._teams.get((mesh, axis))
        if teams is None:
            teams = self._teams[mesh, axis] = mesh_teams(mesh, axis)
        if kind == "local-slice":
            return Transfer(kind, axis, teams, 0, 0)
        return _measured(kind, axis, teams, before, after)


def _between(before: LocalTensor, after: LocalTensor) -> Transfer:
    """Return what goes from one mesh to another."""
    senders, receivers = mesh_devices(before.mesh or ""), mesh_devices(after.mesh or "")
    everyone = [*senders, *(device for device in receivers if device not in senders)]
    divided = [p for p in MESH_AXES if p in before.places or p in after.places]
    axis = (*after.sums_over, *divided, "x")[0]
    if after.sums_over:
        kind = "reduce"
    elif before.places:
        kind = "send-recv" if after.places else "gather"
    else:
        kind = "scatter" if after.places else "broadcast"
    return _measured(kind, axis, [everyone], before, after)


def _measured(
    kind: str, axis: str, teams: list[list[int]], before: LocalTensor, after: LocalTensor
) -> Transfer:
    team = len(teams[0])
    return Transfer(
        kind,
        axis,
        teams,
        bytes_sent(kind, team, before.bytes, after.bytes),
        buffer_bytes(kind, team, before.bytes, after.bytes),
    )
