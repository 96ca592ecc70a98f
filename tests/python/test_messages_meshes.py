# SPDX-License-Identifier: BSD-3-Clause
"""What meshes, shardings and simulations refuse, in which words."""

from __future__ import annotations

import re

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import meshfuse
from meshfuse import (
    DeviceMesh,
    FusionDefinition,
    ParallelType,
    from_partition_spec,
    from_placements,
    simulate,
)
from meshfuse.tensor_sharding import sharding_of

GRID = DeviceMesh(torch.arange(8).reshape(2, 4))


@pytest.mark.parametrize(
    ("devices", "kind"),
    [
        ([True], TypeError),
        (3.5, TypeError),
        ("abc", TypeError),
        (None, TypeError),
        (["a"], meshfuse.Error),
        ([[1], [2, 3]], meshfuse.Error),
    ],
    ids=repr,
)
def test_devices_that_are_no_ints(devices, kind):
    with pytest.raises(kind) as caught:
        DeviceMesh(devices)
    assert str(caught.value).startswith(
        f"DeviceMesh: expected a sequence of ints or a tensor of ints, but got {devices!r}"
    )


@pytest.mark.parametrize(
    ("mesh", "how"), [(range(2), "range(0, 2)"), ([0, 1], "[0, 1]"), (None, "..."), (4, "...")]
)
def test_what_is_no_mesh_for_a_tensor(mesh, how):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        for place in (x.set_device_mesh, lambda mesh: fd.sched._set_device_mesh(x, mesh)):
            with pytest.raises(TypeError) as caught:
                place(mesh)
            assert str(caught.value) == (
                "set_device_mesh(): incompatible function arguments. The mesh of T0 must be a "
                f"DeviceMesh, but it is {mesh!r}, a {type(mesh).__name__}. "
                f"Write T0.set_device_mesh(DeviceMesh({how}))."
            )
        x.set_device_mesh(mesh=DeviceMesh(range(2)))
    assert x.get_device_mesh() == DeviceMesh(range(2))


def test_name_of_another_axis():
    message = (
        "DeviceMesh: axis 0 is named 'mesh_x', which means another axis of the mesh. Use a name "
        "of your own."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        DeviceMesh(torch.arange(4).reshape(2, 2), names=("mesh_x", "b"))


PARTITION_SPECS = [
    ("(mesh_x", "from_partition_spec: cannot read '(mesh_x'. "),
    ("f(mesh_x)", "from_partition_spec: 'f(mesh_x)' calls f. Use P(...) or no call."),
    ("P(mesh_x, unreduced=y)",
     "says unreduced, which a tensor cannot be given. Leave it out."),
    ("3, mesh_x",
     "meshfuse has no unconstrained axes; leave the tensor without a sharding for that."),
    ("(x, y)", "may mean one axis over both, or two axes."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), PARTITION_SPECS)
def test_partition_spec_is_refused(text, message):
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        from_partition_spec(text, GRID)


PLACEMENTS = [
    ([Partial("premul_sum"), Replicate()],
     "from_placements: placement 0, Partial(premul_sum) on mesh_y is a partial value that meshfuse "
     "cannot express. It has Partial of "),
    ([_StridedShard(0, split_factor=3), Shard(0)], "cannot be expressed by splits of axis 0: "),
]  # fmt: skip


@pytest.mark.parametrize(("placements", "message"), PLACEMENTS)
def test_placements_are_refused(placements, message):
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        from_placements(placements, GRID)


def test_sharding_that_does_not_fit():
    with FusionDefinition() as fd:
        t = fd.define_tensor([6, 8])
        fd.add_output(fd.ops.relu(t))
    with pytest.raises(meshfuse.Error, match="set_sharding: axis 0 of T0 has size 6"):
        t.set_sharding(from_placements([Replicate(), Shard(0)], GRID))


class Mesh:
    """A mesh of torch.distributed, of four dims."""

    mesh = torch.arange(16).reshape(2, 2, 2, 2)
    mesh_dim_names = None

    def __repr__(self):
        return "Mesh(2, 2, 2, 2)"


def test_mesh_of_four_dims():
    message = (
        "from_placements: Mesh(2, 2, 2, 2) has 4 dims, but a mesh has at most 3: mesh_z, mesh_y "
        "and mesh_x. Flatten dims that divide no tensor by themselves."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        from_placements([Replicate()] * 4, Mesh())


def sum_program(devices=2):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4])
        x.set_device_mesh(DeviceMesh(range(devices)))
        x.outer_split(0, devices)
        x.axis(0).parallelize(ParallelType.mesh_x)
        fd.add_output(fd.ops.relu(x))
    return fd


def test_local_of_a_simulation():
    mesh = simulate(2)
    with pytest.raises(meshfuse.Error) as caught:
        mesh.local()
    assert str(caught.value) == (
        "local: nothing was run on this simulated mesh yet. Call run first."
    )
    mesh.run(sum_program(), [torch.ones(4, 4)])
    with pytest.raises(meshfuse.Error) as caught:
        mesh.local(output=3)
    assert str(caught.value) == "local: output 3 does not exist; the last run had 1."
    with pytest.raises(meshfuse.Error, match="device 2 is not one of the 2 simulated devices"):
        mesh.local(device=2)


def test_simulation_of_too_many_devices():
    message = (
        "simulate: 1048577 devices are more than one process can hold. Simulate at most 1048576."
    )
    with pytest.raises(meshfuse.Error, match=message):
        simulate(2**20 + 1)


def test_placements_of_an_axis_of_unknown_size():
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, 8])
        fd.add_output(fd.ops.relu(t))
        t.set_device_mesh(GRID)
        t.inner_split(0, 4)
        t.axis(1).parallelize(ParallelType.mesh_x)
    message = (
        "placements: axis 0 cannot be expressed by placements: mesh_x takes single elements in "
        "turn, so its pieces depend on the size of the axis. Give its size: placements(shape=...)."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        sharding_of(t).placements()
