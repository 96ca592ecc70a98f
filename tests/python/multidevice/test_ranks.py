# SPDX-License-Identifier: BSD-3-Clause
"""Programs on real ranks whose operations are local; those that communicate: other files.

Started by ``tools/mpirun -np 2 python -m pytest tests/python/multidevice``, for example. Without a
launcher the same bodies run on simulated meshes.
"""

from __future__ import annotations

import os

import pytest
import torch
from programs import (
    X,
    Y,
    assert_layout,
    block,
    dense_strides,
    matmul_cut,
    place,
    ramp,
    shard,
    sharded_matmul,
    stride_orders,
)
from test_seed import Model
from torch.nn.functional import linear

import meshfuse
from meshfuse import Communicator, DataType, DeviceMesh, FusionDefinition, ParallelType


def test_who_is_who():
    communicator = Communicator.instance()
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1)))
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", 0)))
    assert (communicator.size(), communicator.rank()) == (size, rank)
    assert 0 <= communicator.local_rank() < communicator.local_size() <= size
    assert communicator.local_ranks() == [rank]
    assert Communicator.instance() is communicator
    for _ in range(20):
        communicator.barrier()


def test_multidevice_fixture(multidevice_test):
    """Every rank makes equal global tensors and takes its own part."""
    size, rank = multidevice_test.size, multidevice_test.rank
    t = torch.randn(2 * size, 3)
    torch.manual_seed(0)
    assert torch.equal(t, torch.randn(2 * size, 3))
    mesh = DeviceMesh(range(size))
    for part in (
        multidevice_test.shard_tensor(t, 0, mesh),
        multidevice_test.shard_tensor_1d(t, -2, mesh),
        mesh.shard_tensor(t, 0),
    ):
        assert torch.equal(part.cpu(), t[2 * rank : 2 * rank + 2])
    with FusionDefinition() as fd:
        x = fd.define_tensor([2 * size, 3])
        place(mesh, x)
        shard(x, 0, size, inner=True)
    assert torch.equal(multidevice_test.shard_tensor(t, x).cpu(), t[rank::size])


def test_seed_program(world):
    d, b, s, e = world.size, 2, 64, 48
    x, w = torch.randn(b, s, e), torch.randn(e, d * e)
    fd = Model(d, b, s, e)
    for _ in range(2):
        for r, (out,) in world.run(fd, [x, w]).items():
            assert_layout(out, (b, s, e), (s * e, e, 1))
            torch.testing.assert_close(out, block(x @ w, -1, d, r), rtol=1.3e-6, atol=1e-3)
    assert fd._executor().stats()["relayouts"] == 0
    assert fd._executor().stats()["compiles"] == 1


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str
)
@pytest.mark.parametrize("loop", ["m", "n", "batch0"])
def test_matmul(world, loop, dtype):
    x, w = ramp(4, 8, 5, dtype=dtype), ramp(4, 5, 12, dtype=dtype)
    cut = matmul_cut(x.shape, w.shape, loop)
    for symbolic in (False, True):
        fd = sharded_matmul(x, w, cut, world.size, symbolic=symbolic)
        for r, (out,) in world.run(fd, [x, w]).items():
            assert torch.equal(out, block(x @ w, cut.out, world.size, r))


@pytest.mark.parametrize("order", stride_orders(3))
@pytest.mark.parametrize("loop", ["m", "n", "batch0"])
def test_stride_orders(world, loop, order):
    x, w = ramp(4, 8, 5), ramp(5, 12)
    cut = matmul_cut(x.shape, w.shape, loop)
    fd = sharded_matmul(x, w, cut, world.size, stride_order=order)
    for r, (out,) in world.run(fd, [x, w]).items():
        part = block(x @ w, cut.out, world.size, r)
        assert torch.equal(out, part)
        assert_layout(out, part.shape, dense_strides(part.shape, order))


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_column_parallel_linear(world, with_bias):
    """Scheduled on the inputs alone; the result is found to be divided alike."""
    d = world.size
    x, w, bias = ramp(2, 3, 5), ramp(4 * d, 5), 10 * ramp(4 * d)
    with FusionDefinition() as fd:
        tx, tw = fd.define_tensor([-1, -1, 5]), fd.define_tensor([4 * d, 5])
        tb = [fd.define_tensor([4 * d])] if with_bias else []
        fd.add_output(fd.ops.linear(tx, tw, *tb))
        place(world.mesh, tx, tw, *tb)
        for tv in (tw, *tb):
            shard(tv, 0, d)
    inputs = [x, w, bias] if with_bias else [x, w]
    for r, (out,) in world.run(fd, inputs).items():
        assert torch.equal(out, block(linear(*inputs), -1, d, r))


def test_device_axis_in_front(world):
    d = world.size
    x, w = ramp(2, 3, 5), ramp(d, 4, 5)
    with FusionDefinition() as fd:
        tx, tw = fd.define_tensor([2, 3, 5]), fd.define_tensor([d, 4, 5])
        fd.add_output(fd.ops.linear(tx, tw))
        place(world.mesh, tx, tw)
        tw.axis(0).parallelize(X)
    for r, (out,) in world.run(fd, [x, w]).items():
        assert torch.equal(out, linear(x, w[r]).unsqueeze(0))


def test_cyclic_columns(world):
    d = world.size
    x, w = ramp(4, 6), ramp(6, 4 * d)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 4 * d])
        fd.add_output(fd.ops.matmul(a, b))
        place(world.mesh, a, b)
        shard(b, 1, d, inner=True)
    for r, (out,) in world.run(fd, [x, w]).items():
        assert torch.equal(out, (x @ w)[:, r::d])


