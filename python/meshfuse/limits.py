# SPDX-License-Identifier: BSD-3-Clause
"""The greatest meshes, tensors and numbers that are read from text, and how messages quote it."""

from __future__ import annotations

from .exceptions import Error

MAX_DEVICES = 1 << 20  # of a mesh, and of a simulated one: kMaxDevices of ir/device_mesh.h
MAX_AXES = 64  # of a tensor: torch's reductions take no more
MAX_SIZE = (1 << 63) - 1  # of an axis: what an int64 holds
_QUOTED = 120  # characters of a text that a message repeats


def check_axes(count: int, caller: str) -> None:
    """Raise where a tensor cannot have so many axes.

    Raises:
        meshfuse.Error: it has more than ``MAX_AXES``.
    """
    if count > MAX_AXES:
        raise Error(
            f"{caller}: {count} axes are more than a tensor has, at most {MAX_AXES}. Give one "
            "entry per axis of the tensor."
        )


def whole_number(digits: str, most: int) -> int | None:
    """Return the number that digits write; None where it is greater than ``most``."""
    if len(digits.lstrip("0")) > len(str(most)):  # int() refuses thousands of digits
        return None
    number = int(digits)
    return number if number <= most else None


def cut(text: str) -> str:
    """Return a text for a message: of a long one the beginning, and its length.

    Example:
        >>> cut("x" * 1000)[-25:]
        'xxxx... (1000 characters)'
    """
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}... ({len(text)} characters)"
