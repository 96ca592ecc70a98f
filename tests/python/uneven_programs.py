# SPDX-License-Identifier: BSD-3-Clause
"""Programs with extents that the devices do not divide, for simulated meshes and for ranks."""

from __future__ import annotations

import itertools

import torch
from programs import X, Y, place, shard

from meshfuse import DeviceMesh, FusionDefinition

# Axes of a [5, 7] and b [7, 6] that are cut.
PRODUCT_CUTS = {
    "m": (0, None),
    "n": (None, 1),
    "k": (1, 0),
    "m and n": (0, 1),
    "k of a": (1, None),
    "k and m": (0, 0),
}


def chunks(tensor: torch.Tensor, axis: int, d: int) -> list[torch.Tensor]:
    """Return what each of ``d`` devices holds."""
    size = -(-tensor.size(axis) // d)
    n = tensor.size(axis)
    starts = [min(r * size, n) for r in range(d + 1)]
    return [tensor.narrow(axis, a, b - a) for a, b in itertools.pairwise(starts)]


def expected_parts(whole: torch.Tensor, axis: int | None, d: int) -> list[torch.Tensor]:
    """Return what each of ``d`` devices holds of a result that is cut along ``axis``, or whole."""
    return [whole] * d if axis is None else chunks(whole, axis, d)


def relu(extent: int, d: int) -> FusionDefinition:
    """Return relu of [extent, 3], the first axis cut; -1: the size is not declared."""
    with FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([extent, 3])
        fd.add_output(fd.ops.relu(t))
        place(DeviceMesh(range(d)), t)
        shard(t, 0, d)
    return fd


def product(d: int, cut: str, result: int | str | None) -> FusionDefinition:
    """Return [5, 7] @ [7, 6]; ``result``: its cut axis, "whole", or None where not declared."""
    with FusionDefinition(uneven=True) as fd:
        a, b = fd.define_tensor([5, 7]), fd.define_tensor([7, 6])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        mesh = DeviceMesh(range(d))
        place(mesh, a, b)
        for tv, axis in zip((a, b), PRODUCT_CUTS[cut], strict=True):
            if axis is not None:
                shard(tv, axis, d)
        if result is not None:
            place(mesh, out)
        if isinstance(result, int):
            shard(out, result, d)
    return fd


def resharding(d: int, source: int | None, target: int | None) -> FusionDefinition:
    """Return a set of [5, 3, 7] from one cut axis to another."""
    with FusionDefinition(uneven=True) as fd:
        t = fd.define_tensor([5, 3, 7])
        out = fd.ops.set(t)
        fd.add_output(out)
        place(DeviceMesh(range(d)), t, out)
        for tv, axis in ((t, source), (out, target)):
            if axis is not None:
                shard(tv, axis, d)
    return fd


def product_on_two_axes(result: DeviceMesh) -> FusionDefinition:
    """Return [5, 7] @ [7, 3] on a mesh of 2 x 2, sent to another mesh of one axis, cut in rows."""
    with FusionDefinition(uneven=True) as fd:
        x, w = fd.define_tensor([5, 7]), fd.define_tensor([7, 3])
        out = fd.ops.set(fd.ops.matmul(x, w))
        fd.add_output(out)
        place(DeviceMesh(torch.arange(4).view(2, 2)), x, w)
        place(result, out)
        shard(x, 0, 2, Y)
        shard(x, 2, 2, X)
        shard(w, 0, 2, X)
        shard(out, 0, result.size, X)
    return fd