def test_rows_and_columns(world):
    """Rows on y, columns on x of a mesh of 2 x 2, 2 x 1 or 1 x 1."""
    shape = {1: (1, 1), 2: (2, 1), 4: (2, 2)}.get(world.size, (world.size, 1))
    mesh = DeviceMesh(torch.arange(world.size).reshape(shape))
    x, w = torch.ones(4, 4), torch.arange(16.0).reshape(4, 4)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 4]), fd.define_tensor([4, 4])
        fd.add_output(fd.ops.matmul(a, b))
        place(mesh, a, b)
        shard(a, 0, shape[0], Y)
        shard(b, 1, shape[1], X)
    assert (x @ w).tolist() == [[24, 28, 32, 36]] * 4
    for r, (out,) in world.run(fd, [x, w]).items():
        y, i = divmod(r, shape[1])
        assert torch.equal(out, block(block(x @ w, 0, shape[0], y), 1, shape[1], i))


def test_permuted_mesh(world):
    """Mesh position says which columns a rank has."""
    d = world.size
    devices = list(reversed(range(d)))
    x, w = ramp(6, 6), ramp(6, 4 * d)
    cut = matmul_cut(x.shape, w.shape, "n")
    fd = sharded_matmul(x, w, cut, d, mesh=DeviceMesh(devices))
    for r, (out,) in world.run(fd, [x, w]).items():
        assert torch.equal(out, block(x @ w, 1, d, devices.index(r)))


def test_ranks_outside_the_mesh(world):
    """They make the same call, return, and have no part."""
    devices = list(range(1, world.size)) or [0]
    d = len(devices)
    x, w = ramp(4, 6), ramp(6, 12)
    fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, "n"), d, mesh=DeviceMesh(devices))
    for r, (out,) in world.run(fd, [x, w]).items():
        if r in devices:
            assert torch.equal(out, block(x @ w, 1, d, devices.index(r)))
        else:
            assert out.numel() == 0


def test_program_without_a_mesh(world):
    """Each rank runs on its own."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(fd.define_tensor([-1, 6]), fd.define_tensor([6, 8])))
    for _, (out,) in world.run(fd, [ramp(3, 6), ramp(6, 8)]).items():
        assert torch.equal(out, ramp(3, 6) @ ramp(6, 8))


def test_chain_of_layers(world):
    d = world.size
    x, w, bias = torch.randn(4, 6), torch.randn(6, 4 * d), torch.randn(4 * d)
    with FusionDefinition() as fd:
        tx, tw, tb = (
            fd.define_tensor([4, 6]),
            fd.define_tensor([6, 4 * d]),
            fd.define_tensor([4 * d]),
        )
        fd.add_output(fd.ops.gelu(fd.ops.add(fd.ops.matmul(tx, tw), tb)))
        place(world.mesh, tx, tw, tb)
        shard(tw, 1, d)
        shard(tb, 0, d)
    want = torch.nn.functional.gelu(x @ w + bias)
    for r, (out,) in world.run(fd, [x, w, bias]).items():
        torch.testing.assert_close(out, block(want, 1, d, r))


def test_same_error_on_every_rank(world):
    """A bad program or a bad input on all ranks closes nothing: the next right call works."""
    d = world.size
    x, w = ramp(4, 6), ramp(6, 4 * d)
    fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, "n"), d)
    with pytest.raises(meshfuse.Error, match="T0"):
        world.run(fd, [ramp(4, 5), w])
    for r, (out,) in world.run(fd, [x, w]).items():
        assert torch.equal(out, block(x @ w, 1, d, r))
    world.barrier()


def test_mesh_that_the_world_cannot_serve(world):
    d = world.size
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, "n"), 2, mesh=DeviceMesh([0, d]))
    message = f"needs device {d}, but the communicator has {d} devices"
    with pytest.raises(meshfuse.Error, match=message):
        world.run(fd, [x, w])
    world.barrier()


def test_column_parallel_script():
    """The class-style script of the documentation, as it stands there."""
    world = Communicator.instance().size()
    me = Communicator.instance().rank()
    mesh = meshfuse.DeviceMesh(range(world))
    rows, inner, cols = 6, 10, 3 * world

    class ColumnParallel(FusionDefinition):
        def definition(self):
            self.x = self.define_tensor([-1, inner])
            self.w = self.define_tensor([inner, cols], contiguity=True, dtype=DataType.Float)
            self.y = self.ops.matmul(self.x, self.w)
            self.add_output(self.y)

        def multidevice_schedule(self):
            for t in (self.x, self.w, self.y):
                self.sched._set_device_mesh(t, mesh)
            for t, cols_axis in ((self.w, -1), (self.y, -2)):
                self.sched.split(t, cols_axis, world, False)
                self.sched.parallelize(t, cols_axis - 1, ParallelType.mesh_x)
                self.sched.set_allocation_as_loop(t)

    torch.manual_seed(11)
    x, w = torch.randn(rows, inner), torch.randn(inner, cols)
    fd = ColumnParallel()
    (y,) = fd.execute([x, mesh.shard_tensor(w, 1, me)])
    assert y.shape == (rows, cols // world)
    torch.testing.assert_close(y, mesh.shard_tensor(x @ w, 1, me))
    (y2,) = fd.execute([x[:4], mesh.shard_tensor(w, 1, me)])
    assert y2.shape == (4, cols // world)
    (sharding,) = fd.fec.get_output_shardings()
    assert sharding.mesh == mesh and sharding.axis_sharded_on(X) == 1
