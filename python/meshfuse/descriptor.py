# SPDX-License-Identifier: BSD-3-Clause
"""Contiguity and stride order of a tensor, computed from its sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence

from .exceptions import Error

Contiguity = list[bool | None]


def compute_contiguity(sizes: Sequence[int], strides: Sequence[int]) -> Contiguity:
    """Return one flag per dim in the given order; None for size 1 and stride 0.

    Example:
        >>> compute_contiguity([2, 1, 3], [3, 3, 1])
        [True, None, True]
    """
    _check(sizes, strides)
    flags: Contiguity = [None] * len(sizes)
    expected = 1
    for i in reversed(range(len(sizes))):
        if sizes[i] == 1 or strides[i] == 0:
            continue
        flags[i] = strides[i] == expected
        expected = strides[i] * sizes[i]
    return flags


def compute_tensor_descriptor(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[Contiguity, list[int]]:
    """Return contiguity in order of strides, largest first, and the stride order of the dims.

    Example:
        >>> compute_tensor_descriptor([2, 1, 3, 1, 4], [24, 4, 8, 4, 2])
        ([True, True, None, None, False], [4, 2, 3, 1, 0])
    """
    _check(sizes, strides)
    order = _by_stride(strides)
    flags = compute_contiguity([sizes[i] for i in order], [strides[i] for i in order])
    stride_order = [0] * len(order)
    for place, dim in enumerate(order):
        stride_order[dim] = len(order) - 1 - place
    return flags, stride_order


def _by_stride(strides: Sequence[int]) -> list[int]:
    """Dims by stride, descending and stable; dims of stride 0 keep their own place."""
    moving = (i for i in sorted(range(len(strides)), key=lambda i: -strides[i]) if strides[i] != 0)
    return [i if strides[i] == 0 else next(moving) for i in range(len(strides))]


def _check(sizes: Sequence[int], strides: Sequence[int]) -> None:
    if len(sizes) != len(strides):
        raise Error(
            "The number of sizes does not match the number of strides. "
            f"Give as many strides as sizes: {len(sizes)} sizes, {len(strides)} strides."
        )
    if any(stride < 0 for stride in strides):
        raise Error(
            f"negative stride on tensor is not supported: strides are {list(strides)}. "
            "Copy the tensor first."
        )
