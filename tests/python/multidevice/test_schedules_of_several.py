# SPDX-License-Identifier: BSD-3-Clause
"""Schedules carried over and cached tensors, on the devices of any mesh environment."""

from __future__ import annotations

import torch

from meshfuse import FusionDefinition, ParallelType, schedule

X = ParallelType.mesh_x


def test_columns_carried_over_and_gathered_once(mesh_env):
    """The product follows its reader, the sums share one gathered copy of it."""
    d = mesh_env.size
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, 8]), fd.define_tensor([8, 3 * d])
        y = fd.ops.relu(fd.ops.matmul(x, w))
        for result in (y, fd.ops.sum(y, [1]), fd.ops.max(y, [1])):
            fd.add_output(result)
        y.set_device_mesh(mesh_env.mesh)
        y.outer_split(1, d)
        y.axis(1).parallelize(X)
        schedule.transform_like(y)
        schedule.parallelize_like(y, -1, [w, y.definition().input(0)])
        y.cache_after().set_device_mesh(mesh_env.mesh)
    torch.manual_seed(0)
    a, b = torch.randn(4, 8), torch.randn(8, 3 * d)
    wanted = (a @ b).relu()
    results = mesh_env.run(fd, [a, b])
    for got, want in zip(results, (wanted, wanted.sum(1), wanted.amax(1)), strict=True):
        torch.testing.assert_close(got, want)


def test_forked_output_is_gathered(mesh_env):
    """The output is whole, what reads the tensor goes on with its rows."""
    d = mesh_env.size
    with FusionDefinition() as fd:
        x = fd.define_tensor([2 * d, 6])
        y = fd.ops.exp(x)
        z = fd.ops.neg(y)
        fd.add_output(y)
        fd.add_output(z)
        x.set_device_mesh(mesh_env.mesh)
        x.outer_split(0, d)
        x.axis(0).parallelize(X)
        out = y.cache_fork()
        out.set_device_mesh(mesh_env.mesh)
        out.outer_split(0, d).swizzle1d(0, X)
        out.axis(0).parallelize(ParallelType.stream)
    torch.manual_seed(0)
    a = torch.randn(2 * d, 6)
    for got, want in zip(mesh_env.run(fd, [a]), (a.exp(), -a.exp()), strict=True):
        torch.testing.assert_close(got, want)
