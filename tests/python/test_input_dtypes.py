# SPDX-License-Identifier: BSD-3-Clause
"""Dtypes and devices of inputs: what is refused, and what must stay exact."""

from __future__ import annotations

import pytest
import torch
from programs import matmul_cut, ramp, sharded_matmul

import meshfuse
from meshfuse import DataType, FusionDefinition

C_NAMES = {
    torch.float64: "double",
    torch.float16: "__half",
    torch.bfloat16: "__bfloat",
    torch.bool: "bool",
    torch.int64: "int64_t",
    torch.int32: "int",
    torch.complex64: "std::complex<float>",
}


@pytest.mark.parametrize("dtype", C_NAMES, ids=str)
@pytest.mark.parametrize("position", [0, 1])
def test_other_dtype_than_declared(position, dtype):
    right = [ramp(4, 6), ramp(6, 8)]
    fd = sharded_matmul(*right, matmul_cut((4, 6), (6, 8), "n"), 2)
    with meshfuse.simulate(2) as sim:
        wrong = list(right)
        wrong[position] = wrong[position].to(dtype)
        with pytest.raises(meshfuse.Error) as caught:
            sim.run(fd, wrong)
        text = str(caught.value)
        assert f"Expected input {position}, T{position}_g_float[" in text
        message = f"dtype float, but got a tensor of dtype {C_NAMES[dtype]}"
        assert message in text
        assert torch.equal(sim.run(fd, right)[0], right[0] @ right[1])


def test_other_dtype_on_one_device():
    right = [ramp(4, 6), ramp(6, 8)]
    fd = sharded_matmul(*right, matmul_cut((4, 6), (6, 8), "n"), 2)
    with meshfuse.simulate(2) as sim:
        parts = sim.shard(fd, right)
        wrong = [parts[0], [parts[1][0], parts[1][1].double()]]
        for _ in range(2):
            with pytest.raises(meshfuse.Error, match="dtype double"):
                sim.execute(fd, wrong)
            assert torch.equal(sim.run(fd, right)[0], right[0] @ right[1])


def test_index_takes_both_integer_types():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4], dtype=DataType.Index)
        fd.add_output(fd.ops.cast(x, DataType.Double))
    for dtype in (torch.int64, torch.int32):
        assert fd.execute([torch.arange(4, dtype=dtype)])[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(meshfuse.Error, match="T0"):
        fd.execute([torch.ones(4)])


@pytest.mark.parametrize("meta", [0, 1])
def test_devices_mixed(meta):
    inputs = [ramp(4, 6), ramp(6, 8)]
    inputs[meta] = inputs[meta].to("meta")
    fd = sharded_matmul(ramp(4, 6), ramp(6, 8), matmul_cut((4, 6), (6, 8), "n"), 1)
    with pytest.raises(meshfuse.Error, match="Inputs are not all on the same device") as caught:
        fd.execute(inputs)
    assert "meta" in str(caught.value) and ramp(1).device.type in str(caught.value)
    assert fd.execute([ramp(4, 6), ramp(6, 8)])[0].shape == (4, 8)


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_shapes_alone(order):
    """Meta tensors go through the same path and give sizes and strides."""
    x, w = ramp(4, 6).to("meta"), ramp(6, 8).to("meta")
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2, stride_order=order)
    with meshfuse.simulate(2) as sim:
        outputs = sim.execute(fd, [[x, torch.empty(6, 4, device="meta")]] * 2)
    for (out,) in outputs:
        assert out.device.type == "meta" and out.shape == (4, 4)
        assert out.stride() == ((4, 1) if order == (1, 0) else (1, 4))


@pytest.mark.parametrize("loop", [None, "m", "n"])
def test_integers_beyond_the_mantissa(loop):
    x = torch.tensor([[2**53 + 1, 1], [2**62, -1]])
    w = torch.tensor([[1, 1], [2, 1]])
    fd = sharded_matmul(x, w, matmul_cut((2, 2), (2, 2), loop or "n"), 2 if loop else 1)
    with meshfuse.simulate(2 if loop else 1) as sim:
        (out,) = sim.run(fd, [x, w])
    assert out.tolist() == [[2**53 + 3, 2**53 + 2], [2**62 - 2, 2**62 - 1]]


@pytest.mark.parametrize("loop", ["m", "n"])
def test_complex_product(loop):
    x = torch.tensor([[1 + 2j, 3 - 1j], [0, 1]])
    w = torch.tensor([[2 - 1j, 0], [1j, 1]])
    fd = sharded_matmul(x, w, matmul_cut((2, 2), (2, 2), loop), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
    assert out.dtype == torch.complex64 and out.tolist() == [[5 + 6j, 3 - 1j], [1j, 1]]


def test_long_sum_of_bfloat16():
    """Summing in bfloat16 would stop at 256."""
    x, w = torch.ones(2, 4096, dtype=torch.bfloat16), torch.ones(4096, 2, dtype=torch.bfloat16)
    fd = sharded_matmul(x, w, matmul_cut((2, 4096), (4096, 2), "n"), 2)
    with meshfuse.simulate(2) as sim:
        assert sim.run(fd, [x, w])[0].tolist() == [[4096, 4096]] * 2


def test_nan_and_infinity_pass():
    x, w = ramp(2, 4), ramp(4, 4)
    x[0, 3], w[3] = float("nan"), 0
    x[1, 0] = float("inf")
    fd = sharded_matmul(x, w, matmul_cut((2, 4), (4, 4), "n"), 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, w])
    torch.testing.assert_close(out, x @ w, equal_nan=True)
    assert out[0].isnan().all()
