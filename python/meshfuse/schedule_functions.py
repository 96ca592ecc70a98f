# SPDX-License-Identifier: BSD-3-Clause
"""Copies of tensors inserted into a program, and schedules carried over to other tensors.

These are the functions behind ``fd.sched``, ``meshfuse.schedule`` and the methods of TensorView.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from . import _C
from ._C import CacheOp, Expr, LoadStoreOpType, ParallelType, TensorView
from .exceptions import UnsupportedError


def cache_after(
    tensor: TensorView,
    op_type: LoadStoreOpType = LoadStoreOpType.set,
    cache_op: CacheOp = CacheOp.unspecified,
    propagate_allocation_domain: bool = True,
    cached_uses: Sequence[Expr] = (),
) -> TensorView:
    """Insert ``set(tensor)``, which the operations that read ``tensor`` read instead.

    Args:
        tensor: A tensor that operations read. Where it is an output it stays one.
        op_type: How a CUDA kernel copies; only ``set`` is supported.
        cache_op: Which caches a CUDA kernel uses; only ``unspecified`` is supported.
        propagate_allocation_domain: Give the new tensor the memory order of ``tensor``.
        cached_uses: The operations that are to read the new tensor; all when empty.

    Returns:
        The new tensor. It has no mesh and no transforms of its own.

    Raises:
        meshfuse.Error: nothing reads ``tensor``, or an operation of ``cached_uses`` does not.
        meshfuse.UnsupportedError: another ``op_type`` or ``cache_op``.
    """
    _check_plain_copy("cache_after", tensor, op_type, cache_op)
    return _C.cache_after(tensor, propagate_allocation_domain, list(cached_uses))


def cache_before(tensor: TensorView, op_type: LoadStoreOpType = LoadStoreOpType.set) -> TensorView:
    """Make ``tensor`` a copy of a new tensor, which takes its definition and its schedule.

    Returns:
        The new tensor. ``tensor`` keeps its mesh, and the schedule of axes that are no reductions.

    Raises:
        meshfuse.Error: ``tensor`` is an input.
        meshfuse.UnsupportedError: ``op_type`` is not ``set``.
    """
    _check_plain_copy("cache_before", tensor, op_type, CacheOp.unspecified)
    return _C.cache_before(tensor)


def cache_fork(tensor: TensorView) -> TensorView:
    """Put a copy of an output in its place among the outputs; what reads it still does.

    Returns:
        The new tensor. It has no mesh and no transforms of its own.

    Raises:
        meshfuse.Error: ``tensor`` is no output, or nothing reads it.
    """
    return _C.cache_fork(tensor)


def transform_like(reference_tv: TensorView, selected_tensors: Sequence[TensorView] = ()) -> None:
    """Repeat the splits, merges and order of the loop axes of a tensor on others.

    Args:
        reference_tv: The tensor whose schedule is repeated.
        selected_tensors: The tensors that get it; when empty, all that operations connect with it.

    Axes that correspond to none of the reference are left alone.

    Raises:
        meshfuse.Error: a tensor is split, merged or parallelized in another way; nothing is changed
            then.
    """
    _C.transform_like(reference_tv, list(selected_tensors))


def parallelize_like(
    reference_tv: TensorView,
    pos: int = -1,
    selected_tensors: Sequence[TensorView] = (),
    selected_parallel_types: Collection[ParallelType] = (),
    propagate_padding: bool = True,
) -> None:
    """Give loop axes the parallel types of the axes of a tensor that they correspond to.

    Args:
        reference_tv: The tensor whose types are copied.
        pos: The first ``pos`` loop axes of it count; a negative one counts from the end, -1 is all.
        selected_tensors: The tensors that get them; when empty, all but the inputs of the program.
        selected_parallel_types: The types that are copied; when empty, all but ``serial``.
        propagate_padding: Accepted for scripts that schedule CUDA kernels; nothing is padded here.

    A tensor without a mesh that gets a mesh axis gets the mesh of the reference, too.

    Raises:
        meshfuse.Error: a tensor has the mesh axis on another axis, or its mesh does not fit.
    """
    types = list(selected_parallel_types)
    _C.parallelize_like(reference_tv, pos, list(selected_tensors), types)


def bounded_transform_backward(
    from_tv: TensorView, pos: int, to: Sequence[TensorView], propagate_parallel_type: bool = False
) -> None:
    """Repeat transforms of a tensor on the tensors between it and some that it is made of.

    Args:
        from_tv: The tensor whose transforms are repeated.
        pos: Those that lead to its first ``pos`` loop axes; negative as in ``parallelize_like``.
        to: Tensors at which to stop; they are not changed.
        propagate_parallel_type: Copy the parallel types of these axes, too.

    Raises:
        meshfuse.Error: ``from_tv`` is not made of a tensor of ``to``, or a tensor in between is
            transformed in another way.
    """
    _C.bounded_transform_backward(from_tv, pos, list(to), propagate_parallel_type)


def swizzle1d(tensor: TensorView, x: int, parallel_type: ParallelType) -> TensorView:
    """Let every device walk through a loop axis from its own place in the team on, round the ring.

    Args:
        tensor: The tensor, which is returned.
        x: A loop axis of as many iterations as the mesh axis has devices; one that is ``stream``
            or will be.
        parallel_type: The mesh axis.

    Iteration ``j`` on the device with team index ``t`` is index ``(j + t) % size``. Values do not
    change, and a stream axis runs in one piece today, so neither does the time.

    Raises:
        meshfuse.Error: the axis is a reduction, on the mesh, or of another size.
    """
    return _C.swizzle1d(tensor, x, parallel_type)


def _check_plain_copy(
    what: str, tensor: TensorView, op_type: LoadStoreOpType, cache_op: CacheOp
) -> None:
    asked = [
        f"{name}={value.name}"
        for name, value, plain in (
            ("op_type", op_type, LoadStoreOpType.set),
            ("cache_op", cache_op, CacheOp.unspecified),
        )
        if value != plain
    ]
    if asked:
        raise UnsupportedError(
            f"{what}: {' and '.join(asked)} for {tensor.name} controls how a generated CUDA kernel "
            "copies. meshfuse evaluates every operation through ATen; leave the argument out."
        )
