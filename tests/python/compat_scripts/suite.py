# SPDX-License-Identifier: BSD-3-Clause
"""A suite in the direct style, with CUDA tensors and a fixture of its own."""

import nvfuser_direct
import pytest
import torch
from nvfuser_direct import FusionDefinition


@pytest.fixture
def data():
    return [torch.randn(4, 8, device="cuda"), torch.randn(4, 8, device=torch.device("cuda", 0))]


@pytest.mark.parametrize("op", ["add", "mul"])
def test_binary(data, op):
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(x) for x in data]
        fd.add_output(getattr(fd.ops, op)(*tensors))
    (out,) = fd.execute(data)
    torch.testing.assert_close(out, getattr(torch, op)(*data))


def test_error(data):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(data[0])))
    with pytest.raises(RuntimeError, match="Expected input 0"):
        fd.execute([2.0])
    assert "nvfuser_direct" in nvfuser_direct.FusionDefinition._api_name
