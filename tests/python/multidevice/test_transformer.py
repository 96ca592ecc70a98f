# SPDX-License-Identifier: BSD-3-Clause
"""Transformer blocks, forward and backward, on meshes, against torch on one device."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformer_cases import SIZES, TORCH, define_block, drop_masks, expected, make, reference

import meshfuse
from meshfuse import Communicator, DataType, DeviceMesh

RANKS = Communicator.instance().size()
LAUNCHED = RANKS > 1
SHAPES = [(RANKS,)] if LAUNCHED else [(2,), (4,), (8,)]
dtypes = pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16], ids=lambda d: d.name)
flavours = pytest.mark.parametrize("llama", [False, True], ids=["gpt", "llama"])


def mesh_of(shape):
    return DeviceMesh(torch.arange(int(torch.tensor(shape).prod())).reshape(shape))


def run(block, inputs):
    """Return the global results, on ranks those of this rank's part made whole."""
    size = block.model.mesh.size if block.model.mesh else 1
    if not LAUNCHED:
        with meshfuse.simulate(size) as sim:
            return sim.run(block.fd, inputs)
    return block.fd.execute(local_parts(block.fd.fusion.inputs(), inputs))


def local_parts(declared, tensors):
    """This rank's parts of global tensors."""
    return [
        meshfuse.multidevice.shard_tensor(t, tv) if tv.has_device_mesh() else t
        for t, tv in zip(tensors, declared, strict=True)
    ]


def compare(block, inputs, dtype=DataType.Float, **options):
    """Compare every result with torch's: whole ones, and this rank's part of the others."""
    want = expected(block, inputs, **options)
    found = run(block, inputs)
    assert len(found) == len(want)
    assert all(tv.dtype() == dtype for tv in block.fd.fusion.outputs())
    want = here(block, want)
    names = ["result", "x", *block.model.parameters]
    if dtype == DataType.Float:
        for name, got, exact in zip(names, found, want, strict=True):
            scale = max(exact.abs().max().item(), 1.0)
            torch.testing.assert_close(
                got, exact, rtol=1e-4, atol=1e-4 * scale, msg=lambda m, name=name: f"{name}: {m}"
            )
        return
    # Both round to 16 bits on their way, and the mesh rounds the terms of sums that it sends too.
    rounded = here(block, expected(block, inputs, dtype=TORCH[dtype], **options))
    for name, got, exact, other in zip(names, found, want, rounded, strict=True):
        ours, torchs = relative_error(got, exact), relative_error(other, exact)
        assert ours <= 2 * torchs + 1e-3, f"{name}: {ours:.2e} from exact, torch {torchs:.2e}"


def here(block, results):
    """What this process has of global results: on ranks its parts, else everything."""
    if not LAUNCHED:
        return results
    shardings = block.fd.fec.get_output_shardings()
    return [part_of(whole, s) for whole, s in zip(results, shardings, strict=True)]


def relative_error(got, exact):
    """The norm of the difference over that of the exact values."""
    return ((got.float() - exact).norm() / exact.norm()).item()


def part_of(whole, sharding):
    """This rank's part of a tensor that a Sharding tells about."""
    rank = Communicator.instance().rank()
    for place, kind in enumerate((meshfuse.ParallelType.mesh_y, meshfuse.ParallelType.mesh_x)):
        if sharding.mesh.rank < 2 - place:
            continue
        axis = sharding.axis_sharded_on(kind)
        if axis < 0:
            continue
        index = sharding.mesh.index_of(rank)[place - (2 - sharding.mesh.rank)]
        count = sharding.mesh.shape[place - (2 - sharding.mesh.rank)]
        whole = whole.chunk(count, axis)[index]
    return whole


@dtypes
@flavours
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tensor_parallel(shape, llama, dtype):
    block, inputs = make(mesh_of(shape), dtype, llama=llama, backward=True)
    compare(block, inputs, dtype, llama=llama)


@dtypes
@flavours
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sequence_parallel(shape, llama, dtype):
    block, inputs = make(mesh_of(shape), dtype, llama=llama, backward=True, sequence_parallel=True)
    compare(block, inputs, dtype, llama=llama)


@flavours
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.skipif(LAUNCHED and RANKS != 4, reason="needs 4 devices")
def test_data_and_tensor_parallel(llama, sequence):
    block, inputs = make(
        mesh_of((2, 2)),
        DataType.Float,
        llama=llama,
        backward=True,
        data_parallel=True,
        sequence_parallel=sequence,
    )
    compare(block, inputs, llama=llama)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dropout_is_the_same_on_every_mesh(shape):
    sizes = dataclasses.replace(SIZES, dropout=0.3)
    block, inputs = make(mesh_of(shape), DataType.Float, sizes, backward=True)
    masks = drop_masks(sizes)
    compare(block, inputs, llama=False, sizes=sizes, masks=masks)


