# SPDX-License-Identifier: BSD-3-Clause
"""The Megatron MLP block on real ranks, or on simulated meshes without a launcher."""

from __future__ import annotations

import pytest
import torch
from programs import block, mlp, mlp_inputs, mlp_reference

SIMULATED_SIZES = [1, 2, 4, 8]


@pytest.mark.parametrize("in_seq", [False, True], ids=["x whole", "x seq"])
@pytest.mark.parametrize("out_seq", [False, True], ids=["y whole", "y seq"])
def test_mlp(world, in_seq, out_seq):
    """Annotated on its weights, and on its ends; the report is the same on every rank."""
    d = world.size
    fd = mlp(world.mesh, in_seq=in_seq, out_seq=out_seq)
    inputs = mlp_inputs(d)
    want = mlp_reference(*inputs)
    for r, (y,) in world.run(fd, inputs).items():
        part = block(want, 1, d, r) if out_seq else want
        torch.testing.assert_close(y, part, rtol=1e-5, atol=1e-5)
    communications = fd.explain().communications
    kinds = ["all-gather"] * in_seq + ["reduce-scatter" if out_seq else "all-reduce"]
    assert [c.kind for c in communications] == (kinds if d > 1 else [])
    assert all(c.team == list(range(d)) for c in communications)
