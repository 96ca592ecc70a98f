# SPDX-License-Identifier: BSD-3-Clause
"""Layers of transformers: each adds its operations, and those of its gradients, to a definition.

``forward`` keeps what ``backward`` needs; ``backward`` takes the gradient of the result, gives that
of the operand, and notes the gradients of the layer's parameters in the ``Model``. Only the weights
of the ``Linear`` layers say how they lie on the mesh; the rest follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType, TensorView


@dataclass
class Parameter:
    """A weight: its global shape, its tensor, and the gradient that was noted."""

    name: str
    shape: list[int]
    tensor: TensorView
    noted: TensorView | None = None

    @property
    def gradient(self) -> TensorView:
        """Its gradient, which ``backward`` of its layer notes."""
        assert self.noted is not None, f"no layer has noted the gradient of {self.name}"
        return self.noted


class Layer(Protocol):
    """What all layers of a block have."""

    def forward(self, x: TensorView) -> TensorView:
        """Add the operations of the layer; return its result."""

    def backward(self, gradient: TensorView) -> TensorView:
        """Add those of the gradients; return the gradient of the operand."""


@dataclass
class Model:
    """The definition that layers add to, the mesh, and the parameters in order of the inputs."""

    fd: FusionDefinition
    mesh: DeviceMesh | None = None
    dtype: DataType = DataType.Float
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def parameter(self, name: str, shape: list[int], split: int | None = None) -> TensorView:
        """Define a weight, axis ``split`` of it divided over the mesh axis ``mesh_x``."""
        tensor = self.fd.define_tensor(shape, contiguity=True, dtype=self.dtype)
        if split is not None:
            self.shard(tensor, split)
        self.parameters[name] = Parameter(name, shape, tensor)
        return tensor

    def shard(
        self, tensor: TensorView, axis: int, mesh_axis: ParallelType = ParallelType.mesh_x
    ) -> None:
        """Divide one axis of a tensor over a mesh axis, if there is a mesh."""
        if self.mesh is None:
            return
        place = self.mesh.rank - 1 - [ParallelType.mesh_x, ParallelType.mesh_y].index(mesh_axis)
        tensor.set_device_mesh(self.mesh)
        tensor.outer_split(axis, self.mesh.shape[place])
        tensor.axis(axis).parallelize(mesh_axis)

    def note(self, name: str, gradient: TensorView) -> None:
        """Note the gradient of a parameter."""
        self.parameters[name].noted = self.cast(gradient)

    def cast(self, x: TensorView) -> TensorView:
        """Return ``x`` in the data type of the model: arithmetic on 16-bit floats gives Float."""
        return x if x.dtype() == self.dtype else self.fd.ops.cast(x, self.dtype)


class Linear:
    """``x @ weight.T + bias``; ``split`` 0 divides the columns of the result, 1 the sum."""

    def __init__(
        self, model: Model, name: str, inner: int, outer: int, split: int, bias: bool = True
    ) -> None:
        """Define weight ``[outer, inner]`` and bias ``[outer]``."""
        self.model, self.name = model, name
        self.weight = model.parameter(f"{name}.weight", [outer, inner], split)
        self.has_bias = bias
        if bias:
            self.bias = model.parameter(f"{name}.bias", [outer], 0 if split == 0 else None)

    def forward(self, x: TensorView) -> TensorView:
        """Map ``[b, s, inner]`` to ``[b, s, outer]``."""
        self.x = x
        bias = [self.bias] if self.has_bias else []
        return self.model.fd.ops.linear(x, self.weight, *bias)

    def backward(self, gradient: TensorView) -> TensorView:
        """Return the gradient of the operand."""
        ops, model = self.model.fd.ops, self.model
        gradient = model.cast(gradient)
        # Rows of all batches together: [outer, b * s] @ [b * s, inner].
        rows = ops.reshape(gradient, [-1, ops.size(gradient, 2)])
        inputs = ops.reshape(self.x, [-1, ops.size(self.x, 2)])
        model.note(f"{self.name}.weight", ops.matmul(ops.permute(rows, [1, 0]), inputs))
        if self.has_bias:
            wide = ops.cast(gradient, DataType.Float)
            model.note(f"{self.name}.bias", ops.sum(wide, [0, 1]))
        return ops.matmul(gradient, self.weight)


class LayerNorm:
    """Layer norm over the last axis, with weight and bias."""

    def __init__(self, model: Model, name: str, size: int, eps: float = 1e-5) -> None:
        """Define weight and bias ``[size]``."""
        self.model, self.name, self.size, self.eps = model, name, size, eps
        self.weight = model.parameter(f"{name}.weight", [size])
        self.bias = model.parameter(f"{name}.bias", [size])

    def forward(self, x: TensorView) -> TensorView:
        """Normalise ``[b, s, size]``."""
        self.x = x
        return self.model.fd.ops.layer_norm(x, [self.size], self.weight, self.bias, self.eps)

    def backward(self, gradient: TensorView) -> TensorView:
        """Return the gradient of the operand."""
        ops = self.model.fd.ops
        x = ops.cast(self.x, DataType.Float)
        gradient = ops.cast(gradient, DataType.Float)
        variance, mean = ops.var_mean(x, [2], 0, True)
        scale = ops.rsqrt(ops.add(variance, self.eps))
        normal = ops.mul(ops.sub(x, mean), scale)
        self.model.note(f"{self.name}.weight", ops.sum(ops.mul(gradient, normal), [0, 1]))
        self.model.note(f"{self.name}.bias", ops.sum(gradient, [0, 1]))
        inner = ops.mul(gradient, self.weight)
        mean_of = ops.div(ops.sum(inner, [2], True), float(self.size))
        along = ops.div(ops.sum(ops.mul(inner, normal), [2], True), float(self.size))
        result: TensorView = ops.mul(
            ops.sub(ops.sub(inner, mean_of), ops.mul(normal, along)), scale
        )
        return result


class RmsNorm:
    """RMS norm over the last axis, with weight."""

    def __init__(self, model: Model, name: str, size: int, eps: float = 1e-5) -> None:
        """Define the weight ``[size]``."""
        self.model, self.name, self.size, self.eps = model, name, size, eps
        self.weight = model.parameter(f"{name}.weight", [size])

    def forward(self, x: TensorView) -> TensorView:
        """Normalise ``[b, s, size]``."""
        self.x = x
        return self.model.fd.ops.rms_norm(x, [self.size], self.weight, self.eps)

    def backward(self, gradient: TensorView) -> TensorView:
        """Return the gradient of the operand."""
        ops = self.model.fd.ops
        x = ops.cast(self.x, DataType.Float)
        gradient = ops.cast(gradient, DataType.Float)
        square = ops.div(ops.sum(ops.mul(x, x), [2], True), float(self.size))
        scale = ops.rsqrt(ops.add(square, self.eps))
        normal = ops.mul(x, scale)
        self.model.note(f"{self.name}.weight", ops.sum(ops.mul(gradient, normal), [0, 1]))
        inner = ops.mul(gradient, self.weight)
        along = ops.div(ops.sum(ops.mul(inner, normal), [2], True), float(self.size))
        result: TensorView = ops.mul(ops.sub(inner, ops.mul(normal, along)), scale)
        return result


class Dropout:
    """Dropout by counters: the same elements for every mesh, in forward and backward."""

    def __init__(self, model: Model, p: float, seed: int, offset: int) -> None:
        """Drop with probability ``p``."""
        self.model, self.p, self.seed, self.offset = model, p, seed, offset

    def forward(self, x: TensorView) -> TensorView:
        """Drop elements of ``x`` and scale the rest by ``1 / (1 - p)``."""
        if self.p == 0:
            return x
        ops = self.model.fd.ops
        return ops.dropout(x, self.p, rng_seed=self.seed, rng_offset=self.offset)

    backward = forward  # the gradients of the elements that stayed, scaled alike


class Attention:
    """Causal self-attention; heads are divided over the mesh with the rows of the weights.

    One product gives queries, keys and values. Its columns are ``kv_heads`` groups, each of the
    queries that share a key and a value, then that key, then that value; so a device that has some
    groups has all that their heads need. ``rotary``: tensors cos and sin ``[s, size of a head]``,
    which turn queries and keys by their positions.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        size: int,
        heads: int,
        kv_heads: int | None = None,
        bias: bool = True,
        rotary: tuple[TensorView, TensorView] | None = None,
    ) -> None:
        """Define the weights of queries, keys and values, and of the projection."""
        self.model, self.heads, self.groups = model, heads, kv_heads or heads
        self.width, self.shared, self.rotary = size // heads, heads // (kv_heads or heads), rotary
        columns = self.groups * (self.shared + 2) * self.width
        self.qkv = Linear(model, f"{name}.qkv", size, columns, 0, bias)
        self.out = Linear(model, f"{name}.out", size, size, 1, bias)

    def forward(self, x: TensorView) -> TensorView:
        """Map ``[b, s, size]`` to ``[b, s, size]``."""
        ops = self.model.fd.ops
        b, s, _ = ops.shape(x)
        parts = ops.reshape(self.qkv.forward(x), [b, s, self.groups, self.shared + 2, self.width])
        parts = ops.permute(parts, [0, 2, 3, 1, 4])  # [b, groups, shared + 2, s, width]
        query, key, value = (
            ops.slice(parts, [0, 0, first, 0, 0], [b, self.groups, last, s, self.width])
            for first, last in self._ranges()
        )
        self.q = self._turn(self._heads(query))
        self.k, self.v = self._turn(self._heads(key)), self._heads(value)
        self.result, self.lse, self.seed, self.offset = ops.sdpfa_fwd(
            self.q, self.k, self.v, dropout_p=0.0, is_causal=True
        )
        together = ops.permute(self.result, [0, 2, 1, 3])
        return self.out.forward(ops.reshape(together, [b, s, self.heads * self.width]))

    def backward(self, gradient: TensorView) -> TensorView:
        """Return the gradient of the operand."""
        ops = self.model.fd.ops
        b, s, _ = ops.shape(gradient)
        gradient = ops.reshape(self.out.backward(gradient), [b, s, self.heads, self.width])
        dq, dk, dv = ops.sdpfa_bwd(
            *(ops.permute(gradient, [0, 2, 1, 3]), self.q, self.k, self.v, self.result, self.lse),
            *(0.0, True, self.seed, self.offset),
        )
        dq, dk = self._turn_back(dq), self._turn_back(dk)
        parts = ops.cat([self._apart(dq), self._shared(dk), self._shared(dv)], 2)
        parts = ops.permute(parts, [0, 3, 1, 2, 4])  # [b, s, groups, shared + 2, width]
        return self.qkv.backward(
            ops.reshape(parts, [b, s, self.groups * (self.shared + 2) * self.width])
        )

    def _ranges(self) -> list[tuple[int, int]]:
        shared = self.shared
        return [(0, shared), (shared, shared + 1), (shared + 1, shared + 2)]

    def _heads(self, x: TensorView) -> TensorView:
        """``[b, groups, n, s, width]`` to ``[b, heads, s, width]``, keys and values repeated."""
        ops = self.model.fd.ops
        b, groups, _, s, width = ops.shape(x)
        x = ops.expand(x, [b, groups, self.shared, s, width])
        return ops.reshape(x, [b, self.heads, s, width])

    def _apart(self, x: TensorView) -> TensorView:
        """``[b, heads, s, width]`` to ``[b, groups, shared, s, width]``."""
        ops = self.model.fd.ops
        b, _, s, width = ops.shape(x)
        return ops.reshape(x, [b, self.groups, self.shared, s, width])

    def _shared(self, gradient: TensorView) -> TensorView:
        """The sum of the gradients of all uses of a key or value."""
        ops = self.model.fd.ops
        apart = ops.cast(self._apart(gradient), DataType.Float)
        return self.model.cast(ops.sum(apart, [2], True))

    def _turn(self, x: TensorView) -> TensorView:
        """Rotary embedding: pairs (i, i + width / 2) are turned by the angle of their position."""
        if self.rotary is None:
            return x
        ops, (cos, sin) = self.model.fd.ops, self.rotary
        first, second = self._halves(x)
        turned = ops.cat([ops.neg(second), ops.cast(first, DataType.Float)], -1)
        return self.model.cast(ops.add(ops.mul(x, cos), ops.mul(turned, sin)))

    def _turn_back(self, gradient: TensorView) -> TensorView:
        if self.rotary is None:
            return gradient
        ops, (cos, sin) = self.model.fd.ops, self.rotary
        first, second = self._halves(ops.mul(gradient, sin))
        turned = ops.cat([second, ops.neg(first)], -1)
        return self.model.cast(ops.add(ops.mul(gradient, cos), turned))

    def _halves(self, x: TensorView) -> tuple[TensorView, TensorView]:
        ops, half = self.model.fd.ops, self.width // 2
        b, heads, s, _ = ops.shape(x)
        first = ops.slice(x, [0, 0, 0, 0], [b, heads, s, half])
        return first, ops.slice(x, [0, 0, 0, half], [b, heads, s, self.width])


