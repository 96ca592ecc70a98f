# SPDX-License-Identifier: BSD-3-Clause
"""Programs that several test files use, and what a device must hold of their results.

The expectations are made with torch alone, so that they do not share a fault with the library.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType, TensorView
from meshfuse.pytorch_utils import torch_dtype_to_meshfuse_dtype

X, Y, Z = ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z
DEVICES = [1, 2, 3, 4, 8]


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers -3 to 3, so that sums are exact in every dtype."""
    return (torch.arange(math.prod(shape)) % 7 - 3).reshape(shape).to(dtype)


def dtype_of(tensor: torch.Tensor) -> DataType:
    return torch_dtype_to_meshfuse_dtype(tensor.dtype)


def shard(tv: TensorView, axis: int, d: int, mesh_axis=X, *, inner: bool = False) -> None:
    """Split loop axis ``axis`` by ``d`` and put the outer (or inner) half on a mesh axis."""
    if axis < 0:
        axis += len(tv.get_loop_domain())
    tv.split(axis, d, inner)
    tv.axis(axis + 1 if inner else axis).parallelize(mesh_axis)


def place(mesh: DeviceMesh, *tensors: TensorView) -> None:
    for tv in tensors:
        tv.set_device_mesh(mesh)


def block(tensor: torch.Tensor, axis: int, d: int, r: int) -> torch.Tensor:
    """Return block ``r`` of ``d`` equal blocks of one axis."""
    size = tensor.size(axis) // d
    return tensor.narrow(axis, r * size, size)


