# SPDX-License-Identifier: BSD-3-Clause
"""DeviceMesh, shard_tensor and the simulated mesh."""

from __future__ import annotations

import copy
import pickle
import re
import threading

import pytest
import torch

import meshfuse
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType, multidevice


@pytest.mark.parametrize(
    ("devices", "shape", "text"),
    [
        ([0, 1, 2, 3], (4,), "DeviceMesh{0 1 2 3}"),
        (range(2), (2,), "DeviceMesh{0 1}"),
        ((3, 1), (2,), "DeviceMesh{3 1}"),
        (torch.arange(4), (4,), "DeviceMesh{0 1 2 3}"),
        (torch.arange(4).reshape(2, 2), (2, 2), "DeviceMesh{{0 1}{2 3}}"),
        ([[0, 1], [2, 3]], (2, 2), "DeviceMesh{{0 1}{2 3}}"),
        (torch.tensor(0), (1,), "DeviceMesh{0}"),
    ],
)
def test_construction(devices, shape, text):
    mesh = DeviceMesh(devices)
    assert (mesh.shape, mesh.size, mesh.rank) == (shape, len(mesh.devices), len(shape))
    assert repr(mesh) == text


def test_equality_and_hash():
    a, b = DeviceMesh([0, 1]), DeviceMesh(torch.tensor([0, 1]))
    assert a == b and hash(a) == hash(b)
    assert a != DeviceMesh([1, 0]) and a != DeviceMesh([[0, 1]]) and a != "mesh"


def test_places():
    mesh = DeviceMesh([[3, 4, 1], [0, 8, 2]], names=("dp", "tp"))
    assert mesh.names == ("dp", "tp")
    assert mesh.index_of(8) == (1, 1) and mesh.index_of(7) is None
    assert mesh.slice_of(1, ParallelType.mesh_x) == [3, 4, 1]
    assert mesh.slice_of(1, ParallelType.mesh_y) == [1, 2]


@pytest.mark.parametrize(
    "take", [copy.copy, copy.deepcopy, lambda mesh: pickle.loads(pickle.dumps(mesh))]
)
def test_copies(take):
    mesh = DeviceMesh([[3, 4, 1], [0, 8, 2]], names=("dp", "tp"))
    other = take(mesh)
    assert other == mesh and other is not mesh
    assert (other.shape, other.devices, other.names) == (mesh.shape, mesh.devices, mesh.names)


def test_long_lists_of_devices_are_cut():
    many = DeviceMesh(torch.arange(100_000).reshape(2, -1))
    assert str(many) == "DeviceMesh{100000 devices of shape [2, 50000], from 0 to 99999}"
    with pytest.raises(meshfuse.Error, match=r"once in \[0, 1, .*, 15 and 99985 more\]\."):
        DeviceMesh([*range(100_000), 7])


AWKWARD_NAMES = ['a"b', "a\\b", "\\", '"//', "a\u2028b", "a\nb", "x=3", ": 1 2)", "tp, x=2"]


@pytest.mark.parametrize("name", AWKWARD_NAMES, ids=ascii)
def test_names_of_axes_are_any_text(name):
    """A program keeps them as text, on another mesh, and in everything that reads its text."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4])
        fd.add_output(fd.ops.relu(x))
        x.set_device_mesh(DeviceMesh(range(2), names=(name,)))
        x.outer_split(0, 2)
        x.axis(0).parallelize(ParallelType.mesh_x)
    (tensor, _) = meshfuse.parse_ir(fd.ir()).fusion.tensors()
    assert tensor.get_device_mesh().names == (name,)
    assert not meshfuse.plan_costs(fd, 4).communications
    assert fd.check(examples=2).examples == 2
    assert fd.visualize().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DeviceMesh([0, 0]), "duplicates"),
        (lambda: DeviceMesh([-1, 0]), "-1"),
        (lambda: DeviceMesh([]), "empty"),
        (lambda: DeviceMesh([0, 1], names=("a", "b")), "2 names were given for 1"),
        (lambda: DeviceMesh([0]).slice_of(0, ParallelType.mesh_y), "does not have parallel type"),
    ],
)
def test_wrong_meshes(make, message):
    with pytest.raises(RuntimeError, match=message):
        make()


def test_ragged_mesh():
    with pytest.raises(meshfuse.Error, match=r"\[2\]\]. Give lists of equal lengths"):
        DeviceMesh([[0, 1], [2]])


@pytest.mark.parametrize("devices", [1.5, "01", None, [0.5]])
def test_wrong_types(devices):
    with pytest.raises(TypeError):
        DeviceMesh(devices)


def test_shard_tensor_of_a_mesh():
    mesh, t = DeviceMesh([1, 0]), torch.arange(6)
    assert mesh.shard_tensor(t, 0, 1).tolist() == [0, 1, 2]
    assert mesh.shard_tensor(t, -1, 0).tolist() == [3, 4, 5]
    assert mesh.shard_tensor(t, axis=0, device_id=7).shape == (0,)
    assert DeviceMesh([0]).shard_tensor(t, 0).tolist() == t.tolist()
    message = "Sharded axis must be evenly divisible by mesh"
    with pytest.raises(RuntimeError, match=message) as caught:
        mesh.shard_tensor(torch.arange(5), 0, 0)
    assert "5" in str(caught.value) and "2" in str(caught.value)


def tensor_on(shape, devices, *splits):
    """A tensor input whose loop axes are split; splits are (axis, factor, outer, device place)."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape)
        x.set_device_mesh(DeviceMesh(devices))
        for axis, factor, inner, place, kind in splits:
            x.split(axis, factor, inner)
            if place is not None:
                x.axis(place).parallelize(kind)
    return x