class Mlp:
    """``down(gelu(up(x)))``."""

    def __init__(self, model: Model, name: str, size: int, inner: int) -> None:
        """Define the weights."""
        self.model = model
        self.up = Linear(model, f"{name}.up", size, inner, 0)
        self.down = Linear(model, f"{name}.down", inner, size, 1)

    def forward(self, x: TensorView) -> TensorView:
        """Map ``[b, s, size]`` to ``[b, s, size]``."""
        self.h = self.up.forward(x)
        return self.down.forward(self.model.fd.ops.gelu(self.h, approximate="tanh"))

    def backward(self, gradient: TensorView) -> TensorView:
        """Return the gradient of the operand."""
        ops = self.model.fd.ops
        x = ops.cast(self.h, DataType.Float)
        a, c = 0.7978845608028654, 0.044715  # sqrt(2 / pi), and that of the tanh form
        t = ops.tanh(ops.mul(a, ops.add(x, ops.mul(c, ops.mul(x, ops.mul(x, x))))))
        slope = ops.mul(ops.add(1.0, ops.mul(3 * c, ops.mul(x, x))), a)
        inside = ops.mul(ops.mul(ops.sub(1.0, ops.mul(t, t)), slope), x)
        local = ops.mul(ops.add(ops.add(t, 1.0), inside), 0.5)
        return self.up.backward(ops.mul(self.down.backward(gradient), local))


