# SPDX-License-Identifier: BSD-3-Clause
"""Values of the size expressions of a program's text, and stand-ins for sizes that are open."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping

from ..program_text import Program, Transform
from .ownership import MeshShape

_TOKEN = re.compile(r"[A-Za-z_]\w*(?:\.\d+)?|-?\d+(?::\w+)?|[(),]")
_SYMBOL = re.compile(r"[A-Za-z_]\w*(?:\.\d+)?")
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "ceilDiv": lambda a, b: -(-a // b),
    "floorDiv": operator.floordiv,
    "div": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "neg": operator.neg,
    "cast": lambda value, _dtype: value,
}


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """Return the value of an extent such as ``(ceilDiv(T0.1, 4))``.

    Raises:
        KeyError: a symbol has no value.
    """
    return _value(iter(_TOKEN.findall(text)), sizes)[0]


def _value(tokens: Iterator[str], sizes: Mapping[str, int]) -> tuple[int, str]:
    """Return a value and the token behind it."""
    token = next(tokens)
    if token == "(":
        value, _ = _value(tokens, sizes)
        return value, next(tokens, "")
    if token[0] in "-0123456789":
        return int(token.partition(":")[0]), next(tokens, "")
    if token not in _FUNCTIONS:
        return sizes[token], next(tokens, "")
    arguments: list[int] = []
    behind = next(tokens)  # the opening bracket
    while behind != ")":
        if token == "cast" and arguments:
            arguments.append(0)
            next(tokens)  # the type
            behind = next(tokens)
            continue
        value, behind = _value(tokens, sizes)
        arguments.append(value)
    return _FUNCTIONS[token](*arguments), next(tokens, "")


def open_sizes(program: Program) -> list[str]:
    """Return the symbols that the sizes of tensors depend on, in order of appearance."""
    found: dict[str, None] = {}
    for tensor in program.tensors().values():
        for axis in tensor.axes().values():
            for text in (axis.extent, axis.expanded or ""):
                for word in _SYMBOL.findall(text):
                    if word not in _FUNCTIONS and not re.match(rf".*:{word}\b", text):
                        found[word] = None
    return list(found)


def stand_in(program: Program) -> int:
    """Return a size that every split of the program divides, at least two elements per device."""
    factors = [1]
    for tensor in program.tensors().values():
        if tensor.mesh:
            factors.append(MeshShape.parse(tensor.mesh).size)
        for item in tensor.items:
            if isinstance(item, Transform) and item.words[0] == "split":
                factors += [int(word) for word in item.words[3:4] if word.isdigit()]
    return 2 * math.lcm(*(factor for factor in factors if factor > 0))


def bound_sizes(program: Program, shapes: Mapping[str, tuple[int, ...] | int]) -> dict[str, int]:
    """Return the values of symbols that shapes of inputs, or values by symbol, give."""
    tensors = program.tensors()
    sizes: dict[str, int] = {}
    for name, given in shapes.items():
        if isinstance(given, int):
            sizes[name] = given
            continue
        for text, value in zip(tensors[name].shape() if name in tensors else (), given):  # noqa: B905
            if _SYMBOL.fullmatch(text):
                sizes[text] = value
    return sizes
