# SPDX-License-Identifier: BSD-3-Clause
"""Values of the sizes that a program leaves open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from .. import _C
from .._C import Error, Fusion, parse_fusion
from ..check_inputs import sizes_that_meet, symbols
from ..limits import MAX_SIZE
from ..program_text import Program, parse
from .local_tensor import size_value

__all__ = [
    "ASSUMED_SIZE",
    "KnownSize",
    "assume_sizes",
    "completed_sizes",
    "known_sizes",
    "not_strict",
]

#: What a size is taken for where it is not known; resharding decides by the same number.
ASSUMED_SIZE = 256
#: As the compiler takes it: a name, numbers, and whether they are all sizes of an input.
KnownSize = tuple[str, list[int], bool]


def known_sizes(
    fusion: Fusion, program: Program, known: Iterable[KnownSize], caller: str = "explain"
) -> dict[str, int]:
    """Return the values by symbol (``"T0.0"``) of sizes as ``fd.explain`` takes them.

    Sizes that an operation needs to be equal to known ones, or to constants, are known too.

    Raises:
        meshfuse.Error: they contradict each other or the program, a name is unknown, or a tensor
            cannot be divided so; the message begins with ``caller``.
    """
    listed = list(known)
    if listed:
        try:
            _C.explain(fusion, listed)  # says what is wrong with them
        except Error as error:
            told = str(error)
            if caller == "explain" or not told.startswith("explain: "):
                raise
            raise Error(f"{caller}: {told.removeprefix('explain: ')}") from error
    found = _with_equal_ones(fusion, program, _by_symbol(program, listed))
    if listed:
        _check_parts(fusion, found, caller)
    return found


def completed_sizes(
    fusion: Fusion, program: Program, known: Iterable[KnownSize], free: int
) -> tuple[dict[str, int], list[str]]:
    """Return values of all open sizes, and those that ``known`` and the operations leave free.

    Args:
        fusion: The program.
        program: Its text.
        known: As the compiler takes it.
        free: What sizes are taken for that are not known.

    Raises:
        meshfuse.Error: a tensor cannot be divided with the sizes that are known.
    """
    found = _with_equal_ones(fusion, program, _by_symbol(program, known), free)
    _check_parts(fusion, found, "explain")
    unknown = [name for name in symbols(program) if name not in found]
    return found | dict.fromkeys(unknown, free), unknown


def _by_symbol(program: Program, known: Iterable[KnownSize]) -> dict[str, int]:
    shapes = {s.names[0]: s.tensors[0].shape() for s in program.inputs() if s.tensors}
    values: dict[str, int] = {}
    for name, given, is_shape in known:
        if not is_shape:
            values[name] = given[0]
            continue
        sizes = zip(shapes.get(name, ()), given, strict=False)
        values |= {text: size for text, size in sizes if not text.isdigit()}
    return values


def assume_sizes(program: Program, values: Mapping[str, int]) -> dict[str, int]:
    """Return the values with ``ASSUMED_SIZE`` for every other open size."""
    return {name: ASSUMED_SIZE for name in symbols(program)} | dict(values)


def _check_parts(fusion: Fusion, values: Mapping[str, int], caller: str) -> None:
    """Raise where an execution with these sizes would: parts are cut from views of one element."""
    try:
        text = _C.FusionExecutorCache(not_strict(fusion), 0).compiled_ir()
    except Error:  # MESHFUSE_STRICT=1 refuses it, whatever the sizes are
        return
    tensors = parse(text).tensors()
    element = torch.empty(())
    for tv in parse_fusion(text, fusion.uneven).tensors():
        if not tv.has_device_mesh() or all(size.isdigit() for size in tensors[tv.name].shape()):
            continue
        try:
            shape = [size_value(size, values) for size in tensors[tv.name].shape()]
        except Error:  # a size is not known
            continue
        if math.prod(shape) > MAX_SIZE:
            raise Error(
                f"{caller}: {tv.name} of sizes {shape} has more elements than a tensor can, "
                f"{MAX_SIZE}. Give smaller sizes."
            )
        try:
            _C.shard_tensor(element.expand(shape), tv, tv.get_device_mesh().devices[0])
        except Error as error:
            told = str(error).removeprefix("shard_tensor: ")
            told = told.removeprefix("Sharded axis must be evenly divisible by mesh; ")
            raise Error(f"{caller}: {told}") from error


def not_strict(fusion: Fusion) -> Fusion:
    """Return the program without strict mode: what to do about its errors is what is asked."""
    if not fusion.strict:
        return fusion
    copy = fusion.clone()
    copy.strict = False
    return copy


def _with_equal_ones(
    fusion: Fusion, program: Program, values: dict[str, int], guessed: int = ASSUMED_SIZE
) -> dict[str, int]:
    """Try numbers for the other sizes: what the compiler says of two that differ is learned."""
    free = [name for name in symbols(program) if name not in values]
    found = dict(values)
    guess = dict.fromkeys(free, guessed)
    for _ in free:
        try:
            _C.explain(fusion, [(name, [n], False) for name, n in (guess | found).items()])
            break
        except Error as error:
            pair = sizes_that_meet(program, str(error))
            if pair is None:
                break  # it is said where the program is compiled
            left, right = (int(s) if s.isdigit() else found.get(s) for s in pair)
            open_one = pair[0] if left is None else pair[1]
            value = right if left is None else left
            if value is None or (left is not None and right is not None):
                break
            found[open_one] = value
    return found
