# SPDX-License-Identifier: BSD-3-Clause
"""Random inputs for ``FusionDefinition.check``: sizes, values and strides."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .exceptions import Error
from .program_text import MESH_AXES, Axis, Program, Tensor, Transform
from .remesh import mesh_shape

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "index": torch.int64,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "u64": torch.uint64,
}


@dataclass(frozen=True)
class Strides:
    """How a tensor lies in memory.

    Attributes:
        order: Axes from the outermost to the innermost.
        gaps: For each axis, in how many steps of its dense stride one goes along it.
        expanded: Axes of stride 0.
    """

    order: tuple[int, ...]
    gaps: tuple[int, ...]
    expanded: tuple[int, ...] = ()


@dataclass
class InputPlan:
    """What is needed to make the inputs of one example again."""

    sizes: dict[str, int]
    seed: int
    span: tuple[int, int] = (-8, 8)  # of integers
    strides: dict[str, Strides] = field(default_factory=dict)  # by input


def random_values(
    shape: list[int],
    dtype: torch.dtype,
    seed: int,
    span: tuple[int, int] = (-8, 8),
    expanded: tuple[int, ...] = (),
) -> torch.Tensor:
    """Return quarters between -2 and 2, or integers of a span; they are exact in every dtype."""
    base = [min(1, n) if axis in expanded else n for axis, n in enumerate(shape)]
    if dtype.is_floating_point or dtype.is_complex:
        span = (-8, 8)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(span[0], span[1] + 1, base, generator=generator)
    if dtype.is_complex:
        imaginary = torch.randint(span[0], span[1] + 1, base, generator=generator)
        values = torch.complex(values / 4.0, imaginary / 4.0)
    elif dtype.is_floating_point:
        values = values / 4.0
    elif dtype == torch.bool:
        values = values > 0
    elif dtype == torch.uint64:
        values = values.abs()
    return values.to(dtype).expand(shape)


def check_memory(caller: str, nbytes: int, devices: int, advice: str) -> None:
    """Refuse inputs that are larger than this machine's memory, before they are made.

    Raises:
        meshfuse.Error: the inputs, their parts, and a copy for the program alone do not fit.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 3 * nbytes > memory:
        raise Error(
            f"{caller}: inputs of {nbytes} bytes on {devices} simulated "
            f"device{'' if devices == 1 else 's'} need three times as much memory, but this "
            f"machine has {memory} bytes. {advice}"
        )


def lay_out(
    tensor: torch.Tensor,
    order: tuple[int, ...],
    gaps: tuple[int, ...],
    expanded: tuple[int, ...] = (),
) -> torch.Tensor:
    """Copy a tensor into memory where its axes have this order and these gaps."""
    shape = tensor.shape
    for axis in expanded:
        tensor = tensor.narrow(axis, 0, min(1, tensor.size(axis)))
    strides, step = [0] * tensor.dim(), 1
    for axis in reversed(order):
        strides[axis] = step * gaps[axis]
        step = strides[axis] * max(tensor.size(axis), 1)
    return (
        torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor).expand(shape)
    )


def extent_value(extent: str, sizes: Mapping[str, int]) -> int | None:
    """Return the number that an extent stands for; None for an expression."""
    return int(extent) if extent.isdigit() else sizes.get(extent)


def symbols(program: Program) -> list[str]:
    """Return the symbolic sizes of the inputs, in order of appearance."""
    found: dict[str, None] = {}
    for statement in program.inputs():
        for tensor in statement.tensors:
            found.update((size, None) for size in tensor.shape() if not size.isdigit())
    return list(found)


def units(program: Program) -> dict[str, int]:
    """Return for each symbolic size the number that it must be a multiple of."""
    found = dict.fromkeys(symbols(program), 1)
    for tensor in program.tensors().values():
        for symbol, unit in _tensor_units(tensor):
            if symbol in found:
                found[symbol] = math.lcm(found[symbol], unit)
    return found


def fixed_sizes(program: Program) -> dict[str, int]:
    """Return the symbolic sizes that must be the size of a mesh axis: whole axes on it."""
    fixed = {}
    for tensor in program.tensors().values():
        if tensor.mesh is None:
            continue
        sizes = dict(zip(MESH_AXES, reversed(mesh_shape(tensor.mesh)), strict=False))
        for axis in tensor.root:
            if axis.parallel in sizes and not axis.extent.isdigit():
                fixed[axis.extent] = sizes[axis.parallel]
    return fixed