X, Y = ParallelType.mesh_x, ParallelType.mesh_y


@pytest.mark.parametrize(
    ("tv", "whole", "parts"),
    [
        (tensor_on([6], [0, 1], (0, 2, False, 0, X)), torch.arange(6), [[0, 1, 2], [3, 4, 5]]),
        (tensor_on([6], [0, 1], (0, 2, True, 1, X)), torch.arange(6), [[0, 2, 4], [1, 3, 5]]),
        (
            tensor_on([12], [0, 1], (0, 2, False, None, None), (1, 2, False, 1, X)),
            torch.arange(12),
            [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]],
        ),
        (tensor_on([6], [1, 0], (0, 2, False, 0, X)), torch.arange(6), [[3, 4, 5], [0, 1, 2]]),
        (
            tensor_on([4], [[0, 1], [2, 3]], (0, 2, False, 0, Y), (1, 2, False, 1, X)),
            torch.arange(4),
            [[0], [1], [2], [3]],
        ),
        (tensor_on([3], [0, 1]), torch.arange(3), [[0, 1, 2], [0, 1, 2]]),
    ],
)
def test_shard_tensor_of_a_schedule(tv, whole, parts):
    sim = meshfuse.simulate(len(parts))
    assert [part.tolist() for part in sim.shard_tensor(whole, tv)] == parts


def test_shard_tensor_of_this_rank():
    tv = tensor_on([6], [0], (0, 1, False, 0, X))
    assert multidevice.shard_tensor(torch.arange(6), tv).tolist() == list(range(6))
    with FusionDefinition() as fd:
        bare = fd.define_tensor([6])
    with pytest.raises(RuntimeError, match="has no DeviceMesh"):
        multidevice.shard_tensor(torch.arange(6), bare)
    with pytest.raises(RuntimeError, match="T0"):
        multidevice.shard_tensor(torch.ones(2, 3), tv)


def column_parallel(d):
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, 4]), fd.define_tensor([4, 6])
        fd.add_output(fd.ops.matmul(x, w))
        for t in (x, w):
            t.set_device_mesh(DeviceMesh(range(d)))
        w.outer_split(-1, d)
        w.axis(-2).parallelize(ParallelType.mesh_x)
    return fd


@pytest.mark.parametrize("d", [1, 2, 3])
def test_simulation(d):
    """One definition runs with several sizes; every level of the interface agrees."""
    fd = column_parallel(d)
    with meshfuse.simulate(d) as sim:
        assert sim.size == d == Communicator.instance().size()
        assert Communicator.instance().backend() == "simulated"
        for rows in (3, 5, 3):
            x, w = torch.randn(rows, 4), torch.randn(4, 6)
            (out,) = sim.run(fd, [x, w])
            torch.testing.assert_close(out, x @ w)
            parts = sim.shard(fd, [x, w])
            outs = sim.execute(fd, parts)
            assert [len(inputs) for inputs in parts] == [2] * d
            for device, (part,) in enumerate(outs):
                torch.testing.assert_close(part, sim.local(0, device))
                torch.testing.assert_close(part, (x @ w).chunk(d, 1)[device])
    assert fd._executor().stats()["compiles"] == 2


