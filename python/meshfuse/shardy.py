# SPDX-License-Identifier: BSD-3-Clause
"""Shardings and meshes in the text form of OpenXLA's Shardy dialect.

``#sdy.sharding<@mesh, [{"x", "y"}, {}]>`` lists for each tensor axis the mesh axes that divide it,
the one of the largest blocks first; ``sdy.mesh @mesh = <["x"=2, "y"=4]>`` the sizes of the mesh
axes, the outermost first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

import torch

from ._C import DeviceMesh, ParallelType
from .axis_layout import mesh_axes
from .exceptions import Error
from .limits import MAX_DEVICES, cut, whole_number
from .partition_spec import axis_names

_Item = TypeVar("_Item")

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<symbol>@(?:[A-Za-z_][\w.$-]*|"[^"]*"))|(?P<int>[0-9]+)
    |(?P<word>\#?[A-Za-z_][\w.]*)|(?P<mark>[][{}<>(),=:?]))""",
    re.VERBOSE,
)
_HOW = (
    'Write #sdy.sharding<@mesh, [{"x"}, {}]>: for each tensor axis its mesh axes in braces, and '
    'before it, if you like, the line sdy.mesh @mesh = <["x"=2, "y"=4]>.'
)


@dataclass
class ShardyText:
    """What a text says.

    Attributes:
        axes: Names of mesh axes for each tensor axis.
        replicated: Names of mesh axes over which the tensor is whole, where that is said.
        unreduced: Names of mesh axes over which it is a sum of parts.
        mesh: The mesh, if the text has one.
    """

    axes: list[list[str]] = field(default_factory=list)
    replicated: list[str] = field(default_factory=list)
    unreduced: list[str] = field(default_factory=list)
    mesh: DeviceMesh | None = None


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


def read_shardy(text: str) -> ShardyText:
    """Return what a sharding, with or without the line of its mesh, says.

    Raises:
        meshfuse.Error: it is not Shardy's syntax, or says what no sharding here can say.
    """
    return _Reader("from_shardy", text).sharding_with_mesh()


def read_mesh(text: str) -> DeviceMesh:
    """Return the mesh that a line ``sdy.mesh @mesh = <["x"=2, "y"=4]>`` describes.

    Raises:
        meshfuse.Error: it is not Shardy's syntax, or has more than three axes.
    """
    reader = _Reader("from_shardy", text)
    _, mesh = reader.mesh_line()
    reader.end()
    return mesh


def write_shardy(
    entries: Iterable[Sequence[ParallelType]],
    unreduced: Sequence[ParallelType],
    mesh: DeviceMesh | None,
) -> str:
    """Return the text of a sharding, in the names that the mesh gives its axes, else x, y and z."""
    names = {axis: name for name, axis in reversed(axis_names(mesh).items())}
    dims = ["{" + ", ".join(_quoted(names[axis]) for axis in entry) + "}" for entry in entries]
    parts = ["@mesh", f"[{', '.join(dims)}]"]
    if unreduced:
        order = list(mesh_axes(mesh)) if mesh is not None else sorted(unreduced, key=str)
        listed = [_quoted(names[axis]) for axis in order if axis in unreduced]
        parts.append(f"unreduced={{{', '.join(listed)}}}")
    return f"#sdy.sharding<{', '.join(parts)}>"


