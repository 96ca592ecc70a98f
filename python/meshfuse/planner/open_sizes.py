# SPDX-License-Identifier: BSD-3-Clause
"""Values of the sizes that a program leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .. import _C
from .._C import Error, Fusion
from ..check_inputs import sizes_that_meet, symbols
from ..program_text import Program

__all__ = ["ASSUMED_SIZE", "KnownSize", "assume_sizes", "known_sizes"]

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
        meshfuse.Error: they contradict each other or the program, or a name is unknown; the
            message begins with ``caller``.
    """
    shapes = {s.names[0]: s.tensors[0].shape() for s in program.inputs() if s.tensors}
    values: dict[str, int] = {}
    listed = list(known)
    if listed:
        try:
            _C.explain(fusion, listed)  # says what is wrong with them
        except Error as error:
            told = str(error)
            if caller == "explain" or not told.startswith("explain: "):
                raise
            raise Error(f"{caller}: {told.removeprefix('explain: ')}") from error
    for name, given, is_shape in listed:
        if not is_shape:
            values[name] = given[0]
            continue
        sizes = zip(shapes.get(name, ()), given, strict=False)
        values |= {text: size for text, size in sizes if not text.isdigit()}
    return _with_equal_ones(fusion, program, values)


def assume_sizes(program: Program, values: Mapping[str, int]) -> dict[str, int]:
    """Return the values with ``ASSUMED_SIZE`` for every other open size."""
    return {name: ASSUMED_SIZE for name in symbols(program)} | dict(values)


def _with_equal_ones(fusion: Fusion, program: Program, values: dict[str, int]) -> dict[str, int]:
    """Try numbers for the other sizes: what the compiler says of two that differ is learned."""
    free = [name for name in symbols(program) if name not in values]
    found = dict(values)
    guess = {name: ASSUMED_SIZE for name in free}
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