def test_inside_a_simulation_there_is_no_single_rank():
    fd = column_parallel(2)
    with meshfuse.simulate(2):
        with pytest.raises(RuntimeError, match=re.escape("sim.run")):
            Communicator.instance().rank()
        with pytest.raises(RuntimeError, match=re.escape("sim.run")):
            fd.execute([torch.ones(3, 4), torch.ones(4, 3)])
    one = column_parallel(1)
    with meshfuse.simulate(1):
        assert Communicator.instance().rank() == 0
        assert one.execute([torch.ones(3, 4), torch.ones(4, 6)])[0].shape == (3, 6)


def test_nested_simulations():
    with meshfuse.simulate(2) as outer:
        with meshfuse.simulate(3) as inner:
            assert Communicator.instance().size() == 3
            assert inner.run(column_parallel(3), [torch.ones(1, 4), torch.ones(4, 6)])
        assert Communicator.instance().size() == 2
        (out,) = outer.run(column_parallel(2), [torch.ones(1, 4), torch.ones(4, 6)])
    assert out.tolist() == [[4.0] * 6]
    assert Communicator.instance().size() == 1


def test_simulations_in_two_threads():
    wrong = []

    def work(d):
        fd = column_parallel(d)
        for rows in range(1, 40):
            x, w = torch.randn(rows, 4), torch.randn(4, 6)
            with meshfuse.simulate(d) as sim:
                if not torch.allclose(sim.run(fd, [x, w])[0], x @ w, atol=1e-5):
                    wrong.append((d, rows))

    threads = [threading.Thread(target=work, args=(d,)) for d in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_simulated_inputs_keep_their_layout():
    """A column-major input declared so stays column-major on every device."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True, stride_order=[0, 1])
        fd.add_output(fd.ops.set(x))
        x.set_device_mesh(DeviceMesh(range(2)))
        x.outer_split(0, 2)
        x.axis(0).parallelize(ParallelType.mesh_x)
    whole = torch.randn(6, 4).t()
    (out,) = meshfuse.simulate(2).run(fd, [whole])
    torch.testing.assert_close(out, whole)


def test_simulated_alias_updates_the_global_input():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        for t in (x, y):
            t.set_device_mesh(DeviceMesh(range(2)))
            t.outer_split(0, 2)
            t.axis(0).parallelize(ParallelType.mesh_x)
    value = torch.arange(4.0)
    assert meshfuse.simulate(2).run(fd, [value]) == []
    assert value.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda sim: meshfuse.simulate(0), "at least 1"),
        (lambda sim: sim.local(), "nothing was run"),
        (lambda sim: sim.execute(column_parallel(2), []), "0 lists of inputs"),
    ],
)
def test_wrong_simulation_calls(call, message):
    with pytest.raises(RuntimeError, match=message):
        call(meshfuse.simulate(2))


def test_output_shardings():
    fd = column_parallel(1)
    fd.execute([torch.ones(3, 4), torch.ones(4, 6)])
    (sharding,) = fd.fec.get_output_shardings()
    assert sharding.mesh == DeviceMesh([0])
    assert sharding.axis_sharded_on(ParallelType.mesh_x) == 1
    assert sharding.axis_sharded_on(ParallelType.mesh_y) == -1


def test_no_output_shardings_without_a_mesh():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([2])))
    with pytest.raises(RuntimeError, match="Invalid fusion definition!"):
        meshfuse.FusionExecutorCache(fd.fusion).get_output_shardings()
    fd.execute([torch.ones(2)])
    assert fd.fec.get_output_shardings() == []


def test_communicator_alone():
    c = Communicator.instance()
    assert (c.size(), c.rank(), c.local_size(), c.local_rank()) == (1, 0, 1, 0)
    assert c is Communicator.instance() and not c.is_available()
    c.barrier()


@pytest.mark.mesh(3)
def test_mesh_env(mesh_env):
    assert mesh_env.size == 3 and mesh_env.mesh == DeviceMesh(range(3))
    x, w = torch.randn(5, 4), torch.randn(4, 6)
    (out,) = mesh_env.run(column_parallel(3), [x, w])
    torch.testing.assert_close(out, x @ w)


def test_multidevice_test_fixture(multidevice_test):
    assert (multidevice_test.size, multidevice_test.rank) == (1, 0)
    t = torch.arange(6)
    assert multidevice_test.shard_tensor(t, 0, DeviceMesh([0])).tolist() == t.tolist()
    assert multidevice_test.shard_tensor_1d(t, 0, DeviceMesh([0])).tolist() == t.tolist()
    tv = tensor_on([6], [0])
    assert multidevice_test.shard_tensor(t, tv).tolist() == t.tolist()
    with pytest.raises(AssertionError, match="expected a CPU tensor"):
        multidevice_test.shard_tensor(t.to("meta"), tv)
