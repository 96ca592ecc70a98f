# SPDX-License-Identifier: BSD-3-Clause
"""The text form of a program as lines that can be changed and printed again.

``parse(fd.ir())`` gives a ``Program``; ``str(program)`` is text that ``meshfuse.parse_ir`` reads.
Nothing is checked here beyond the outer form: ``parse_ir`` checks the result. The grammar is in
docs/ir.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ._C import Error

_ID = re.compile(
    r"(?P<kind>[irbs])(?P<number>\d+)"
    r"(?:\{(?P<extent>.*?)(?: exp (?P<expanded>.*?))?\}(?P<product> ?rf)?)?(?:@(?P<parallel>\w+))?"
    r"(?: swizzle (?P<swizzle>[xyz]))?"
)
MESH_AXES = ("x", "y", "z")
STRING = r'"(?:[^"\\]|\\.)*"'  #: pattern of a string, in which \\ and \" are escaped
_INTO = " -> "  # between a result and the input whose memory takes it
_FLOATS = {"f32": "f64", "f16": "f64", "bf16": "f64", "f8e4m3fn": "f64", "f8e5m2": "f64"}
_WIDER = {**_FLOATS, "c64": "c128"}


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor as it is declared: ``i2{2}@x``."""

    kind: str
    number: int
    extent: str
    expanded: str | None = None
    product: bool = False
    parallel: str | None = None
    swizzle: str | None = None

    @property
    def ref(self) -> str:
        """The name by which items refer to the axis."""
        return f"{self.kind}{self.number}"

    @property
    def size(self) -> str:
        """Extent that a torch tensor has there."""
        return self.extent if self.expanded is None else self.expanded

    def __str__(self) -> str:
        """Return the text form."""
        expanded = "" if self.expanded is None else f" exp {self.expanded}"
        parallel = "" if self.parallel is None else f"@{self.parallel}"
        swizzle = "" if self.swizzle is None else f" swizzle {self.swizzle}"
        product = "rf" if self.product else ""
        return f"{self.ref}{{{self.extent}{expanded}}}{product}{parallel}{swizzle}"


