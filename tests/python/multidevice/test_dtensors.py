# SPDX-License-Identifier: BSD-3-Clause
"""Programs on DTensors, on one rank or on those of a launcher."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType, from_placements


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


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=str)
def test_program_without_mesh_on_some_ranks(ranks, placement):
    """Ranks outside the mesh of the inputs call it, too, and hold nothing of the result."""
    if ranks == 1:
        pytest.skip("there are no others")
    count = ranks // 2
    mesh = TorchMesh("cpu", torch.arange(count), mesh_dim_names=("tp",))
    x = distribute_tensor(torch.ones(2 * count, 3), mesh, [placement])
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1, 3])))
    for _ in range(2):
        (out,) = meshfuse.execute_with_dtensors(fd, [x])
        assert out.device_mesh == mesh and out.placements == (placement,)
        inside = dist.get_rank() < count
        rows = 2 * count if placement.is_replicate() else 2
        assert out.to_local().tolist() == ([[-1.0] * 3] * rows if inside else [])


def test_wrong_inputs(ranks):
    meshes = [init_device_mesh("cpu", (ranks,), mesh_dim_names=(name,)) for name in "ab"]
    inputs = [distribute_tensor(torch.ones(2), mesh, [Replicate()]) for mesh in meshes]
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([2]), fd.define_tensor([2])))
    with pytest.raises(AssertionError, match="DTensor inputs must have the same mesh dim names"):
        meshfuse.execute_with_dtensors(fd, inputs)
    with pytest.raises(ValueError, match="Give at least one DTensor"):
        meshfuse.execute_with_dtensors(fd, [])
    for wrong in (inputs[0], 3):
        message = (
            "execute_with_dtensors: in_dtensors must be a list with one DTensor per tensor input, "
            rf"but it is a {type(wrong).__name__}\."
        )
        with pytest.raises(TypeError, match=message):
            meshfuse.execute_with_dtensors(fd, wrong)


def grid(ranks):
    """A mesh of two dims: 1x1, 1x2 or 2x2."""
    shape = {1: (1, 1), 2: (1, 2), 4: (2, 2)}[ranks]
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))


def placed(program, *dtensors, uneven=False):
    """A program of inputs as large as the DTensors, and placed as they are."""
    with FusionDefinition(uneven=uneven) as fd:
        tensors = [fd.define_tensor(list(x.shape)) for x in dtensors]
        fd.add_output(program(fd, *tensors))
        for tv, x in zip(tensors, dtensors, strict=True):
            tv.set_sharding(from_placements(x.placements, x.device_mesh))
    return fd


def negative(fd, t):
    return fd.ops.neg(t)


def strided(dim, pieces):
    return _StridedShard(dim, split_factor=pieces)


@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Shard(0)),
        (strided(0, 2), Shard(0)),
        (Shard(1), Shard(0)),
        (Replicate(), strided(1, 3)),
        (Shard(0), Replicate()),
        (Replicate(), Replicate()),
    ],
    ids=str,
)
def test_placements_of_two_dims(ranks, placements):
    """Inputs have torch's parts, and results the placements of the inputs."""
    mesh = grid(ranks)
    if ranks == 1 and placements[0] == strided(0, 2):
        pytest.skip("torch has this order where tp has two ranks")
    whole = torch.arange(8.0 * 12).reshape(8, 12)
    x = distribute_tensor(whole, mesh, placements)
    sharding = from_placements(placements, mesh)
    (out,) = meshfuse.execute_with_dtensors(placed(negative, x), [x])
    assert from_placements(out.placements, mesh) == sharding and out.device_mesh == mesh
    assert torch.equal(out.to_local(), -x.to_local())
    if strided(1, 3) not in placements:  # torch does not gather what is no order of mesh dims
        assert torch.equal(out.full_tensor(), -whole)


def test_product_on_two_dims(ranks):
    """Rows over dp, columns over tp; and the sum over tp of a second product."""
    mesh = grid(ranks)
    torch.manual_seed(3)
    x, w, v = (torch.randn(n) for n in ((4, 6), (6, 8), (8, 2)))
    inputs = [
        distribute_tensor(x, mesh, [Shard(0), Replicate()]),
        distribute_tensor(w, mesh, [Replicate(), Shard(1)]),
        distribute_tensor(v, mesh, [Replicate(), Shard(0)]),
    ]
    fd = placed(lambda fd, a, b, c: fd.ops.matmul(fd.ops.matmul(a, b), c), *inputs)
    (out,) = meshfuse.execute_with_dtensors(fd, inputs)
    assert out.placements == (Shard(0), Replicate())
    torch.testing.assert_close(out.full_tensor(), x @ w @ v)


