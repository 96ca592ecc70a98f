# SPDX-License-Identifier: BSD-3-Clause
"""What ``bundle.json`` of a repro bundle must hold: which types, and numbers of which ranges.

All of it is checked here, before anything is made of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .json_facts import (
    fault,
    flag,
    list_of,
    map_of,
    matching,
    object_of,
    one_of,
    or_null,
    text,
    whole,
)
from .limits import MAX_AXES, MAX_DEVICES, MAX_SIZE

SEEDS = (-MAX_SIZE - 1, 2 * MAX_SIZE + 1)  # as torch.manual_seed takes them
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


# ---- inputs

_INT64 = whole(-MAX_SIZE - 1, MAX_SIZE)
_SIZES = list_of(whole(0, MAX_SIZE), MAX_AXES)
_SCALAR = object_of(kind=one_of(*SCALARS, "other"), value=text)
_TENSOR = object_of(
    shape=_SIZES,
    strides=_SIZES,
    dtype=one_of(*DTYPES),
    device=text,
    span=or_null(list_of(_INT64, most=2, least=2)),
    values=or_null(matching(r"inputs/\d+\.bin", "the name of a member inputs/N.bin")),
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


def _check_number(kind: str, written: str, where: str) -> None:
    if kind == "bool":
        one_of("True", "False")(written, f"{where}.value")
    elif kind in SCALARS:
        try:
            SCALARS[kind](written)
        except ValueError:
            raise fault(written, f"{where}.value", f"of the kind {kind}") from None


_FACTS = object_of(
    program_error=or_null(text),
    inputs=or_null(list_of(_input, most=1 << 20)),
    parts=one_of("global", "rank"),
    rank=whole(0, MAX_DEVICES - 1),
    size=whole(1, MAX_DEVICES),
    backend=or_null(text),
    options=object_of(strict=flag, uneven=flag, reduce_dtype=or_null(text)),
    seeds=map_of(whole(*SEEDS)),
    versions=map_of(text),
    environment=map_of(text),
    error=or_null(object_of(type=text, message=text)),
    messages=map_of(text),
    created=text,
)