def dense_strides(sizes: Sequence[int], stride_order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor; ``stride_order[i]`` is the place of axis i, 0 innermost."""
    strides, step = [0] * len(sizes), 1
    for axis in sorted(range(len(sizes)), key=lambda i: stride_order[i]):
        strides[axis] = step
        step *= max(sizes[axis], 1)
    return tuple(strides)


def assert_layout(tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> None:
    """Compare sizes and strides; the stride of an axis of size 0 or 1 has no meaning."""
    assert tuple(tensor.shape) == tuple(sizes)
    if tensor.numel() == 0:
        return
    got = [s for s, n in zip(tensor.stride(), sizes, strict=True) if n > 1]
    assert got == [s for s, n in zip(strides, sizes, strict=True) if n > 1], tensor.stride()


def stride_orders(ndim: int) -> list[tuple[int, ...]]:
    return list(itertools.permutations(range(ndim)))


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> None:
    """Fill memory that the allocator gives out next for such a tensor with nan."""
    tensors = [torch.full(shape, math.nan, dtype=dtype) for _ in range(8)]
    del tensors


Cuts = Sequence[tuple[int, ParallelType]]


def lay(tv: TensorView, mesh: DeviceMesh, cuts: Cuts = ()) -> None:
    """Put a tensor on a mesh and divide its axes into blocks.

    ``cuts``: pairs of a logical axis and a mesh axis; of pairs with one axis the outermost first.
    """
    tv.set_device_mesh(mesh)
    for axis in sorted({axis for axis, _ in cuts}, reverse=True):
        for depth, p in enumerate(p for a, p in cuts if a == axis):
            shard(tv, axis + depth, size_over(mesh, p), p)


def size_over(mesh: DeviceMesh, p: ParallelType) -> int:
    """Return the size of a mesh axis."""
    return mesh.shape[len(mesh.shape) - 1 - (X, Y, Z).index(p)]


def part_of(t: torch.Tensor, mesh: DeviceMesh, cuts: Cuts, device: int) -> torch.Tensor | None:
    """Return what a device holds of a tensor that is laid so; None: it is not in the mesh."""
    index = mesh.index_of(device)
    if index is None:
        return None
    for axis, p in cuts:
        d = size_over(mesh, p)
        t = block(t, axis, d, index[len(index) - 1 - (X, Y, Z).index(p)])
    return t


def assert_part(got: torch.Tensor, want: torch.Tensor | None) -> None:
    """Compare a device's result, every bit of it; a device outside the mesh has no elements."""
    if want is None:
        assert got.numel() == 0
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    if not want.dtype.is_complex:
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        got, want = (x.contiguous().view(width[want.element_size()]) for x in (got, want))
    assert torch.equal(got, want)


def communications(fd: FusionDefinition) -> list[str]:
    """Return the communications of the program that ran last, as "all-reduce x", in order.

    A local slice sends nothing and is not one of them.
    """
    steps = re.findall(r"^step \d+: ([a-z -]+) over mesh_([xyz])", fd.plan(), re.MULTILINE)
    return [f"{kind} {axis}" for kind, axis in steps if kind != "local slice"]


@dataclass(frozen=True)
class Cut:
    """Where one loop of a matrix product stands in each tensor; None: the operand lacks it."""

    a: int | None
    b: int | None
    out: int


def matmul_cut(a: Sequence[int], b: Sequence[int], loop: str) -> Cut | None:
    """Return the place of loop "m", "n" or "batch<k>" (k-th batch axis from the right)."""
    ndim = max(len(a), len(b)) - (min(len(a), len(b)) == 1)
    if loop == "m":
        return Cut(len(a) - 2, None, ndim - (1 if len(b) == 1 else 2)) if len(a) > 1 else None
    if loop == "n":
        return Cut(None, len(b) - 1, ndim - 1) if len(b) > 1 else None
    back = 3 + int(loop.removeprefix("batch"))
    at = [len(s) - back if len(s) >= back and s[len(s) - back] != 1 else None for s in (a, b)]
    if at == [None, None]:
        return None
    return Cut(at[0], at[1], ndim - back + (len(a) == 1) + (len(b) == 1))


def sharded_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    cut: Cut,
    d: int,
    *,
    symbolic: bool = False,
    stride_order: Sequence[int] | None = None,
    declare_output: bool = True,
    mesh: DeviceMesh | None = None,
) -> FusionDefinition:
    """Return the program a @ b with one loop divided over ``d`` devices."""

    def sizes(tensor):
        return [-1 if symbolic and n > 1 else n for n in tensor.shape]

    with FusionDefinition() as fd:
        tv_a = fd.define_tensor(sizes(a), dtype=dtype_of(a))
        tv_b = fd.define_tensor(sizes(b), dtype=dtype_of(b))
        out = fd.ops.matmul(tv_a, tv_b)
        fd.add_output(out, stride_order=stride_order)
        place(mesh or DeviceMesh(range(d)), tv_a, tv_b)
        if declare_output:
            place(mesh or DeviceMesh(range(d)), out)
            shard(out, cut.out, d)
        for tv, axis in ((tv_a, cut.a), (tv_b, cut.b)):
            if axis is not None:
                shard(tv, axis, d)
    return fd


def mlp(
    mesh: DeviceMesh, *, in_seq: bool = False, out_seq: bool = False, strict: bool = False
) -> FusionDefinition:
    """Return ``gelu(x @ w1 + b1) @ w2 + b2``, annotated on w1 and w2, and on the ends if asked."""
    d = mesh.size
    with FusionDefinition(strict=strict) as fd:
        x, w1, b1 = (fd.define_tensor(s) for s in ([4, 2 * d, 6], [6, 4 * d], [4 * d]))
        w2, b2 = fd.define_tensor([4 * d, 6]), fd.define_tensor([6])
        h = fd.ops.gelu(fd.ops.add(fd.ops.matmul(x, w1), b1))
        y = fd.ops.add(fd.ops.matmul(h, w2), b2)
        fd.add_output(y)
        annotated = [(w1, 1), (w2, 0)] + [(x, 1)] * in_seq + [(y, 1)] * out_seq
        for tv, axis in annotated:
            place(mesh, tv)
            shard(tv, axis, d)
    return fd


def mlp_inputs(d: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 2 * d, 6), (6, 4 * d), (4 * d,), (4 * d, 6), (6,)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def mlp_reference(x, w1, b1, w2, b2) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w1 + b1) @ w2 + b2
