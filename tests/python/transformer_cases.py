# SPDX-License-Identifier: BSD-3-Clause
"""Transformer blocks by torch alone, to compare those of examples/transformer.py with."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import meshfuse
from meshfuse import DataType, DeviceMesh

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from transformer import Block, Sizes, define_block, random_parameters

SIZES = Sizes(hidden=64, heads=16, kv_heads=8, inner=128)
BATCH, SEQUENCE = 2, 8
TORCH = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16}


def rotary_tables(sizes: Sizes, length: int) -> list[torch.Tensor]:
    """Cosines and sines ``[s, width]`` of the angles of positions, for both halves alike."""
    half = sizes.hidden // sizes.heads // 2
    angles = torch.outer(torch.arange(length), 10000.0 ** -(torch.arange(half) / half))
    angles = torch.cat([angles, angles], 1)
    return [angles.cos(), angles.sin()]


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _attention(p: dict[str, torch.Tensor], x, sizes: Sizes, rotary) -> torch.Tensor:
    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, p[f"attention.{name}.weight"], p.get(f"attention.{name}.bias"))

    groups = sizes.kv_heads if rotary else sizes.heads
    shared = sizes.heads // groups
    parts = linear("qkv", x).unflatten(-1, (groups, shared + 2, -1)).permute(0, 2, 3, 1, 4)
    q, k, v = (t.flatten(1, 2) for t in parts.split([shared, 1, 1], 2))
    if rotary:
        q, k = _turn(q, *rotary), _turn(k, *rotary)
        k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return linear("out", out.transpose(1, 2).flatten(2))


def reference(p: dict[str, torch.Tensor], x, sizes: Sizes, rotary=None, masks=(1.0, 1.0)):
    """Return the block's result; ``rotary`` for the Llama flavour, ``masks`` of the dropouts."""

    def norm(i: int, x: torch.Tensor) -> torch.Tensor:
        weight, bias = p[f"norm{i}.weight"], p.get(f"norm{i}.bias")
        if rotary:
            return F.rms_norm(x, [sizes.hidden], weight, 1e-5)
        return F.layer_norm(x, [sizes.hidden], weight, bias, 1e-5)

    def mlp(x: torch.Tensor) -> torch.Tensor:
        if rotary:
            gate, up = F.linear(x, p["mlp.gate_up.weight"]).unflatten(-1, (-1, 2)).unbind(-1)
            return F.linear(F.silu(gate) * up, p["mlp.down.weight"])
        inner = F.gelu(F.linear(x, p["mlp.up.weight"], p["mlp.up.bias"]), approximate="tanh")
        return F.linear(inner, p["mlp.down.weight"], p["mlp.down.bias"])

    x = x + _attention(p, norm(1, x), sizes, rotary) * masks[0]
    return x + mlp(norm(2, x)) * masks[1]


def make(
    mesh: DeviceMesh | None, dtype: DataType, sizes: Sizes = SIZES, **options
) -> tuple[Block, list[torch.Tensor]]:
    """Return a block and global inputs for it."""
    block = define_block(sizes, mesh, dtype=dtype, **options)
    generator = torch.Generator().manual_seed(3)
    shape = (BATCH, SEQUENCE, sizes.hidden)
    inputs = [torch.randn(shape, generator=generator).to(TORCH[dtype])]
    if options.get("backward") or options.get("learning_rate") is not None:
        inputs.append(torch.randn(shape, generator=generator).to(TORCH[dtype]))
    if options.get("llama"):
        inputs += rotary_tables(sizes, SEQUENCE)
    return block, [*inputs, *random_parameters(block.model, generator, TORCH[dtype])]


def expected(
    block: Block,
    inputs: list[torch.Tensor],
    *,
    llama: bool,
    sizes: Sizes = SIZES,
    masks=(1, 1),
    dtype: torch.dtype = torch.float32,
) -> list[torch.Tensor]:
    """Return result and gradients of x and parameters, computed in ``dtype``, by autograd."""
    count = len(block.inputs)
    rotary = tuple(t.to(dtype) for t in inputs[2:4]) if llama else None
    values = [t.to(dtype).requires_grad_() for t in (inputs[0], *inputs[count:])]
    named = dict(zip(block.model.parameters, values[1:], strict=True))
    result = reference(named, values[0], sizes, rotary, masks)
    return [result.detach(), *torch.autograd.grad(result, values, inputs[1].to(dtype))]


def drop_masks(sizes: Sizes) -> list[torch.Tensor]:
    """Return what the block's dropouts multiply with: 0 or 1 / (1 - p), by one device."""
    masks = []
    for offset in (0, 1):
        with meshfuse.FusionDefinition() as fd:
            x = fd.define_tensor([BATCH, SEQUENCE, sizes.hidden])
            fd.add_output(fd.ops.dropout(x, sizes.dropout, rng_seed=sizes.seed, rng_offset=offset))
        masks += fd.execute([torch.ones(BATCH, SEQUENCE, sizes.hidden)])
    return masks
