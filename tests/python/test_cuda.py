# SPDX-License-Identifier: BSD-3-Clause
"""What is particular to CUDA: streams, no waiting, graphs, CPU scalars. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CYCLES = 200_000_000  # of a kernel that only waits: about a tenth of a second


def divided_product(rows=8, inner=16, columns=12):
    """A product whose columns are divided over a mesh of one device, and a bias."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, inner])
        w = fd.define_tensor([inner, columns])
        b = fd.define_tensor([columns])
        fd.add_output(fd.ops.relu(fd.ops.add(fd.ops.matmul(x, w), b)))
        for tensor, axis in ((x, None), (w, 1), (b, 0)):
            tensor.set_device_mesh(DeviceMesh([0]))
            if axis is not None:
                tensor.outer_split(axis, 1)
                tensor.axis(axis).parallelize(ParallelType.mesh_x)
    inputs = [torch.randn(*shape, device="cuda") for shape in ((rows, inner), (inner, columns))]
    return fd, [*inputs, torch.randn(columns, device="cuda")]


def by_torch(x, w, b):
    return torch.relu(x @ w + b)


def test_results_are_on_the_device_of_the_inputs():
    fd, inputs = divided_product()
    (out,) = fd.execute(inputs)
    assert out.device == inputs[0].device
    torch.testing.assert_close(out, by_torch(*inputs))


def test_runs_on_the_current_stream():
    """A call waits for what is on the stream before it, and torch sees the result after it."""
    fd, inputs = divided_product()
    (want,) = fd.execute(inputs)
    x = torch.zeros_like(inputs[0])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        x.copy_(inputs[0])
        (out,) = fd.execute([x, *inputs[1:]])
        twice = out * 2
        assert not stream.query(), "the call waited for the device"
    stream.synchronize()
    torch.testing.assert_close(twice, want * 2)


@pytest.fixture
def no_waiting():
    """Make every wait of the host for the device an error."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_warm_call_never_waits(no_waiting):
    fd, inputs = divided_product()
    for _ in range(3):
        fd.execute(inputs)


def test_first_call_of_a_block_never_waits(no_waiting):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, 64], contiguity=True)
        w = fd.define_tensor([64, 64])
        y = fd.ops.layer_norm(x, [64], eps=1e-5)
        y = fd.ops.gelu(fd.ops.linear(y, w))
        fd.add_output(fd.ops.add(x, fd.ops.softmax(y, -1)))
    x, w = torch.randn(2, 8, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    (out,) = fd.execute([x, w])
    torch.cuda.set_sync_debug_mode("default")
    y = functional.gelu(functional.linear(functional.layer_norm(x, [64]), w))
    torch.testing.assert_close(out, x + torch.softmax(y, -1), rtol=1e-4, atol=1e-4)


def test_call_is_captured_in_a_graph():
    fd, inputs = divided_product()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fd.execute(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = fd.execute(inputs)
    for seed in range(3):
        torch.manual_seed(seed)
        for tensor in inputs:
            tensor.normal_()
        graph.replay()
        torch.testing.assert_close(out, by_torch(*inputs))


def test_cpu_scalar_mixes_with_cuda_tensors():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        factor = fd.define_tensor([], dtype=DataType.Float, is_cpu=True)
        fd.add_output(fd.ops.mul(x, factor))
    x = torch.randn(4, 6, device="cuda")
    for value in (2.0, -3.0):
        (out,) = fd.execute([x, torch.tensor(value, device="cpu")])
        torch.testing.assert_close(out, x * value)


def test_tensors_on_two_kinds_of_device():
    fd, inputs = divided_product()
    inputs[1] = inputs[1].cpu()
    with pytest.raises(RuntimeError, match="not all on the same device"):
        fd.execute(inputs)


def test_simulated_mesh_on_cuda():
    """Collectives of a simulated mesh go through host memory."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        w = fd.define_tensor([6, 8])
        fd.add_output(fd.ops.linear(x, w))
        for tensor in (x, w):
            tensor.set_device_mesh(DeviceMesh(range(2)))
            tensor.outer_split(1, 2)
            tensor.axis(1).parallelize(ParallelType.mesh_x)
    x, w = torch.randn(4, 8, device="cuda"), torch.randn(6, 8, device="cuda")
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
        assert sim.local(device=1).is_cuda
    assert out.is_cuda
    torch.testing.assert_close(out, x @ w.T)


def test_memory_of_intermediates_is_given_back():
    """The peak of a chain is that of two tensors, not of all."""
    with FusionDefinition() as fd:
        x = y = fd.define_tensor([-1], contiguity=True)
        for _ in range(8):
            y = fd.ops.relu(fd.ops.neg(y))
        fd.add_output(y)
    x = torch.randn(1 << 20, device="cuda")
    fd.execute([x])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fd.execute([x])
    assert torch.cuda.max_memory_allocated() - before <= 2 * x.nbytes
