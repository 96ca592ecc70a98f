# SPDX-License-Identifier: BSD-3-Clause
"""A transformer block, forward, backward and one step of training, on a mesh of devices.

    python examples/transformer.py                         one process
    mpirun -np 2 python examples/transformer.py            tensor parallel over two processes

Trains a GPT block for some steps on random data, and prints the loss.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

import meshfuse
from layers import Attention, Dropout, Layer, LayerNorm, Mlp, Model, RmsNorm, SwiGlu
from meshfuse import Communicator, DataType, DeviceMesh, FusionDefinition, ParallelType, TensorView


@dataclass(frozen=True)
class Sizes:
    """Sizes of a block."""

    hidden: int = 32
    heads: int = 4
    kv_heads: int = 4
    inner: int = 64
    dropout: float = 0.0
    seed: int = 7

    def check(self, *, llama: bool = False) -> None:
        """Raise ValueError for sizes of which no block can be made."""
        for name in ("hidden", "heads", "kv_heads", "inner"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}. Give 1 or more.")
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden, {self.hidden}, is not divisible by {self.heads} heads. Give a multiple."
            )
        width = self.hidden // self.heads
        if llama and self.heads % self.kv_heads:
            raise ValueError(
                f"heads, {self.heads}, is not divisible by kv_heads, {self.kv_heads}. Every "
                "key and value serves as many queries: give a divisor of heads."
            )
        if llama and width % 2:
            raise ValueError(
                f"A head has {width} elements ({self.hidden} / {self.heads}), and the rotary "
                "embedding turns pairs of them. Give an even number."
            )


class GptBlock:
    """``h = x + attention(norm(x))``, ``h + mlp(norm(h))`` with layer norm, biases and dropout."""

    def __init__(self, model: Model, sizes: Sizes) -> None:
        """Define the parameters."""
        self.model = model
        self.norms: list[Layer] = [LayerNorm(model, f"norm{i}", sizes.hidden) for i in (1, 2)]
        self.parts: list[Layer] = [
            Attention(model, "attention", sizes.hidden, sizes.heads),
            Mlp(model, "mlp", sizes.hidden, sizes.inner),
        ]
        self.drops = [Dropout(model, sizes.dropout, sizes.seed, offset) for offset in (0, 1)]

    def forward(self, x: TensorView) -> TensorView:
        """Map ``[b, s, hidden]`` to ``[b, s, hidden]``."""
        ops, cast = self.model.fd.ops, self.model.cast
        for norm, part, drop in zip(self.norms, self.parts, self.drops, strict=True):
            x = cast(ops.add(x, drop.forward(part.forward(norm.forward(x)))))
        return x

    def backward(self, gradient: TensorView) -> TensorView:
        """Return the gradient of the operand."""
        ops, cast = self.model.fd.ops, self.model.cast
        for norm, part, drop in zip(
            self.norms[::-1], self.parts[::-1], self.drops[::-1], strict=True
        ):
            inside = norm.backward(part.backward(cast(drop.backward(gradient))))
            gradient = cast(ops.add(gradient, inside))
        return gradient


class LlamaBlock(GptBlock):
    """RMS norm, rotary embedding, grouped-query attention and SwiGLU, without biases."""

    def __init__(self, model: Model, sizes: Sizes, cos: TensorView, sin: TensorView) -> None:
        """Define the parameters; cos and sin are ``[s, hidden / heads]``."""
        self.model = model
        self.norms = [RmsNorm(model, f"norm{i}", sizes.hidden) for i in (1, 2)]
        self.parts = [
            Attention(
                *(model, "attention", sizes.hidden, sizes.heads, sizes.kv_heads),
                bias=False,
                rotary=(cos, sin),
            ),
            SwiGlu(model, "mlp", sizes.hidden, sizes.inner),
        ]
        self.drops = [Dropout(model, sizes.dropout, sizes.seed, offset) for offset in (0, 1)]


@dataclass
class Block:
    """A definition of a block: inputs are x, the targets or gradients, cos and sin, parameters."""

    fd: FusionDefinition
    model: Model
    inputs: list[TensorView]  # before the parameters


def define_block(
    sizes: Sizes,
    mesh: DeviceMesh | None = None,
    *,
    llama: bool = False,
    dtype: DataType = DataType.Float,
    backward: bool = False,
    learning_rate: float | None = None,
    sequence_parallel: bool = False,
    data_parallel: bool = False,
) -> Block:
    """Define a block.

    Args:
        sizes: Its sizes; batch and sequence are known only when it runs.
        mesh: Where it runs: a mesh of rank 1, or of rank 2 (data, tensor).
        llama: The Llama flavour instead of GPT's.
        dtype: Of all tensors.
        backward: Outputs are the result, the gradient of x, and those of all parameters, for a
            given gradient of the result.
        learning_rate: Outputs are the loss, the mean of the squared differences from given targets,
            and the parameters take a step of SGD in place.
        sequence_parallel: x and the result are divided over the sequence, between the parts of the
            block too.
        data_parallel: x is divided over the batch, by the first axis of the mesh.

    Raises:
        ValueError: no block can be made of the sizes.
    """
    sizes.check(llama=llama)
    with FusionDefinition() as fd:
        model = Model(fd, mesh, dtype)
        x = fd.define_tensor([-1, -1, sizes.hidden], contiguity=True, dtype=dtype)
        inputs = [x]
        if backward or learning_rate is not None:
            inputs.append(fd.define_tensor([-1, -1, sizes.hidden], contiguity=True, dtype=dtype))
        if llama:
            width = sizes.hidden // sizes.heads
            cos, sin = (fd.define_tensor([-1, width], contiguity=True) for _ in range(2))
            block: GptBlock = LlamaBlock(model, sizes, cos, sin)
        else:
            block = GptBlock(model, sizes)
        for tensor in inputs:
            if data_parallel:
                model.shard(tensor, 0, ParallelType.mesh_y)
            if sequence_parallel:
                model.shard(tensor, 2 if data_parallel else 1)
        if llama:
            inputs += [cos, sin]
        result = block.forward(x)
        if learning_rate is not None:
            _training_step(block, result, inputs[1], learning_rate)
        else:
            fd.add_output(result)
            if backward:
                fd.add_output(block.backward(inputs[1]))
                for parameter in model.parameters.values():
                    fd.add_output(parameter.gradient)
    return Block(fd, model, inputs)


def _training_step(block: GptBlock, result: TensorView, target: TensorView, rate: float) -> None:
    """Add loss, gradients and the update of the parameters."""
    fd, model = block.model.fd, block.model
    ops = fd.ops
    difference = ops.sub(result, target)
    b, s, n = ops.shape(result)
    count = ops.cast(b * s * n, DataType.Double)
    fd.add_output(ops.div(ops.sum(ops.mul(difference, difference)), count))
    block.backward(model.cast(ops.div(ops.mul(difference, 2.0), count)))
    for parameter in model.parameters.values():
        step = ops.mul(parameter.gradient, rate)
        fd.add_output(model.cast(ops.sub(parameter.tensor, step)), parameter.tensor)


def random_parameters(
    model: Model, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Return global parameters: norms near one, the rest small."""
    values = []
    for name, parameter in model.parameters.items():
        value = 0.2 * torch.randn(parameter.shape, generator=generator)
        values.append(
            (value + 1 if name.endswith("weight") and "norm" in name else value).to(dtype)
        )
    return values


def train(steps: int, report: Callable[[int, float], None], sizes: Sizes | None = None) -> None:
    """Train a GPT block on the ranks of the launcher."""
    comm = Communicator.instance()
    mesh = DeviceMesh(range(comm.size()))
    block = define_block(sizes or Sizes(), mesh, learning_rate=0.1)
    generator = torch.Generator().manual_seed(0)
    x, target = (torch.randn(2, 8, 32, generator=generator) for _ in range(2))
    parameters = [
        meshfuse.multidevice.shard_tensor(value, parameter.tensor)
        if parameter.tensor.has_device_mesh()
        else value
        for value, parameter in zip(
            random_parameters(block.model, generator),
            block.model.parameters.values(),
            strict=True,
        )
    ]
    for step in range(steps):
        (loss,) = block.fd.execute([x, target, *parameters])  # the parameters change in place
        report(step, loss.item())


def main() -> int:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    def report(step: int, loss: float) -> None:
        if Communicator.instance().rank() == 0 and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step:4}  loss {loss:.6f}", flush=True)

    train(options.steps, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