@pytest.mark.parametrize("extent", [3, 5, 6, 7])
def test_uneven_chunks(ranks, extent):
    """Rank by rank torch's chunks, of inputs and of results."""
    mesh = init_device_mesh("cpu", (ranks,))
    whole = torch.arange(extent * 2.0).reshape(extent, 2)
    x = distribute_tensor(whole, mesh, [Shard(0)])
    (out,) = meshfuse.execute_with_dtensors(placed(negative, x, uneven=True), [x])
    assert out.shape == whole.shape and out.stride() == whole.stride()
    assert out.placements == (Shard(0),)
    assert torch.equal(out.to_local(), -x.to_local())
    assert torch.equal(out.full_tensor(), -whole)


def test_placements_of_inputs_are_taken(ranks):
    """A program without a mesh: torch's operators would give the same."""
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(2)
    x, w = torch.randn(4, 8), torch.randn(8, 6)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.matmul(a, b))
    for of_x, of_w, of_y in [
        (Shard(0), Replicate(), Shard(0)),
        (Shard(1), Shard(0), Replicate()),
        (Replicate(), Replicate(), Replicate()),
        (Shard(0), Replicate(), Shard(0)),
    ]:
        inputs = [distribute_tensor(x, mesh, [of_x]), distribute_tensor(w, mesh, [of_w])]
        (out,) = meshfuse.execute_with_dtensors(fd, inputs)
        torch.testing.assert_close(out.full_tensor(), x @ w)
        assert out.placements == (of_y if ranks > 1 else Replicate(),)
    assert not any(t.has_device_mesh() for t in fd.fusion.tensors())


def test_order_that_torch_notes_apart(ranks):
    """Shard placements in another order of mesh dims than left to right."""
    mesh = grid(ranks)
    whole = torch.arange(8.0)
    local = distribute_tensor(whole, mesh, [strided(0, mesh.size(1)), Shard(0)]).to_local()
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    spec = DTensorSpec(mesh, (Shard(0), Shard(0)), meta, shard_order=order)
    x = DTensor(local, spec, requires_grad=False)
    with FusionDefinition() as fd:
        t = fd.define_tensor([8])
        fd.add_output(fd.ops.neg(t))
        t.set_sharding(from_placements([strided(0, mesh.size(1)), Shard(0)], mesh))
    (out,) = meshfuse.execute_with_dtensors(fd, [x])
    assert torch.equal(out.full_tensor(), -whole)
    if ranks == 4:
        with pytest.raises(meshfuse.Error, match="axis 0 of input 0"):
            meshfuse.execute_with_dtensors(placed(negative, x), [x])


def symbolic(mesh=None, placements=None):
    with FusionDefinition() as fd:
        t, u = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(t, u))
        t.set_device_mesh(DeviceMesh(mesh.mesh))
        if placements is not None:
            u.set_sharding(from_placements(placements, mesh))
    return fd


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        (
            [Shard(0)],
            [Shard(1)],
            r"axis 0, axis 1 of input 1 \(T1\) is divided otherwise than the program says: the "
            r"DTensor's placements are \[Shard\(dim=1\)\] on .*mesh_x=.* the program's "
            r"\[Shard\(dim=0\)\]",
        ),
        ([Replicate()], [Shard(1)], r"Shard\(dim=1\)\] on .*the program's \[Replicate\(\)\]"),
        (None, [Shard(0)], r"the program's \[Replicate\(\)\] on .*as the tensor has no mesh"),
        ([strided(0, 2)], [Replicate()], r"program's \[_StridedShard\(dim=0, sf=2\)\]"),
        ([Replicate()], [Partial()], r"input 1 is partial \(sum\) on mesh_x: placements"),
    ],
)
def test_placements_that_differ(ranks, declared, given, message):
    """Sizes are not declared, so that nothing else would tell them apart."""
    mesh = init_device_mesh("cpu", (ranks,))
    size = 4 * ranks
    one = distribute_tensor(torch.ones(size, size), mesh, [Replicate()])
    if given == [Partial()]:
        two = DTensor.from_local(torch.ones(size, size), mesh, given, run_check=False)
    else:
        two = distribute_tensor(torch.ones(size, size), mesh, given)
    fd = symbolic(mesh, declared)
    if ranks == 1 and given != [Partial()]:  # the same elements
        (out,) = meshfuse.execute_with_dtensors(fd, [one, two])
        assert out.to_local().eq(2).all()
        return
    with pytest.raises(meshfuse.Error, match=message):
        meshfuse.execute_with_dtensors(fd, [one, two])
    right = distribute_tensor(torch.ones(size, size), mesh, declared or [Replicate()])
    (out,) = meshfuse.execute_with_dtensors(fd, [one, right])
    assert out.to_local().eq(2).all()
    assert from_placements(out.placements, mesh) == from_placements(right.placements, mesh)