class SwiGlu:
    """``down(silu(gate(x)) * up(x))``, without biases; the columns of gate and up alternate."""

    def __init__(self, model: Model, name: str, size: int, inner: int) -> None:
        """Define the weights."""
        self.model, self.inner = model, inner
        self.both = Linear(model, f"{name}.gate_up", size, 2 * inner, 0, bias=False)
        self.down = Linear(model, f"{name}.down", inner, size, 1, bias=False)

    def forward(self, x: TensorView) -> TensorView:
        """Map ``[b, s, size]`` to ``[b, s, size]``."""
        ops = self.model.fd.ops
        b, s, _ = ops.shape(x)
        both = ops.reshape(self.both.forward(x), [b, s, self.inner, 2])
        self.gate, self.up = (
            ops.squeeze(ops.slice(both, [0, 0, 0, k], [b, s, self.inner, k + 1]), [3])
            for k in range(2)
        )
        return self.down.forward(self.model.cast(ops.mul(ops.silu(self.gate), self.up)))

    def backward(self, gradient: TensorView) -> TensorView:
        """Return the gradient of the operand."""
        ops = self.model.fd.ops
        b, s, _ = ops.shape(gradient)
        gradient = self.down.backward(gradient)
        gate = ops.cast(self.gate, DataType.Float)
        sigmoid = ops.sigmoid(gate)
        slope = ops.mul(sigmoid, ops.add(1.0, ops.mul(gate, ops.sub(1.0, sigmoid))))
        of_gate = ops.mul(ops.mul(gradient, self.up), slope)
        of_up = ops.mul(gradient, ops.mul(gate, sigmoid))
        both = [ops.broadcast(part, [False, False, False, True]) for part in (of_gate, of_up)]
        return self.both.backward(ops.reshape(ops.cat(both, 3), [b, s, 2 * self.inner]))
