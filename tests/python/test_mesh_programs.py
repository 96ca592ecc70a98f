# SPDX-License-Identifier: BSD-3-Clause
"""Programs on permuted, partial, two-dimensional and unfit meshes."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from programs import X, Y, Z, block, matmul_cut, place, ramp, shard, sharded_matmul

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType

SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))


@pytest.mark.parametrize("devices", [[1, 0], [0, 1]])
def test_order_of_devices(devices):
    """Position in the mesh, not the number of the device, says which columns it has."""
    x, w = ramp(4, 6), ramp(6, 8)
    mesh = DeviceMesh(devices)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2, mesh=mesh)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
        assert torch.equal(out, x @ w)
        for position, device in enumerate(devices):
            assert torch.equal(sim.local(device=device), block(x @ w, 1, 2, position))


def test_permuted_mesh_of_four():
    x, w = ramp(4, 6), ramp(6, 8)
    devices = [2, 0, 3, 1]
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 4, mesh=DeviceMesh(devices))
    with meshfuse.simulate(4) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
        for position, device in enumerate(devices):
            assert torch.equal(sim.local(device=device), block(x @ w, 1, 4, position))


@pytest.mark.parametrize("devices", [[0, 2], [2, 0], [1, 2], [1], [0], [2, 1, 0]])
def test_devices_outside_the_mesh(devices):
    """They take part in the call and have nothing of the result."""
    d = len(devices)
    x, w = ramp(4, 6), ramp(6, 12)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 12), "n"), d, mesh=DeviceMesh(devices))
    with meshfuse.simulate(3) as sim:
        (out,) = sim.run(fd, [x, w])
        assert torch.equal(out, x @ w)
        for device in range(3):
            local = sim.local(device=device)
            if device in devices:
                assert torch.equal(local, block(x @ w, 1, d, devices.index(device)))
            else:
                assert local.numel() == 0


def test_inputs_of_a_device_outside_the_mesh_do_not_matter():
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2, mesh=DeviceMesh([0, 2]))
    nothing = [torch.empty(0, 0), torch.empty(0, 0)]
    with meshfuse.simulate(3) as sim:
        outputs = sim.execute(fd, [[x, w[:, :4]], nothing, [x, w[:, 4:]]])
    assert torch.equal(torch.cat([outputs[0][0], outputs[2][0]], 1), x @ w)
    assert outputs[1][0].numel() == 0


def rows_and_columns(rows_on, columns_on, mesh=SQUARE, m=4, k=4, n=4):
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([m, k]), fd.define_tensor([k, n])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        place(mesh, a, b)
        shard(a, 0, mesh.shape[0 if rows_on is Y else 1], rows_on)
        shard(b, 1, mesh.shape[0 if columns_on is Y else 1], columns_on)
    return fd


def test_rows_and_columns_on_two_axes():
    x, w = torch.ones(4, 4), torch.arange(16.0).reshape(4, 4)
    fd = rows_and_columns(Y, X)
    with meshfuse.simulate(4) as sim:
        (out,) = sim.run(fd, [x, w])
        assert out.tolist() == [[24, 28, 32, 36]] * 4
        for device in range(4):
            y, i = divmod(device, 2)
            part = (x @ w)[2 * y : 2 * y + 2, 2 * i : 2 * i + 2]
            assert torch.equal(sim.local(device=device), part)


@pytest.mark.parametrize(("rows_on", "columns_on"), [(Y, X), (X, Y)])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (1, 4), (4, 1), (2, 4)])
def test_rectangular_meshes(shape, rows_on, columns_on):
    size = shape[0] * shape[1]
    mesh = DeviceMesh(torch.arange(size).reshape(shape))
    x, w = ramp(12, 5), ramp(5, 12)
    fd = rows_and_columns(rows_on, columns_on, mesh, 12, 5, 12)
    with meshfuse.simulate(size) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
        for device in range(size):
            at = dict(zip((Y, X), divmod(device, shape[1]), strict=True))
            sizes = dict(zip((Y, X), shape, strict=True))
            part = block(x @ w, 0, sizes[rows_on], at[rows_on])
            part = block(part, 1, sizes[columns_on], at[columns_on])
            assert torch.equal(sim.local(device=device), part)


def test_mesh_of_three_axes():
    """Batch on z, rows on y, columns on x."""
    mesh = DeviceMesh(torch.arange(8).reshape(2, 2, 2))
    x, w = ramp(4, 4, 5), ramp(4, 5, 6)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 4, 5]), fd.define_tensor([4, 5, 6])
        fd.add_output(fd.ops.matmul(a, b))
        place(mesh, a, b)
        shard(a, 1, 2, Y)
        shard(a, 0, 2, Z)
        shard(b, 2, 2, X)
        shard(b, 0, 2, Z)
    with meshfuse.simulate(8) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
        for device in range(8):
            z, y, i = device // 4, device // 2 % 2, device % 2
            part = block(block(block(x @ w, 0, 2, z), 1, 2, y), 2, 2, i)
            assert torch.equal(sim.local(device=device), part)


@pytest.mark.parametrize("declared", [True, False])
def test_both_operands_divided_on_their_first_axis(declared):
    """The product of parts would be a plausible wrong number."""
    e = torch.tensor([[5.0, -3, 2], [-3, 2, -1], [-3, 2, -2]])
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([3, 3]), fd.define_tensor([3, 3])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        for tv in (a, b, out) if declared else (a, b):
            tv.set_device_mesh(DeviceMesh(range(3)))
            shard(tv, 0, 3)
    with meshfuse.simulate(3) as sim:
        assert torch.equal(sim.run(fd, [e, torch.eye(3)])[0], e)
        if declared:
            for r in range(3):
                assert torch.equal(sim.local(device=r), e[r : r + 1])


@pytest.mark.parametrize(
    ("devices", "text"),
    [([0, 0], "duplicates: device 0"), ([-1, 0], "device -1"), ([], "list of devices is empty")],
)
def test_meshes_that_cannot_be(devices, text):
    with pytest.raises(meshfuse.Error, match=text):
        DeviceMesh(devices)


@pytest.mark.parametrize("devices", [[0, 1, 2, 3], [2, 3], [0, 5]])
def test_mesh_that_the_world_cannot_serve(devices):
    d = len(devices)
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), d, mesh=DeviceMesh(devices))
    right = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    with meshfuse.simulate(2) as sim:
        message = f"needs device {max(devices)}, but the communicator has 2 devices"
        with pytest.raises(meshfuse.Error, match=message):
            sim.execute(fd, [[x, block(w, 1, d, 0)]] * 2)
        assert torch.equal(sim.run(right, [x, w])[0], x @ w)


def test_mesh_that_one_process_cannot_serve():
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    with pytest.raises(meshfuse.Error, match="needs device 1, but the communicator has 1 devices"):
        fd.execute([x, w[:, :4]])


@pytest.mark.parametrize("loop", ["m", "n", "batch0"])
def test_mesh_of_one(loop):
    """A split by 1 is legal and means nothing."""
    x, w = ramp(2, 3, 5), ramp(2, 5, 4)
    fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, loop), 1)
    assert torch.equal(fd.execute([x, w])[0], x @ w)
    with meshfuse.simulate(1) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)


def test_inner_axis_on_a_mesh_of_one():
    """Also where more devices would have to add up partial sums."""
    x, w = ramp(3, 4), ramp(5, 4)
    with FusionDefinition() as fd:
        a, b, c = fd.define_tensor([3, 4]), fd.define_tensor([5, 4]), fd.define_tensor([5])
        fd.add_output(fd.ops.linear(a, b, c))
        place(DeviceMesh([0]), a, b, c)
        shard(a, 1, 1)
        shard(b, 1, 1)
    (out,) = fd.execute([x, w, ramp(5)])
    assert torch.equal(out, torch.nn.functional.linear(x, w, ramp(5)))


@pytest.mark.parametrize("meshed", ["a", "b"])
def test_operand_without_a_mesh_is_replicated(meshed):
    x, w = ramp(4, 6), ramp(6, 8)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(a, b))
        tv = a if meshed == "a" else b
        place(DeviceMesh(range(2)), tv)
        shard(tv, 0 if meshed == "a" else 1, 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
        assert sim.local(device=1).shape == ((2, 8) if meshed == "a" else (4, 4))
        with pytest.raises(meshfuse.Error, match=r"T[01] has no DeviceMesh"):
            sim.shard_tensor(x, b if meshed == "a" else a)


def test_operands_on_different_meshes():
    """One of them is sent to the mesh of the other."""
    x, w = ramp(4, 6), ramp(6, 8)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(a, b))
        place(DeviceMesh([0, 1]), a)
        place(DeviceMesh([1, 0]), b)
        shard(b, 1, 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)


@pytest.mark.parametrize(
    ("axes", "split", "inner", "expected"),
    [
        ((0, 2), 2, True, lambda t, r: t[:, :, r::2]),
        ((0, 2), 2, False, lambda t, r: t[r : r + 1]),
        ((2, 0), 2, False, lambda t, r: t[:, :, 2 * r : 2 * r + 2]),
        ((1, 0), 3, False, lambda t, r: t[:, r : r + 1]),
    ],
    ids=["apart_cyclic", "apart_block", "turned_block", "turned_neighbours"],
)
def test_part_of_merged_axes_is_in_logical_order(axes, split, inner, expected):
    """A device lists its elements in increasing order, whatever was merged and how."""
    t = torch.arange(24.0).reshape(2, 3, 4)
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 3, 4])
        fd.add_output(fd.ops.neg(x))
        x.set_device_mesh(DeviceMesh(range(split)))
        x.merge(*axes)
        at = min(axes)
        x.split(at, split, inner_split=inner)
        x.axis(at + 1 if inner else at).parallelize(ParallelType.mesh_x)
    with meshfuse.simulate(split) as sim:
        for r, part in enumerate(sim.shard_tensor(t, x)):
            assert torch.equal(part, expected(t, r))


def test_mesh_found_backwards_spreads_forwards():
    """An input that gets its mesh from one operation hands it on to the results of others."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(x, w))
        fd.add_output(fd.ops.relu(x))
        w.set_device_mesh(DeviceMesh(range(2)))
        w.outer_split(-1, 2)
        w.axis(-2).parallelize(ParallelType.mesh_x)
    a, b = torch.randn(4, 6), torch.randn(6, 8)
    with meshfuse.simulate(2) as sim:
        product, positive = sim.run(fd, [a, b])
    torch.testing.assert_close(product, a @ b)
    assert torch.equal(positive, a.relu())


