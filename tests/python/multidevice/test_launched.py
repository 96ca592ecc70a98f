# SPDX-License-Identifier: BSD-3-Clause
"""Programs on the ranks of a launcher; with one rank when there is none."""

from __future__ import annotations

import re

import pytest
import torch

import meshfuse
from meshfuse import CommunicatorBackend, DeviceMesh, FusionDefinition, ParallelType
from meshfuse.multidevice import MultiDeviceExecutor, MultiDeviceExecutorParams


class ColumnParallel(FusionDefinition):
    """A weight whose columns are divided over all ranks."""

    def __init__(self, d, rows=-1):
        super().__init__()
        self.d, self.rows = d, rows

    def definition(self):
        self.x = self.define_tensor([self.rows, 4])
        self.w = self.define_tensor([4, 3 * self.d])
        self.y = self.ops.matmul(self.x, self.w)
        self.add_output(self.y)

    def multidevice_schedule(self):
        mesh = DeviceMesh(range(self.d))
        for t, axis in ((self.x, None), (self.w, -1), (self.y, -2)):
            self.sched._set_device_mesh(t, mesh)
            if axis is not None:
                self.sched.split(t, axis, self.d, False)
                self.sched.parallelize(t, axis - 1, ParallelType.mesh_x)
                self.sched.set_allocation_as_loop(t)


def test_column_parallel(multidevice_test):
    """Every rank returns its columns of the product."""
    d = multidevice_test.size
    mesh, fd = DeviceMesh(range(d)), ColumnParallel(d)
    for rows in (5, 2, 5):
        x, w = torch.randn(rows, 4), torch.randn(4, 3 * d)
        local = multidevice_test.shard_tensor(w, -1, mesh)
        (out,) = fd.execute([x.to(local.device), local])
        torch.testing.assert_close(out, multidevice_test.shard_tensor(x @ w, -1, mesh))
    torch.testing.assert_close(multidevice_test.shard_tensor(w, fd.w), local)


def test_wrong_input_on_every_rank_closes_nothing(multidevice_test):
    """Where all ranks give up the same execution, the next right one works."""
    fd = ColumnParallel(multidevice_test.size, rows=5)
    x, w = torch.ones(5, 4), torch.ones(4, 3)
    for _ in range(2):
        with pytest.raises(meshfuse.Error, match="T0"):
            fd.execute([torch.ones(6, 4), w])
        multidevice_test.communicator.barrier()
        torch.testing.assert_close(fd.execute([x, w])[0], x @ w)


def test_ranks(multidevice_test):
    assert 0 <= multidevice_test.rank < multidevice_test.size
    assert 0 <= multidevice_test.local_rank < multidevice_test.local_size
    assert multidevice_test.communicator is meshfuse.Communicator.instance()


def test_executor_of_another_backend(multidevice_test):
    """All ranks refuse it, and run it once the backend is the one in use."""
    if multidevice_test.size == 1:
        pytest.skip("one rank has no backend")
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([2])))
    params = MultiDeviceExecutorParams()
    params.backend_type = CommunicatorBackend.ucc
    executor = MultiDeviceExecutor(fd.fusion, params)
    own = {"mpi": "mpi", "c10d": "gloo or nccl"}[multidevice_test.communicator.backend()]
    message = (
        f"MultiDeviceExecutor: backend_type is ucc, but the ranks talk through {own}. Set "
        "params.backend_type to that, or start them with another launcher."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        executor.run([torch.ones(2)])
    multidevice_test.communicator.barrier()
    params.backend_type = getattr(CommunicatorBackend, own.split()[0])
    assert executor.run([torch.ones(2)])[0].tolist() == [-1, -1]