@dataclass(frozen=True)
class Transform:
    """A split or merge: the axes it makes, and ``split i1 outer 2`` as words."""

    made: tuple[Axis, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text form."""
        return f"{', '.join(map(str, self.made))} = {' '.join(self.words)}"


@dataclass(frozen=True)
class Tensor:
    """A tensor: its type, schedule and mesh."""

    dtype: str
    root: tuple[Axis, ...]
    cpu: bool = False
    items: tuple[Transform | str, ...] = ()
    mesh: str | None = None

    def __str__(self) -> str:
        """Return the text form."""
        text = f"{self.dtype}[{', '.join(map(str, self.root))}]" + (" cpu" if self.cpu else "")
        if self.items:
            text += f" {{ {'; '.join(map(str, self.items))} }}"
        return text + (f" {self.mesh}" if self.mesh else "")

    def axes(self) -> dict[str, Axis]:
        """Every axis by its name, those that transforms make included."""
        found = {axis.ref: axis for axis in self.root}
        for item in self.items:
            if isinstance(item, Transform):
                found.update((axis.ref, axis) for axis in item.made)
        return found

    def logical(self) -> list[Axis]:
        """Axes of the torch tensor, and reductions."""
        listed = self.item("logical")
        known = self.axes()
        return list(self.root) if listed is None else [known[ref] for ref in listed]

    def shape(self) -> list[str]:
        """Sizes of the torch tensor, as text."""
        return [axis.size for axis in self.logical() if axis.kind != "r"]

    def without_reductions(self) -> Tensor:
        """Return the tensor as its readers see it; memory order is dropped, too."""
        items: list[Transform | str] = []
        for item in self.items:
            if isinstance(item, Transform):
                if item.made[0].kind != "r":
                    items.append(item)
            elif item.split()[0] == "loop":
                items.append(" ".join(word for word in item.split() if word[0] != "r"))
        root = tuple(axis for axis in self.root if axis.kind != "r")
        return replace(self, root=root, items=tuple(items))

    def item(self, word: str) -> list[str] | None:
        """What stands behind an item's first word; None when there is no such item."""
        for item in self.items:
            if isinstance(item, str) and item.split()[0] == word:
                return item.split()[1:]
        return None


@dataclass(frozen=True)
class Statement:
    """An input (no call) or an operation; a scalar input has its type as ``scalar``."""

    names: tuple[str, ...]
    call: str | None
    tensors: tuple[Tensor, ...]
    scalar: str | None = None

    def __str__(self) -> str:
        """Return the text form."""
        names = ", ".join(self.names)
        types = self.scalar or "; ".join(map(str, self.tensors))
        return f"{names}: {types}" if self.call is None else f"{names} = {self.call}: {types}"

    @property
    def op(self) -> str | None:
        """Name of the operation; None for an input."""
        return None if self.call is None else self.call.partition("(")[0]

    def mentions(self) -> set[str]:
        """Names that the call and the sizes refer to."""
        text = re.sub(STRING, "", f"{self.call or ''} {'; '.join(map(str, self.tensors))}")
        return set(re.findall(r"[A-Za-z_]\w*", text))


@dataclass(frozen=True)
class Program:
    """A whole program."""

    statements: tuple[Statement, ...]
    results: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        """Return the text form."""
        return "\n".join([*map(str, self.statements), f"return {', '.join(self.results)}", ""])

    def inputs(self) -> list[Statement]:
        """Statements of the inputs, in order."""
        return [s for s in self.statements if s.call is None]

    def result_names(self) -> list[str]:
        """Name of each result, or its number, in order."""
        return [result.partition(_INTO)[0] for result in self.results]

    def overwritten(self) -> list[str]:
        """Name of the input whose memory takes each result, in order; "" where none does."""
        return [result.partition(_INTO)[2] for result in self.results]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name."""
        return {
            name: tensor
            for s in self.statements
            for name, tensor in zip(s.names, s.tensors, strict=False)
        }

    def meshes(self) -> list[str]:
        """The different meshes of its tensors, in order of appearance."""
        return list(dict.fromkeys(t.mesh for t in self.tensors().values() if t.mesh))

    def keep_results(self, results: list[str]) -> Program:
        """Return the part that these results need; inputs that nothing reads are dropped."""
        needed = {name for result in results for name in re.findall(r"[A-Za-z_]\w*", result)}
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if needed & set(statement.names):
                kept.append(statement)
                needed |= statement.mentions()
        return Program(tuple(reversed(kept)), tuple(results))

    def map_tensors(self, change: Callable[[str, Tensor], Tensor]) -> Program:
        """Return the program with ``change(name, tensor)`` in place of every tensor."""
        statements = tuple(
            replace(
                s,
                tensors=tuple(
                    change(name, tensor) for name, tensor in zip(s.names, s.tensors, strict=False)
                ),
            )
            for s in self.statements
        )
        return replace(self, statements=statements)


def parse(text: str) -> Program:
    """Read a program that ``fd.ir()`` printed."""
    statements = []
    results: tuple[str, ...] = ()
    for line in text.split("\n"):  # names of mesh axes may have other ends of lines, as U+2028
        if line.startswith("return"):
            results = tuple(split_outside(line.removeprefix("return"), ","))
        elif line.strip():
            statements.append(_statement(line))
    return Program(tuple(statements), results)


def unsharded(program: Program) -> Program:
    """Return the program without schedules and meshes; its inputs may have any strides.

    A reduction that an rfactor has cut in two is one again.

    Raises:
        meshfuse.Error: the first half of a reduction is used for something else, too.
    """

    def strip(name: str, tensor: Tensor) -> Tensor:
        root = tuple(replace(axis, parallel=None, swizzle=None) for axis in tensor.root)
        items: tuple[str, ...] = ()
        if name in inputs and root:
            flags = ["n" if axis.kind in "br" else "f" for axis in root]
            items = ("alloc contig " + " ".join(flags),)
        return replace(tensor, root=root, items=items, mesh=None)

    inputs = {s.names[0] for s in program.inputs()}
    bare = _joined(program).map_tensors(strip)
    return replace(bare, results=tuple(program.result_names()))


def _joined(program: Program) -> Program:
    """Return the program with ``q = sum(p)`` made the whole reduction where ``p`` is a half."""
    halves = {s.names[0]: s for s in program.statements if s.call and s.tensors[0].item("logical")}
    statements: list[Statement] = []
    for statement in program.statements:
        if statement.names[0] in halves:
            continue
        read = [name for name in halves if name in statement.mentions()]
        if read and (len(read) > 1 or statement.op != "sum"):
            raise Error(
                f"check: {read[0]} is the part of a reduction that an rfactor left to a device, "
                f"and {statement.names[0]} = {statement.call} reads it. Without a mesh it has no "
                "meaning. Check the program without that operation."
            )
        if read:
            half = halves[read[0]]
            whole = replace(half.tensors[0], items=(), mesh=None)
            statement = replace(statement, call=half.call, tensors=(whole,))
        statements.append(statement)
    shown = [result for result in program.results if result in halves]
    if shown:
        raise Error(
            f"check: the result {shown[0]} is the part of a reduction that an rfactor left to a "
            "device. Without a mesh it has no meaning. Return the whole reduction."
        )
    return replace(program, statements=tuple(statements))


def in_double(program: Program) -> Program:
    """Return the program with every floating-point type of less than 64 bits made f64 (or c128)."""

    def widen(match: re.Match[str]) -> str:
        return match[1] + _WIDER[match[2]]

    pattern = re.compile(r"(dtype=|:)(" + "|".join(_WIDER) + r")\b")
    statements = tuple(
        replace(
            s,
            call=None if s.call is None else pattern.sub(widen, s.call),
            scalar=None if s.scalar is None else _WIDER.get(s.scalar, s.scalar),
            tensors=tuple(replace(t, dtype=_WIDER.get(t.dtype, t.dtype)) for t in s.tensors),
        )
        for s in program.statements
    )
    return replace(program, statements=statements)


def split_outside(text: str, separator: str) -> list[str]:
    """Split at separators that are outside brackets and strings; parts are stripped."""
    parts, depth, quoted, escaped, start = [], 0, False, False, 0
    for position, char in enumerate(text):
        if char == '"' and not escaped:
            quoted = not quoted
        elif quoted:
            escaped = char == "\\" and not escaped
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _statement(line: str) -> Statement:
    head, *rest = split_outside(line, ":")
    types = ":".join(rest)  # the only ":" outside brackets and strings stands before the types
    if "=" not in head.partition("(")[0]:
        if "[" not in types:
            return Statement((head,), None, (), types)
        return Statement((head,), None, (_tensor(types),))
    names, _, call = head.partition("=")
    tensors = tuple(_tensor(part) for part in split_outside(types, ";"))
    return Statement(tuple(split_outside(names, ",")), call.strip(), tensors)


def _tensor(text: str) -> Tensor:
    dtype, rest = text.split("[", 1)
    close = _closing(rest)
    root = tuple(_axis(part) for part in split_outside(rest[:close], ","))
    rest = rest[close + 1 :].strip()
    cpu = rest.startswith("cpu")
    rest = rest.removeprefix("cpu").strip()
    items: tuple[Transform | str, ...] = ()
    if rest.startswith("{"):
        close = _closing(rest[1:]) + 1
        items = tuple(_item(part) for part in split_outside(rest[1:close], ";"))
        rest = rest[close + 1 :].strip()
    return Tensor(dtype.strip(), root, cpu, items, rest or None)


def _closing(text: str) -> int:
    """Return the position of the bracket that closes one opened just before ``text``."""
    depth = 0
    for position, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                return position
            depth -= 1
    raise ValueError(f"program text: a bracket is not closed: {text}")


def _axis(text: str) -> Axis:
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(f"program text: not an axis: {text}")
    return Axis(
        match["kind"],
        int(match["number"]),
        match["extent"] or "",
        match["expanded"],
        match["product"] is not None,
        match["parallel"],
        match["swizzle"],
    )


def _item(text: str) -> Transform | str:
    if "=" not in text:
        return text
    made, _, words = text.partition("=")
    # The factor of a split may be an expression with blanks: it is the fourth word.
    kind, *parts = words.split(maxsplit=3 if words.split()[0] == "split" else -1)
    return Transform(tuple(_axis(part) for part in split_outside(made, ",")), (kind, *parts))