def test_another_shape_of_mesh(ranks):
    """A program on a mesh of one dim takes the parts that a mesh of two dims gives."""
    whole = torch.arange(8.0)
    mesh = grid(ranks)
    with FusionDefinition() as fd:
        t = fd.define_tensor([8])
        fd.add_output(fd.ops.neg(t))
        t.set_sharding(from_placements([Shard(0)], DeviceMesh(range(ranks))))
    x = distribute_tensor(whole, mesh, [Shard(0), Shard(0)])
    (out,) = meshfuse.execute_with_dtensors(fd, [x])
    assert out.device_mesh.ndim == 1 and out.device_mesh.mesh.tolist() == list(range(ranks))
    assert torch.equal(out.full_tensor(), -whole)
    again = meshfuse.execute_with_dtensors(fd, [x])[0]
    assert again.device_mesh is out.device_mesh
    if ranks == 4:
        other = distribute_tensor(whole, mesh, [strided(0, 2), Shard(0)])
        with pytest.raises(meshfuse.Error, match="axis 0 of input 0"):
            meshfuse.execute_with_dtensors(fd, [other])


def test_devices_that_hold_nothing(ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    x = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    with FusionDefinition() as fd:
        t = fd.define_tensor([4])
        fd.add_output(fd.ops.neg(t))
        t.set_device_mesh(DeviceMesh(range(ranks + 1)))
    with pytest.raises(meshfuse.Error, match=rf"needs input 0 \(T0\) on devices \[{ranks}\]"):
        meshfuse.execute_with_dtensors(fd, [x])


def test_uneven_sizes_without_uneven_mode(ranks):
    if ranks == 1:
        pytest.skip("one rank divides all sizes")
    mesh = init_device_mesh("cpu", (ranks,))
    x = distribute_tensor(torch.ones(2 * ranks + 1), mesh, [Shard(0)])
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(t))
        t.set_sharding(from_placements([Shard(0)], mesh))
    message = (
        rf"execute_with_dtensors: axis 0 of input 0 \(T0\) has size {2 * ranks + 1}, which is not "
        rf"divisible by {ranks}, for mesh_x \({ranks}\)\. Choose a size that"
    )
    with pytest.raises(meshfuse.Error, match=message):
        meshfuse.execute_with_dtensors(fd, [x])


def test_one_rank_that_is_wrong(ranks):
    """The others do not wait for it, and the next execution works."""
    if ranks == 1:
        pytest.skip("there are no others")
    mesh = init_device_mesh("cpu", (ranks,))
    x = distribute_tensor(torch.ones(ranks, ranks), mesh, [Shard(0)])
    other = distribute_tensor(torch.ones(ranks, ranks), mesh, [Shard(1)])
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.sum(t, [0]))
        t.set_sharding(from_placements([Shard(0)], mesh))
    wrong = dist.get_rank() == 0
    expected = meshfuse.Error if wrong else meshfuse.PeerError
    with pytest.raises(expected, match="axis 0, axis 1 of input 0"):
        meshfuse.execute_with_dtensors(fd, [other if wrong else x])
    (out,) = meshfuse.execute_with_dtensors(fd, [x])
    assert out.full_tensor().eq(ranks).all()


def test_numbers_and_plain_tensors(ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    x = distribute_tensor(torch.ones(2 * ranks), mesh, [Shard(0)])
    with FusionDefinition() as fd:
        t, s = fd.define_tensor([-1]), fd.define_scalar(dtype=meshfuse.DataType.Double)
        fd.add_output(fd.ops.mul(t, s))
    (out,) = meshfuse.execute_with_dtensors(fd, [x, 3.0])
    assert out.full_tensor().tolist() == [3.0] * 2 * ranks
    with pytest.raises(TypeError, match=r"input 0 is a torch\.Tensor"):
        meshfuse.execute_with_dtensors(fd, [torch.ones(2), 3.0])
