# SPDX-License-Identifier: BSD-3-Clause
"""The programs that are measured."""

from __future__ import annotations

from typing import Any

from meshfuse import DeviceMesh, FusionDefinition, ParallelType, TensorView


class ColumnParallel(FusionDefinition):
    """x [..., hidden] @ w [hidden, devices * columns], the columns of w divided over a mesh."""

    def __init__(self, devices: int, shape: list[int], columns: int) -> None:
        """Describe the product of a tensor of ``shape`` and a weight of ``columns`` per device."""
        super().__init__()
        self._devices, self._shape, self._columns = devices, shape, devices * columns

    def definition(self) -> None:
        """Write the product."""
        self.x = self.define_tensor(self._shape)
        self.w = self.define_tensor([self._shape[-1], self._columns])
        self.y = self.ops.matmul(self.x, self.w)
        self.add_output(self.y)

    def multidevice_schedule(self) -> None:
        """Divide the columns over the mesh."""
        mesh = DeviceMesh(range(self._devices))
        for t in (self.x, self.w, self.y):
            self.sched._set_device_mesh(t, mesh)
        for t, columns in ((self.w, -1), (self.y, -2)):
            self.sched.split(t, columns, self._devices, False)
            self.sched.parallelize(t, columns - 1, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(t)


def divide(tensor: TensorView, devices: int, axis: int | None) -> None:
    """Put a tensor on a mesh, and divide an axis over it."""
    tensor.set_device_mesh(DeviceMesh(range(devices)))
    if axis is not None:
        tensor.outer_split(axis, devices)
        tensor.axis(axis).parallelize(ParallelType.mesh_x)


def column_parallel_linear(devices: int, rows: list[int], inner: int, outer: int) -> Any:
    """Return ``linear(x, w, b)``: x [*rows, inner], ``outer`` columns on each device."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([*rows, inner])
        w = fd.define_tensor([devices * outer, inner])
        b = fd.define_tensor([devices * outer])
        fd.add_output(fd.ops.linear(x, w, b))
        for tensor, axis in ((x, None), (w, 0), (b, 0)):
            divide(tensor, devices, axis)
    return fd


def row_parallel_linear(devices: int, rows: list[int], inner: int, outer: int) -> Any:
    """Return ``linear(x, w)``: x [*rows, inner] on each device; the result is summed over them."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([*rows, devices * inner])
        w = fd.define_tensor([outer, devices * inner])
        fd.add_output(fd.ops.linear(x, w))
        for tensor, axis in ((x, len(rows)), (w, 1)):
            divide(tensor, devices, axis)
    return fd


def all_reduce(devices: int, count: int) -> FusionDefinition:
    """Return the sum over the devices of ``count`` elements each."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([devices, count])
        fd.add_output(fd.ops.sum(x, [0]))
        divide(x, devices, 0)
    return fd


def all_reduces(devices: int, count: int, number: int) -> FusionDefinition:
    """Return ``number`` sums that do not depend on one another, and a use of each."""
    with FusionDefinition() as fd:
        given = [fd.define_tensor([devices, count]) for _ in range(number)]
        for x in given:
            fd.add_output(fd.ops.neg(fd.ops.sum(x, [0])))
        for x in given:
            divide(x, devices, 0)
    return fd


def all_gather(devices: int, count: int) -> FusionDefinition:
    """Return the parts of all devices, ``count`` elements together."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([count])
        y = fd.ops.set(x)
        fd.add_output(y)
        divide(x, devices, 0)
        divide(y, devices, None)
    return fd


def sharded_chain(devices: int, ops: int, outer: int) -> FusionDefinition:
    """Return a chain: product with divided columns, bias, product with divided rows, bias, ..."""
    inner = 2 * devices
    with FusionDefinition() as fd:
        y = fd.define_tensor([2, outer])
        divide(y, devices, None)
        for _ in range(ops // 4):
            for shape, axis in (([outer, inner], 1), ([inner, outer], 0)):
                w, b = fd.define_tensor(shape), fd.define_tensor(shape[1:])
                divide(w, devices, axis)
                divide(b, devices, 0 if axis == 1 else None)
                y = fd.ops.add(fd.ops.matmul(y, w), b)
        fd.add_output(y)
    return fd
