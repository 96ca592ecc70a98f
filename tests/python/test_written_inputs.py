# SPDX-License-Identifier: BSD-3-Clause
"""Inputs whose memory takes a result (alias_input), given tensors that share memory."""

from __future__ import annotations

import numpy
import pytest
import torch

import meshfuse
from meshfuse import FusionDefinition


def two_written(size: int = 3) -> FusionDefinition:
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([size]), fd.define_tensor([size])
        fd.add_output(fd.ops.add(a, 1.0), alias_input=a)
        fd.add_output(fd.ops.mul(b, 10.0), alias_input=b)
    return fd


def shared_pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    x = torch.arange(6.0)
    array = numpy.arange(3, dtype=numpy.float32)
    grid = torch.arange(9.0).reshape(3, 3)
    return {
        "the same": (x[:3], x[:3]),
        "one element": (x[:3], x[2:5]),
        "steps": (x[::2], x[2:5]),
        "two storages": (torch.from_numpy(array), torch.from_numpy(array)),
        "row and column": (grid[1], grid[:, 1]),
    }


@pytest.mark.parametrize("how", shared_pairs())
def test_two_results_into_shared_memory_are_refused(how: str):
    a, b = shared_pairs()[how]
    before = a.clone(), b.clone()
    fd = two_written()
    fd.execute([torch.zeros(3), torch.zeros(3)])  # compiled: the second call takes the fast path
    with pytest.raises(meshfuse.Error) as caught:
        fd.execute([a, b])
    assert (
        "execute: inputs 0 (T0) and 1 (T1) each take a result, but they share memory, so that one "
        "of the results would be lost. Pass tensors with memory of their own: clone one of them."
        in str(caught.value)
    )
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_results_into_tensors_that_interleave():
    x = torch.arange(6.0)
    two_written().execute([x[::2], x[1::2]])
    assert x.tolist() == [1, 10, 3, 30, 5, 50]
    grid = torch.arange(6.0).reshape(3, 2)
    two_written().execute([grid[:, 0], grid[:, 1]])
    assert grid.tolist() == [[1, 10], [3, 30], [5, 50]]


def test_on_the_simulated_mesh():
    x = torch.arange(3.0)
    mesh = meshfuse.DeviceMesh(range(2))
    fd = two_written()
    for tv in fd.fusion.inputs():
        tv.set_device_mesh(mesh)
    with meshfuse.simulate(2) as sim, pytest.raises(meshfuse.Error, match="each take a result"):
        sim.execute(fd, [[x, x], [x, x]])
    y = torch.arange(3.0)
    with meshfuse.simulate(2) as sim:
        sim.execute(fd, [[x, y], [x, y]])  # devices may share theirs: all write the same
    assert x.tolist() == [1, 2, 3]
    assert y.tolist() == [0, 10, 20]


def test_former_values_under_another_name():
    """Results that are inputs, or views of them, have the values that the program read."""
    with FusionDefinition() as fd:
        x, v = fd.define_tensor([3]), fd.define_tensor([3])
        fd.add_output(fd.ops.mul(x, 2.0), alias_input=x)
        fd.add_output(v)
    memory = torch.arange(4.0)
    (out,) = fd.execute([memory[:3], memory[1:]])
    assert memory.tolist() == [0, 2, 4, 3]
    assert out.tolist() == [1, 2, 3]


def test_an_exchange_of_two_inputs():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([3]), fd.define_tensor([3])
        c = fd.define_tensor([3])
        fd.add_output(fd.ops.set(c), alias_input=a)
        fd.add_output(fd.ops.set(a), alias_input=b)
    first, second = torch.arange(3.0), torch.arange(3.0) + 10
    fd.execute([first, second, second])
    assert first.tolist() == [10, 11, 12]
    assert second.tolist() == [0, 1, 2]


def test_inference_tensors():
    fd = two_written()
    with torch.inference_mode():
        a, b = torch.ones(3), torch.ones(3)
        fd.execute([a, b])
    assert a.tolist() == [2, 2, 2]
    with pytest.raises(meshfuse.Error) as caught:
        fd.execute([a, b])
    assert (
        "execute: input 0 (T0) takes a result but was made in inference mode, where torch forbids "
        "to write into it now. Call execute in torch.inference_mode(), or pass a clone."
        in str(caught.value)
    )
    assert a.tolist() == [2, 2, 2]
