# SPDX-License-Identifier: BSD-3-Clause
"""Arguments and sizes of a program's text form as Python expressions."""

from __future__ import annotations

import re
from collections.abc import Callable

from .program_text import split_outside

DTYPES = {
    "f64": "Double",
    "f32": "Float",
    "f16": "Half",
    "bf16": "BFloat16",
    "i64": "Int",
    "i32": "Int32",
    "u64": "UInt64",
    "index": "Index",
    "bool": "Bool",
    "c64": "ComplexFloat",
    "c128": "ComplexDouble",
    "f8e4m3fn": "Float8_e4m3fn",
    "f8e5m2": "Float8_e5m2",
    "f8e8m0fnu": "Float8_e8m0fnu",
    "f4e2m1fn": "Float4_e2m1fn",
    "f4e2m1fnx2": "Float4_e2m1fn_x2",
    "null": "Null",
}
_WORDS = {"true": "True", "false": "False", "none": "None"}
_NUMBER = re.compile(r"-?(\d|inf\b|nan\b|complex\()|true$|false$|true:|false:")
_OPS = {"min": "minimum", "max": "maximum", "floorDiv": "div"}  # others have the same name


def dtype_text(dtype: str) -> str:
    """Return ``DataType.Float`` for ``f32``."""
    return f"DataType.{DTYPES[dtype]}"


def float_text(value: float) -> str:
    """Return a number with five decimals, or more where five are not exact."""
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    short = f"{value:.5f}"
    return short if float(short) == value else repr(value)


def define_scalar_text(value: str, dtype: str) -> str:
    """Return the call that makes a constant of a DataType's name."""
    return f"fd.define_scalar({value}, dtype=DataType.{dtype})"


def number_in(text: str) -> tuple[str, str] | None:
    """Return a number in Python and the name of its DataType; None when it is something else."""
    return _number(text) if _NUMBER.match(text) else None


class ValueText:
    """Writes values; tensors and scalars of the program are written as ``names`` has them."""

    def __init__(
        self, names: dict[str, str], constant: Callable[[str, str], str] | None = None
    ) -> None:
        """Write names so.

        Args:
            names: Name in the text form to name in Python.
            constant: Of a number in Python and its dtype, what stands for it where it is an
                operand, given by place; None: the number, or a call of define_scalar where its
                type is not what a Python number has.
        """
        self.names = names
        self._constant = constant or _inline

    def argument(self, text: str) -> tuple[str | None, str]:
        """Return keyword (None: by place) and Python text of an argument of an op."""
        parts = split_outside(text, "=")
        if len(parts) == 1:
            return None, self.value(text)
        value = "=".join(parts[1:])
        number = number_in(value)  # an attribute stays a number, as in dropout's p=0.5
        return parts[0], self.value(value) if number is None else _inline(*number)

    def value(self, text: str) -> str:
        """Return the Python text of a value."""
        if text.startswith('"'):
            return text
        if text.startswith("["):
            return self.list_of(split_outside(text[1:-1], ","))
        if text in _WORDS:
            return _WORDS[text]
        if text in self.names:
            return self.names[text]
        if text in DTYPES:
            return dtype_text(text)
        if re.fullmatch(r"-?\d+", text):
            return text
        if _NUMBER.match(text):
            return self._constant(*_number(text))
        return self.scalar(text)

    def list_of(self, items: list[str]) -> str:
        """Return a list; numbers in it are sizes or positions, without a type."""
        return f"[{', '.join(self._item(item) for item in items)}]"

    def scalar(self, text: str) -> str:
        """Return a scalar: a number, a symbol, a size, or an expression."""
        if text.startswith("("):
            return self.scalar(text[1:-1])
        if text in self.names:
            return self.names[text]
        if _NUMBER.match(text):
            value, dtype = _number(text)
            return value if dtype in ("Index", "Int", "Double", "Bool") else _inline(value, dtype)
        if text.endswith(")"):
            return self._call(*text[:-1].split("(", 1))
        tensor, dot, axis = text.rpartition(".")
        if dot and tensor in self.names and axis.isdigit():
            return f"{self.names[tensor]}.size({axis})"
        raise ValueError(f"program text: not a scalar: {text}")

    def _item(self, text: str) -> str:
        return self.value(text) if not _NUMBER.match(text) else self.scalar(text)

    def _call(self, function: str, operands: str) -> str:
        parts = split_outside(operands, ",")
        if function == "cast":
            return f"fd.ops.cast({self.scalar(parts[0])}, dtype={dtype_text(parts[1])})"
        args = [self.scalar(part) for part in parts]
        if function == "ceilDiv":
            more = f"fd.ops.sub({args[1]}, 1)" if not args[1].isdigit() else f"{int(args[1]) - 1}"
            return f"fd.ops.div(fd.ops.add({args[0]}, {more}), {args[1]})"
        return f"fd.ops.{_OPS.get(function, function)}({', '.join(args)})"


def _inline(value: str, dtype: str) -> str:
    if dtype in ("Double", "Bool", "ComplexDouble", "Int"):
        return value
    return define_scalar_text(value, dtype)


def _number(text: str) -> tuple[str, str]:
    """Return a number in Python and the name of its DataType."""
    body, colon, dtype = text.partition(":")
    if body in _WORDS:
        return _WORDS[body], DTYPES[dtype] if colon else "Bool"
    if body.startswith("complex("):
        real, imaginary = (float(part) for part in body[8:-1].split(","))
        value = f"complex({_exact(real)}, {_exact(imaginary)})"
        return value, DTYPES[dtype] if colon else "ComplexDouble"
    if re.fullmatch(r"-?\d+", body):
        return body, DTYPES[dtype] if colon else "Int"
    return float_text(float(body)), DTYPES[dtype] if colon else "Double"


def _exact(value: float) -> str:
    return float_text(value) if value != value or abs(value) == float("inf") else repr(value)
