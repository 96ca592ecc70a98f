# SPDX-License-Identifier: BSD-3-Clause
"""Attention and products of groups on real ranks, or on simulated meshes without a launcher."""

from __future__ import annotations

import pytest
import torch
from op_examples import attention, causal_attention, grouped_product, normal
from programs import block, communications, place, shard

from meshfuse import DataType, FusionDefinition


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axis", [0, 1], ids=["batch", "heads"])
def test_attention_of_own_heads(world, axis, causal):
    """Every rank attends over its batches or heads, forward and backward, and sends nothing."""
    d = world.size
    tensors = [normal(4, 4, 6, 8) / (i + 1) for i in range(4)]
    with FusionDefinition() as fd:
        q, k, v, g = (fd.define_tensor([4, 4, 6, 8]) for _ in tensors)
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, None, causal)
        grads = fd.ops.sdpfa_bwd(g, q, k, v, out, lse, 0.0, causal, seed, offset)
        for tv in (out, lse, *grads):
            fd.add_output(tv)
        place(world.mesh, q, k, v, g)
        for tv in (q, k, v, g):
            shard(tv, axis, d)
    exact = [t.clone().requires_grad_() for t in tensors[:3]]
    want = list((causal_attention if causal else attention)(*exact)[:2])
    want += torch.autograd.grad(want[0], exact, tensors[3])
    for r, found in world.run(fd, tensors).items():
        for got, w in zip(found, want, strict=True):
            # The kernel adds in another order than the reference.
            torch.testing.assert_close(got, block(w.detach(), axis, d, r), rtol=1e-5, atol=2e-6)
    assert communications(fd) == []


def test_row_parallel_product_of_groups(world):
    d = world.size
    ends = torch.tensor([3, 3, 12], dtype=torch.int32)
    tensors = [normal(12, 8), normal(3, 8, 6), ends]
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([12, 8]), fd.define_tensor([3, 8, 6])
        offsets = fd.define_tensor([3], dtype=DataType.Int32)
        fd.add_output(fd.ops.grouped_mm(a, b, offsets))
        place(world.mesh, a, b, offsets)
        shard(a, 1, d)
        shard(b, 1, d)
    for (out,) in world.run(fd, tensors).values():
        torch.testing.assert_close(out, grouped_product(*tensors), rtol=1e-5, atol=1e-5)
    assert communications(fd) == (["all-reduce x"] if d > 1 else [])
