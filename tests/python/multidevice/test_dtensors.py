# SPDX-License-Identifier: BSD-3-Clause
"""Programs on DTensors, on one rank or on those of a launcher."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType


@pytest.fixture
def ranks(multidevice_test, request):
    """The number of ranks, with a default process group of as many."""
    if multidevice_test.size > 1:
        request.getfixturevalue("setup_default_process_group")
        yield multidevice_test.size
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield 1
    dist.destroy_process_group()


def product(dtensors):
    """X @ w, the inputs placed as the DTensors are."""
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(x, static_sizes=True) for x in dtensors]
        fd.add_output(fd.ops.matmul(*tensors))
        for tv, dtensor in zip(tensors, dtensors, strict=True):
            mesh = DeviceMesh(dtensor.device_mesh.mesh)
            tv.set_device_mesh(mesh)
            (placement,) = dtensor.placements
            if placement.is_shard():
                tv.outer_split(placement.dim, mesh.size)
                tv.axis(placement.dim).parallelize(ParallelType.mesh_x)
    return fd


@pytest.mark.parametrize(
    ("of_x", "of_w", "of_y"),
    [
        (Replicate(), Shard(1), Shard(1)),
        (Shard(0), Replicate(), Shard(0)),
        (Shard(1), Shard(0), Replicate()),
    ],
    ids=["columns", "rows", "inner"],
)
def test_product(ranks, of_x, of_w, of_y):
    """Results are DTensors on the inputs' mesh, placed as propagation found."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("model",))
    torch.manual_seed(1)
    x, w = torch.randn(2 * ranks, 3 * ranks), torch.randn(3 * ranks, 4 * ranks)
    dtensors = [distribute_tensor(x, mesh, [of_x]), distribute_tensor(w, mesh, [of_w])]
    dtensors[0].requires_grad_()
    (out,) = meshfuse.execute_with_dtensors(product(dtensors), dtensors)
    assert out.device_mesh == mesh and out.placements == (of_y,)
    assert not out.requires_grad
    torch.testing.assert_close(out.full_tensor(), x @ w)


def test_program_without_mesh(ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    x = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([4])))
    (out,) = meshfuse.execute_with_dtensors(fd, [x])
    assert out.device_mesh == mesh and out.placements == (Replicate(),)
    assert out.to_local().tolist() == [-1.0] * 4


def test_wrong_inputs(ranks):
    meshes = [init_device_mesh("cpu", (ranks,), mesh_dim_names=(name,)) for name in "ab"]
    inputs = [distribute_tensor(torch.ones(2), mesh, [Replicate()]) for mesh in meshes]
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([2]), fd.define_tensor([2])))
    with pytest.raises(AssertionError, match="DTensor inputs must have the same mesh dim names"):
        meshfuse.execute_with_dtensors(fd, inputs)
    with pytest.raises(ValueError, match="Give at least one DTensor"):
        meshfuse.execute_with_dtensors(fd, [])