def test_expanded_input_is_divided():
    """The part of an expanded axis is expanded too."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=[None, True])
        fd.add_output(fd.ops.neg(x))
        x.set_device_mesh(DeviceMesh(range(2)))
        x.outer_split(0, 2)
        x.axis(0).parallelize(ParallelType.mesh_x)
    t = torch.arange(6.0).expand(4, 6)
    with meshfuse.simulate(2) as sim:
        assert [p.stride() for p in sim.shard_tensor(t, x)] == [(0, 1)] * 2
        (out,) = sim.run(fd, [t])
    assert torch.equal(out, -t)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("declared", [False, True])
def test_one_tensor_read_twice_in_two_shardings(axis, declared):
    x = ramp(6, 6)
    with FusionDefinition() as fd:
        t = fd.define_tensor([6, 6])
        out = fd.ops.matmul(t, t)
        fd.add_output(out)
        place(DeviceMesh(range(3)), t)
        shard(t, axis, 3)
        if declared:
            place(DeviceMesh([1]), out)
    with meshfuse.simulate(3) as sim:
        assert torch.equal(sim.run(fd, [x])[0], x @ x)


def test_mesh_axis_moves_to_an_axis_of_size_one():
    """The axis of size 1 is on every device, whatever mesh axis is put on it."""
    x = ramp(4, 4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 4])
        out = fd.ops.broadcast(t, [False, True, False])
        fd.add_output(out)
        place(DeviceMesh(torch.arange(4).view(2, 2)), t, out)
        shard(t, 1, 2, Y)
        shard(t, 2, 2, X)
        shard(out, 2, 2, X)
        shard(out, 1, 2, Y)
    with meshfuse.simulate(4) as sim:
        assert torch.equal(sim.run(fd, [x])[0], x[:, None])
        for device in range(4):
            assert torch.equal(sim.local(device=device), block(x[:, None], 2, 2, device % 2))


def test_size_that_one_operand_declares():
    """A symbol is as good as the number, also where two mesh axes divide the axis."""
    specs = ["None, None", "y, x", "None, (y, x)", "(x, y), None", "None, x", "y, None"]
    a, b = ramp(4, 4), ramp(4, 4) + 1
    declared = [([4, 4], [4, -1]), ([-1, -1], [4, 4])]
    for shapes, of_a, of_b in itertools.product(declared, specs, specs):
        with FusionDefinition() as fd:
            x, y = (fd.define_tensor(shape) for shape in shapes)
            for result in (fd.ops.add(x, y), fd.ops.matmul(x, y), fd.ops.cat([x, y], 0)):
                fd.add_output(result)
            for tv, spec in ((x, of_a), (y, of_b)):
                tv.set_sharding(meshfuse.from_partition_spec(spec, mesh=SQUARE))
        with meshfuse.simulate(4) as sim:
            found = sim.run(fd, [a, b])
        for out, expected in zip(found, (a + b, a @ b, torch.cat([a, b])), strict=True):
            assert torch.equal(out, expected), (shapes, of_a, of_b)


@pytest.mark.parametrize(
    ("of_input", "of_result"), [("x", "y"), ("(x, y),", "(y, x),"), ("x", "None"), ("None", "x")]
)
def test_result_into_an_input_that_is_divided_otherwise(of_input, of_result):
    """Equal local sizes are not enough: each device must have the same elements of both."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([8])
        y = fd.ops.mul(x, 2.0)
        fd.add_output(y, alias_input=x)
        for tv, spec in ((x, of_input), (y, of_result)):
            tv.set_sharding(meshfuse.from_partition_spec(spec, mesh=SQUARE))
    with meshfuse.simulate(4) as sim, pytest.raises(meshfuse.Error) as caught:
        sim.run(fd, [torch.arange(8.0)])
    assert re.search("has other elements of T1|T1 .*has local sizes", str(caught.value))


@pytest.mark.parametrize("spec", ["x", "(x, y),", "None"])
def test_result_into_an_input_that_is_divided_alike(spec):
    """Whether the result's sharding is declared or follows."""
    for declared in (False, True):
        with FusionDefinition() as fd:
            x = fd.define_tensor([8])
            y = fd.ops.mul(x, 2.0)
            fd.add_output(y, alias_input=x)
            for tv in (x, y)[: 1 + declared]:
                tv.set_sharding(meshfuse.from_partition_spec(spec, mesh=SQUARE))
        value = torch.arange(8.0)
        with meshfuse.simulate(4) as sim:
            sim.run(fd, [value])
        assert torch.equal(value, torch.arange(8.0) * 2)


def test_result_into_an_input_on_other_devices():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        y = fd.ops.mul(x, 2.0)
        fd.add_output(y, alias_input=x)
        x.set_device_mesh(DeviceMesh([0, 1]))
        y.set_device_mesh(DeviceMesh([2, 3]))
    message = (
        r"add_output: device \d has other elements of T1.*than of T0, whose memory is to take it"
    )
    with meshfuse.simulate(4) as sim, pytest.raises(meshfuse.Error, match=message):
        sim.run(fd, [torch.ones(4)])
