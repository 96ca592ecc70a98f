# SPDX-License-Identifier: BSD-3-Clause
"""What ``bundle.json`` of a repro bundle must hold: which types, and numbers of which ranges.

All of it is checked here, before anything is made of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from .limits import MAX_AXES, MAX_DEVICES, MAX_SIZE, cut

#: Raises ValueError, which names the place, for a value that it is not for.
Check = Callable[[Any, str], None]

SCALARS: dict[str, type] = {"bool": bool, "int": int, "float": float, "complex": complex}
DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def check_facts(facts: Any) -> None:
    """Check the whole of ``bundle.json``.

    Raises:
        ValueError: something is missing or not what it must be; it says what and where.
    """
    _FACTS(facts, "")


def _fault(value: Any, where: str, wanted: str) -> ValueError:
    return ValueError(f"{where or 'all of it'} is {cut(repr(value))}, not {wanted}")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _fault(value, where, "text")


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise _fault(value, where, "true or false")


def _one_of(*words: str) -> Check:
    def check(value: Any, where: str) -> None:
        if value not in words:
            raise _fault(value, where, f"one of {', '.join(words)}")

    return check


def _matching(pattern: str, wanted: str) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise _fault(value, where, wanted)

    return check


def _whole(low: int, high: int) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _fault(value, where, f"a whole number from {low} to {high}")

    return check


def _or_null(inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def _list(inner: Check, most: int, least: int = 0) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            count = f"{least}" if least == most else f"from {least} to {most}"
            raise _fault(value, where, f"a list of {count} entries")
        for number, item in enumerate(value):
            inner(item, f"{where}[{number}]")

    return check


def _map(inner: Check) -> Check:
    """Any names, and values of one kind."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _fault(value, where, "an object")
        for name, item in value.items():
            inner(item, f"{where}.{name}")

    return check


def _object(**members: Check) -> Check:
    """These names at least; others are left for later versions."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _fault(value, where, "an object")
        for name, inner in members.items():
            place = f"{where}.{name}" if where else name
            if name not in value:
                raise ValueError(f"{place} is missing")
            inner(value[name], place)

    return check


# ---- inputs

_INT64 = _whole(-MAX_SIZE - 1, MAX_SIZE)
_SIZES = _list(_whole(0, MAX_SIZE), MAX_AXES)
_SCALAR = _object(kind=_one_of(*SCALARS, "other"), value=_text)
_TENSOR = _object(
    shape=_SIZES,
    strides=_SIZES,
    dtype=_one_of(*DTYPES),
    device=_text,
    span=_or_null(_list(_INT64, most=2, least=2)),
    values=_or_null(_matching(r"inputs/\d+\.bin", "the name of a member inputs/N.bin")),
)


def _input(value: Any, where: str) -> None:
    if isinstance(value, dict) and "kind" in value:
        _SCALAR(value, where)
        _check_number(value["kind"], value["value"], where)
        return
    _TENSOR(value, where)
    shape, strides = value["shape"], value["strides"]
    if len(shape) != len(strides):
        raise ValueError(f"{where} has the shape {shape} with the strides {strides}")
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if n > 0) + 1
    if max(reach, math.prod(shape)) * DTYPES[value["dtype"]].itemsize > MAX_SIZE:
        raise ValueError(
            f"{where} of the shape {shape} with the strides {strides} is larger than any memory"
        )
    span = value["span"]
    if span is not None and span[0] > span[1]:
        raise ValueError(f"{where}.span ends before it begins: {span}")


def _check_number(kind: str, text: str, where: str) -> None:
    if kind == "bool":
        _one_of("True", "False")(text, f"{where}.value")
    elif kind in SCALARS:
        try:
            SCALARS[kind](text)
        except ValueError:
            raise _fault(text, f"{where}.value", f"of the kind {kind}") from None


_FACTS = _object(
    program_error=_or_null(_text),
    inputs=_or_null(_list(_input, most=1 << 20)),
    parts=_one_of("global", "rank"),
    rank=_whole(0, MAX_DEVICES - 1),
    size=_whole(1, MAX_DEVICES),
    backend=_or_null(_text),
    options=_object(strict=_flag, uneven=_flag, reduce_dtype=_or_null(_text)),
    seeds=_map(_whole(-MAX_SIZE - 1, 2 * MAX_SIZE + 1)),  # as torch.manual_seed takes them
    versions=_map(_text),
    environment=_map(_text),
    error=_or_null(_object(type=_text, message=_text)),
    messages=_map(_text),
    created=_text,
)