def random_strides(
    tensor: Tensor, shape: list[int], rng: random.Random, expand: bool
) -> Strides | None:
    """Return strides that the tensor's contiguity flags allow; None for row-major."""
    order, flags = _memory(tensor)
    if not order or tensor.cpu:
        return None
    free = [axis for axis in order if flags[axis] is False]
    declared = tuple(a for a, axis in enumerate(_shown(tensor)) if axis.expanded is not None)
    if len(free) + sum(flag is None for flag in flags) == len(order):
        rng.shuffle(order)
    gaps = tuple(rng.choice([1, 1, 2, 3]) if a in free else 1 for a in range(len(order)))
    stretched = [axis for axis in free if expand and shape[axis] > 1 and rng.random() < 0.25]
    return Strides(tuple(order), gaps, tuple(sorted({*declared, *stretched})))


def plain_strides(tensor: Tensor) -> Strides:
    """Return the dense strides in the memory order that the tensor declares."""
    order, _ = _memory(tensor)
    declared = tuple(a for a, axis in enumerate(_shown(tensor)) if axis.expanded is not None)
    return Strides(tuple(order), (1,) * len(order), declared)


def _shown(tensor: Tensor) -> list[Axis]:
    return [axis for axis in tensor.logical() if axis.kind != "r"]


def _memory(tensor: Tensor) -> tuple[list[int], list[bool | None]]:
    """Return the axes in memory order, and a contiguity flag per axis (None for broadcasts)."""
    shown = _shown(tensor)
    places = {axis.ref: position for position, axis in enumerate(shown)}
    words = tensor.item("alloc") or []
    if "contig" in words:
        at = words.index("contig")
        refs, letters = words[:at], words[at + 1 :]
    else:
        refs, letters = words, []
    flags: list[bool | None] = [None if axis.kind == "b" else True for axis in shown]
    if not refs and letters and len(letters) == len(shown):
        refs = [axis.ref for axis in shown]
    if not all(ref in places for ref in refs):  # pieces of splits: dense, in the order they begin
        whole = _origins(tensor)
        refs = [] if refs == ["loop"] else [whole.get(ref, ref) for ref in refs]
        refs, letters = [ref for ref in dict.fromkeys(refs) if ref in places], []
    order = [places[ref] for ref in refs]
    order += [axis for axis in range(len(shown)) if axis not in order]
    for ref, letter in zip(refs, letters, strict=False):
        flags[places[ref]] = {"t": True, "f": False, "n": None}[letter]
    return order, flags


def _origins(tensor: Tensor) -> dict[str, str]:
    """Return for each axis the logical axis that it is a piece of; the outer one of a merge."""
    whole = {axis.ref: axis.ref for axis in tensor.logical()}
    for item in tensor.items:
        if isinstance(item, Transform) and item.words[1] in whole:
            whole.update((axis.ref, whole[item.words[1]]) for axis in item.made)
    return whole


def _tensor_units(tensor: Tensor) -> list[tuple[str, int]]:
    """Return (extent, what must divide it) for the axes of one tensor."""
    need: dict[str, int] = {}
    for item in reversed(tensor.items):
        if not isinstance(item, Transform):
            continue
        if item.words[0] == "merge":
            need[item.words[1]] = need.get(item.made[0].ref, 1)
            continue
        _, ref, side, factor = item.words
        rest = item.made[1 if side == "outer" else 0]
        count = int(factor) if factor.isdigit() else 1
        need[ref] = math.lcm(need.get(ref, 1), count * need.get(rest.ref, 1))
    known = tensor.axes()
    return [(known[ref].size, unit) for ref, unit in need.items()]


_CONFLICT = re.compile(
    r"axis (-?\d+) of (\w+) has size \d+ but axis (-?\d+) of (\w+) has size \d+", re.DOTALL
)


def sizes_that_meet(program: Program, message: str) -> tuple[str, str] | None:
    """Return two sizes of inputs that an error says must be equal."""
    match = _CONFLICT.search(message)
    tensors = program.tensors()
    if match is None or match[2] not in tensors or match[4] not in tensors:
        return None
    try:
        left = tensors[match[2]].logical()[int(match[1])].size
        right = tensors[match[4]].logical()[int(match[3])].size
    except IndexError:
        return None
    return None if left == right else (left, right)