@flavours
@pytest.mark.skipif(LAUNCHED, reason="one device")
def test_one_device(llama):
    block, inputs = make(None, DataType.Float, llama=llama, backward=True)
    compare(block, inputs, llama=llama)


# Forward: two sums over the devices, or the same as gathers and scatters of the sequence. Backward
# as much again. With the sequence divided, the gradients of norms and biases are sums over it: 4 of
# norms and 2 of biases in GPT's flavour, 2 of norms in Llama's. With the batch divided, every
# parameter's gradient is.
COMMUNICATIONS = {
    ("gpt", "forward"): {"all-reduce": 2},
    ("gpt", "backward"): {"all-reduce": 2 + 2},
    ("gpt", "forward, sequence"): {"all-gather": 2, "reduce-scatter": 2},
    ("gpt", "backward, sequence"): {"all-gather": 4, "reduce-scatter": 4, "all-reduce": 4 + 2},
    ("gpt", "backward, data"): {"all-reduce": 2 + 2 + 12},
    ("llama", "forward"): {"all-reduce": 2},
    ("llama", "backward"): {"all-reduce": 2 + 2},
    ("llama", "forward, sequence"): {"all-gather": 2, "reduce-scatter": 2},
    ("llama", "backward, sequence"): {"all-gather": 4, "reduce-scatter": 4, "all-reduce": 2},
    ("llama", "backward, data"): {"all-reduce": 2 + 2 + 6},
}


@pytest.mark.parametrize("case", COMMUNICATIONS, ids=" ".join)
def test_number_of_communications(case):
    flavour, what = case
    data = "data" in what
    block, inputs = make(
        mesh_of((2, 2) if data else (2,)),
        DataType.Float,
        llama=flavour == "llama",
        backward="backward" in what,
        sequence_parallel="sequence" in what,
        data_parallel=data,
    )
    found = [c.kind for c in block.fd.explain(inputs=inputs).communications]
    assert {kind: found.count(kind) for kind in found} == COMMUNICATIONS[case]


def trained_by_torch(block, inputs, steps, rate):
    """The losses of one device and its parameters at the end, by autograd and SGD."""
    x, target, *values = inputs
    values = [t.clone().requires_grad_() for t in values]
    optimizer = torch.optim.SGD(values, rate)
    losses = []
    for _ in range(steps):
        named = dict(zip(block.model.parameters, values, strict=True))
        loss = torch.nn.functional.mse_loss(reference(named, x, SIZES), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [t.detach() for t in values]


@pytest.mark.skipif(LAUNCHED and RANKS not in (2, 4), reason="needs 2 or 4 devices")
def test_training_follows_one_device():
    """200 steps of SGD, the parameters updated in place."""
    steps, rate, size = 200, 0.1, RANKS if LAUNCHED else 2
    block, inputs = make(mesh_of((size,)), DataType.Float, learning_rate=rate)
    want, trained = trained_by_torch(block, inputs, steps, rate)
    trained = [*inputs[:2], *trained]
    losses = []
    if LAUNCHED:
        declared = block.fd.fusion.inputs()
        parts = [local_parts(declared, [t.clone() for t in inputs])]
        losses = [block.fd.execute(*parts)[0].item() for _ in range(steps)]
        exact = [local_parts(declared, trained)]
    else:
        with meshfuse.simulate(size) as sim:
            parts = sim.shard(block.fd, inputs)
            for _ in range(steps):
                found = [loss.item() for (loss,) in sim.execute(block.fd, parts)]
                assert found == found[:1] * size
                losses.append(found[0])
            exact = sim.shard(block.fd, trained)
    assert want[-1] < 0.5 * want[0]
    torch.testing.assert_close(losses, want, rtol=0, atol=1e-4)
    for of_device, exact_of_device in zip(parts, exact, strict=True):
        for k, name in enumerate(block.model.parameters, 2):
            torch.testing.assert_close(
                *(of_device[k], exact_of_device[k]),
                rtol=1e-3,
                atol=1e-4,
                msg=lambda m, name=name: f"{name}: {m}",
            )


@pytest.mark.parametrize(
    ("sizes", "llama", "message"),
    [
        ({"kv_heads": 0}, False, r"kv_heads is 0\. Give 1 or more"),
        ({"heads": 0}, False, r"heads is 0\. Give 1 or more"),
        ({"heads": 12}, False, r"hidden, 64, is not divisible by 12 heads"),
        ({"kv_heads": 3}, True, r"heads, 16, is not divisible by kv_heads, 3\."),
        ({"hidden": 48}, True, r"A head has 3 elements \(48 / 16\)"),
    ],
)
def test_sizes_of_no_block(sizes, llama, message):
    with pytest.raises(ValueError, match=message):
        define_block(dataclasses.replace(SIZES, **sizes), llama=llama)