def write_mesh(mesh: DeviceMesh) -> str:
    """Return the line that describes a mesh."""
    names = {axis: name for name, axis in reversed(axis_names(mesh).items())}
    axes = [
        f"{_quoted(names[axis])}={size}"
        for axis, size in zip(mesh_axes(mesh), mesh.shape, strict=True)
    ]
    devices = list(mesh.devices)
    listed = (
        ""
        if devices == list(range(mesh.size))
        else f", device_ids=[{', '.join(map(str, devices))}]"
    )
    return f"sdy.mesh @mesh = <[{', '.join(axes)}]{listed}>"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Reader:
    """Reads the tokens of a text from left to right."""

    def __init__(self, caller: str, text: str) -> None:
        self.caller, self.text = caller, text
        self.tokens: list[_Token] = []
        self.at = 0
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                place += len(text[place:]) - len(text[place:].lstrip())
                self.fail(f"found {text[place]!r} in column {place + 1}")
            kind = match.lastgroup
            self.tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
            place = match.end()

    def fail(self, fact: str, advice: str = _HOW) -> NoReturn:
        raise Error(f"{self.caller}: cannot read '{cut(self.text.strip())}': {fact}. {advice}")

    def refuse(self, fact: str, advice: str) -> NoReturn:
        raise Error(f"{self.caller}: '{cut(self.text.strip())}': {fact}. {advice}")

    # ---- tokens

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> bool:
        """Go behind the next token if it is one of these."""
        if self.peek() not in wanted or not self.peek():
            return False
        self.at += 1
        return True

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            self.unexpected(f"'{wanted}'")

    def kind(self, kind: str, what: str) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at].kind != kind:
            self.unexpected(what)
        self.at += 1
        return self.tokens[self.at - 1].text

    def unexpected(self, wanted: str) -> NoReturn:
        if self.at >= len(self.tokens):
            self.fail(f"it ends where {wanted} is expected")
        token = self.tokens[self.at]
        self.fail(f"column {token.column} has {token.text!r} where {wanted} is expected")

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.unexpected("the end")

    def items(self, opening: str, closing: str, item: Callable[[], _Item]) -> list[_Item]:
        """Read a list in brackets."""
        self.expect(opening)
        found: list[_Item] = []
        while not self.take(closing):
            if found:
                self.expect(",")
            found.append(item())
        return found

    def name(self) -> str:
        return re.sub(r"\\(.)", r"\1", self.kind("string", 'a mesh axis such as "x"')[1:-1])

    # ---- meshes

    def mesh_line(self) -> tuple[str, DeviceMesh]:
        self.expect("sdy.mesh")
        symbol = self.kind("symbol", "the name of the mesh, @mesh,")
        self.expect("=")
        self.take("#sdy.mesh", "mesh")
        return symbol, self.mesh_body()

    def mesh_body(self) -> DeviceMesh:
        self.expect("<")
        axes = self.items("[", "]", self.mesh_axis)
        devices: list[int] | None = None
        if self.take(","):
            self.expect("device_ids")
            self.expect("=")
            devices = self.items("[", "]", self.device)
        self.expect(">")
        return self.make_mesh(axes, devices)

    def device(self) -> int:
        return self.number("device", "Devices are numbered from 0", MAX_DEVICES - 1)

    def mesh_axis(self) -> tuple[str, int]:
        name = self.name()
        self.expect("=")
        return name, self.number(f"the size of {_quoted(name)},", "Give its size", MAX_DEVICES)

    def number(self, what: str, advice: str, most: int) -> int:
        digits = self.kind("int", "a number")
        value = whole_number(digits, most)
        if value is None:
            shown = digits if len(digits) < 30 else f"of {len(digits)} digits"
            self.refuse(f"{what} {shown} is too large", f"{advice}, at most {most}.")
        return value

    def make_mesh(self, axes: list[tuple[str, int]], devices: list[int] | None) -> DeviceMesh:
        names, shape = [name for name, _ in axes], [size for _, size in axes]
        if not axes:
            self.refuse(
                "the mesh has no axes",
                'Give at least one axis; a single device 3 is <["x"=1], device_ids=[3]>.',
            )
        if len(axes) > 3:
            self.refuse(
                f"the mesh has {len(axes)} axes, but at most 3 can be had: mesh_z, mesh_y and "
                "mesh_x",
                "Join axes that divide no tensor by themselves.",
            )
        count = math.prod(shape)
        if count > MAX_DEVICES:
            self.refuse(
                f"the mesh has {count} devices ({' x '.join(map(str, shape))}), but at most "
                f"{MAX_DEVICES} can be had",
                "Give the mesh as it is in the program.",
            )
        ids = list(range(count)) if devices is None else devices
        if len(ids) != count or count == 0:
            self.refuse(
                f"the mesh has {count} places ({' x '.join(map(str, shape))}), but {len(ids)} "
                "device ids",
                "Give one device per place, and sizes of at least 1.",
            )
        return DeviceMesh(torch.tensor(ids).reshape(shape), names=names)

    # ---- shardings

    def sharding_with_mesh(self) -> ShardyText:
        symbol, mesh = self.mesh_line() if self.peek() == "sdy.mesh" else (None, None)
        if self.take("sdy.sharding"):  # as an attribute of an operation
            self.expect("=")
        if not self.take("#sdy.sharding"):
            self.unexpected("#sdy.sharding")
        self.expect("<")
        result = ShardyText(mesh=mesh)
        if self.take("mesh", "#sdy.mesh"):
            result.mesh = self.mesh_body()
        else:
            named = self.kind("symbol", "the mesh, @mesh,")
            if symbol is not None and named != symbol:
                self.refuse(
                    f"the sharding is on {named}, but the text describes {symbol}",
                    "Give the mesh of the sharding.",
                )
        self.expect(",")
        result.axes = [axes for axes in self.items("[", "]", self.dim)]
        while self.take(","):
            self.group(result)
        self.expect(">")
        self.end()
        return result

    def group(self, result: ShardyText) -> None:
        for word in ("replicated", "unreduced"):
            if self.take(word):
                self.expect("=")
                getattr(result, word).extend(self.items("{", "}", self.axis))
                return
        self.unexpected("replicated={...} or unreduced={...}")

    def dim(self) -> list[str]:
        """Read the entry of one tensor axis."""

        def item() -> str:
            if self.take("?"):
                self.refuse(
                    "an open axis ('?') lets propagation divide it further, but shardings that a "
                    "user gave are never changed here",
                    "Leave out the '?', or give the tensor no sharding: propagation then chooses "
                    "all of it.",
                )
            return self.axis()

        axes = self.items("{", "}", item)
        if re.fullmatch(r"p\d+", self.peek()):
            self.refuse(
                f"priority {self.peek()} orders the propagation of annotations, but here all are "
                "propagated together",
                "Leave it out.",
            )
        return axes

    def axis(self) -> str:
        name = self.name()
        if self.peek() == ":":
            rest = "".join(token.text for token in self.tokens[self.at : self.at + 5])
            self.refuse(
                f'"{name}"{rest} is a part of a mesh axis, and a tensor axis is divided over whole '
                "ones",
                "Make the mesh with the two parts as axes of their own.",
            )
        return name
