# SPDX-License-Identifier: BSD-3-Clause
"""Checks of what is read from JSON: which members, of which types, and numbers of which ranges.

A check is called with a value and its place, such as ``inputs[0].shape``, before anything is made
of the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from .limits import cut

__all__ = [
    "Check",
    "fault",
    "flag",
    "list_of",
    "map_of",
    "matching",
    "number",
    "object_of",
    "one_of",
    "or_null",
    "text",
    "whole",
]

#: Raises ValueError, which names the place, for a value that it is not for.
Check = Callable[[Any, str], None]


def fault(value: Any, where: str, wanted: str) -> ValueError:
    """Return the error of a value that is not what is wanted."""
    return ValueError(f"{where or 'all of it'} is {cut(_shown(value))}, not {wanted}")


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python prints no number of thousands of digits
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else "unprintable"


def text(value: Any, where: str) -> None:
    """Accept text."""
    if not isinstance(value, str):
        raise fault(value, where, "text")


def flag(value: Any, where: str) -> None:
    """Accept true and false."""
    if not isinstance(value, bool):
        raise fault(value, where, "true or false")


def one_of(*words: str) -> Check:
    """Accept some words."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in words:
            raise fault(value, where, f"one of {', '.join(words)}")

    return check


def matching(pattern: str, wanted: str) -> Check:
    """Accept texts of a pattern."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise fault(value, where, wanted)

    return check


def whole(low: int, high: int) -> Check:
    """Accept whole numbers of a range."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise fault(value, where, f"a whole number from {low} to {high}")

    return check


def number(*, zero: bool) -> Check:
    """Accept finite numbers above 0, and 0 itself where it makes sense."""

    def check(value: Any, where: str) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf or (value == 0 and not zero):
            raise fault(value, where, "a number of at least 0" if zero else "a number above 0")

    return check


def or_null(inner: Check) -> Check:
    """Accept null, too."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def list_of(inner: Check, most: int, least: int = 0) -> Check:
    """Accept lists of values of one kind."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            count = f"{least}" if least == most else f"from {least} to {most}"
            raise fault(value, where, f"a list of {count} entries")
        for index, item in enumerate(value):
            inner(item, f"{where}[{index}]")

    return check


def map_of(inner: Check, names: Check | None = None) -> Check:
    """Accept objects with any names, or those that ``names`` accepts, and values of one kind."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise fault(value, where, "an object")
        for name, item in value.items():
            if names is not None:
                names(name, f"a name in {where}")
            inner(item, f"{where}.{name}")

    return check


def object_of(optional: Mapping[str, Check] | None = None, **members: Check) -> Check:
    """Accept objects with these members at least; others are left for later versions."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise fault(value, where, "an object")
        for name, inner in members.items():
            place = f"{where}.{name}" if where else name
            if name not in value:
                raise ValueError(f"{place} is missing")
            inner(value[name], place)
        for name, inner in (optional or {}).items():
            if name in value:
                inner(value[name], f"{where}.{name}" if where else name)

    return check
