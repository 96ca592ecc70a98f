# SPDX-License-Identifier: BSD-3-Clause
"""Arguments for every registered op, and what torch makes of them.

Every axis that may be divided has a size that 2, 3 and 4 divide. A new op needs an entry in
``OTHERS``, unless it is elementwise and torch has it under the same name (or under the name that
``TORCH_NAMES`` gives): ``test_every_op_has_an_example`` fails otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from programs import dtype_of, ramp

import meshfuse
from meshfuse import DataType

OPERAND = "TensorView | Scalar | complex"
REGISTERED = {op["name"]: op for op in meshfuse._C.registered_ops()}
N = 12


@dataclass(frozen=True)
class Example:
    """One call of an op: tensors first, then attributes by keyword."""

    op: str
    tensors: tuple[torch.Tensor, ...]
    compute: Callable[..., Any]  # of the tensors, by torch
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    as_list: bool = False  # the op takes its tensors in one list

    keywords: tuple[str, ...] = ()  # of the last tensors, where attributes stand before them

    def call(self, ops: Any, operands: Sequence[Any]) -> list[Any]:
        """Add the op to the definition of ``ops``; return its results."""
        count = len(operands) - len(self.keywords)
        named = dict(zip(self.keywords, operands[count:], strict=True))
        first = [list(operands)] if self.as_list else operands[:count]
        result = getattr(ops, self.op)(*first, **named, **self.attributes)
        return list(result) if isinstance(result, tuple | list) else [result]

    @property
    def label(self) -> str:
        return f"{self.op}-{self.name}" if self.name else self.op

    def expected(self) -> list[torch.Tensor]:
        results = self.compute(*self.tensors)
        return list(results) if isinstance(results, tuple | list) else [results]


def values(*shape: int) -> torch.Tensor:
    """Multiples of a quarter between -1.5 and 1.5, halves among them."""
    return ramp(*shape) / 2 + 0.25 * (ramp(*shape).flip(0) > 1)


def _erfcinv(x: torch.Tensor) -> torch.Tensor:
    return torch.erfinv(1 - x.double()).to(x.dtype)


def _logical_right_shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    shifted = a >> b
    return torch.where(b == 0, shifted, shifted & (torch.iinfo(a.dtype).max >> (b - 1)))


# Elementwise ops that torch has under another name.
TORCH_NAMES: dict[str, Callable[..., torch.Tensor]] = {
    "set": torch.clone,
    "segment_set": torch.clone,
    "silu": torch.nn.functional.silu,
    "truediv": torch.true_divide,
    "div": torch.div,
    "mod": torch.remainder,
    "erfcinv": _erfcinv,
    "logical_right_shift": _logical_right_shift,
}
# Elementwise ops of integers; and those whose second operand counts bits.
SHIFTS = {"bitwise_left_shift", "bitwise_right_shift", "logical_right_shift"}
INTEGERS = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "gcd", *SHIFTS}


def operand(op: str, *shape: int, second: bool = False) -> torch.Tensor:
    """Return values that the op takes."""
    x = values(*shape)
    if op not in INTEGERS:
        return x
    x = (4 * x).long()
    return x.abs() if second and op in SHIFTS else x


def ones(op: str) -> list[Example]:
    return [Example(op, (operand(op, N, N),), TORCH_NAMES.get(op) or getattr(torch, op))]


def pairs(op: str) -> list[Example]:
    compute = TORCH_NAMES.get(op) or getattr(torch, op)
    first, other = operand(op, N, N), operand(op, N, N, second=True)
    return [
        Example(op, (first, other.t().contiguous()), compute),
        Example(op, (first, operand(op, N, second=True)), compute, name="fewer_axes"),
        Example(op, (operand(op, N, 1), other), compute, name="broadcast"),
    ]


def _prod(x: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim, keepdim=keepdim)
    return x


def _reduction(op: str, compute: Callable[..., torch.Tensor]) -> list[Example]:
    def example(dims: list[int] | None, keepdim: bool, *shape: int) -> Example:
        axes = list(range(len(shape))) if dims is None else dims
        name = "all" if dims is None else "_".join(map(str, dims))
        return Example(
            op,
            (values(*shape) if op != "prod" else values(*shape).sign() + (values(*shape) == 0),),
            lambda x: compute(x, axes, keepdim),
            {"dims": dims, "keepdim": keepdim},
            name + ("_keepdim" if keepdim else ""),
        )

    return [
        example([0], False, N, N),
        example([1], False, N, N),
        example(None, False, N, N),
        example([0], True, N, N),
        example([0, 2], False, N, 6, N),
    ]


def _scan(op: str) -> list[Example]:
    def compute(x: torch.Tensor) -> torch.Tensor:
        out = getattr(torch, op)(x, 1)
        return out if isinstance(out, torch.Tensor) else out.values

    combine = {"cumsum": torch.add, "cumprod": torch.mul}.get(op)
    examples = [Example(op, (values(N, N),), compute, {"dim": 1})]
    if combine is not None:
        examples.append(
            Example(
                op,
                (values(N, N, 6),),
                lambda x: combine(compute(x), 2),
                {"dim": 1, "init": 2},
                "init",
            )
        )
    return examples


def _matmul(a: tuple[int, ...], b: tuple[int, ...]) -> Example:
    name = f"{len(a)}d_{len(b)}d" + ("_broadcast" if 1 in (*a, *b) else "")
    return Example("matmul", (ramp(*a), ramp(*b)), torch.matmul, name=name)


def _reshape(name: str, shape: tuple[int, ...], new: list[int]) -> Example:
    return Example("reshape", (values(*shape),), lambda x: x.reshape(new), {"new_shape": new}, name)


def _cat(dim: int, *shapes: tuple[int, ...]) -> Example:
    tensors = tuple(values(*shape) for shape in shapes)
    name = f"{len(shapes)}_along_{dim}"
    return Example("cat", tensors, lambda *t: torch.cat(t, dim), {"dim": dim}, name, as_list=True)


def _pad(name: str, widths: list[int], value: float | None = None) -> Example:
    def compute(x):
        return torch.nn.functional.pad(x, widths, value=value)

    return Example("pad", (values(N, N),), compute, {"pad_widths": widths, "value": value}, name)


SHAPES: dict[str, list[Example]] = {
    "reshape": [
        _reshape("split", (N, N), [N, 4, 3]),
        _reshape("split_rows", (N, N), [4, 3, N]),
        _reshape("merge", (4, 3, N), [N, N]),
        _reshape("merge_all", (4, 6, 2), [-1]),
        _reshape("merge_and_split", (2, 6, N), [N, 4, -1]),
        _reshape("regroup", (6, 4), [4, 6]),
        _reshape("ones", (N, 1, N), [1, N, N, 1]),
    ],
    "squeeze": [
        Example("squeeze", (values(N, 1, N),), lambda x: x.squeeze(1), {"dims": [1]}),
        Example("squeeze", (values(1, N, 1),), torch.squeeze, {"dims": [0, -1]}, "both"),
    ],
    "expand": [
        Example("expand", (values(N, 1, 1),), lambda x: x.expand(-1, 6, 1), {"shape": [-1, 6, 1]}),
        Example("expand", (values(N, 1),), lambda x: x.expand(4, N, 6), {"shape": [4, N, 6]}, "up"),
    ],
    "broadcast_in_dim": [
        Example(
            "broadcast_in_dim",
            (values(N),),
            lambda x: x.unsqueeze(1).expand(N, 6),
            {"shape": [N, 6], "broadcast_dims": [0]},
        ),
        Example(
            "broadcast_in_dim",
            (values(6, N),),
            lambda x: x.t().unsqueeze(1).expand(N, 4, 6),
            {"shape": [N, 4, 6], "broadcast_dims": [2, 0]},
            "permuted",
        ),
    ],
    "slice": [
        Example(
            "slice",
            (values(N, N),),
            lambda x: x[:, 2:8],
            {"start_indices": [0, 2], "end_indices": [N, 8]},
            "one_axis",
        ),
        Example(
            "slice",
            (values(N, N),),
            lambda x: x[3:4, 8:],
            {"start_indices": [3, 8], "end_indices": [4, 100]},
            "both_axes",
        ),
    ],
    "cat": [
        _cat(0, (N, N), (6, N)),
        _cat(-1, (N, 4), (N, N), (N, 1)),
        _cat(0, (N,)),
    ],
    "pad": [
        _pad("last", [1, 2], 0.5),
        _pad("both", [0, 0, 3, -2]),
    ],
}


def alone(op: str, *tensors: torch.Tensor, **attributes: Any) -> Any:
    """Return the results of an op on one device, for ops that torch computes otherwise."""
    with meshfuse.FusionDefinition() as fd:
        operands = [fd.define_tensor(list(x.shape), dtype=dtype_of(x)) for x in tensors]
        result = getattr(fd.ops, op)(*operands, **attributes)
        for tv in result if isinstance(result, tuple | list) else [result]:
            fd.add_output(tv)
    with meshfuse.simulate(1) as sim:  # others may be simulated around it
        return sim.run(fd, tensors)


def _random(op: str, *tensors: torch.Tensor, name: str = "", **attributes: Any) -> Example:
    """Return a random op with a seed; every sharding gives what one device gives."""
    attributes |= {"rng_seed": 2_722_423_872_872_113, "rng_offset": 7}

    def compute(*tensors):
        return alone(op, *tensors, **attributes)

    return Example(op, tensors, compute, attributes, name)


def _var(op: str, dims: list[int], **options: Any) -> Example:
    def compute(x):
        return getattr(torch, op)(x, dims, **options)

    name = "_".join(map(str, [*dims, *options]))
    return Example(op, (values(N, 6, N),), compute, {"dims": dims, **options}, name)


def _welford(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    var, mean = torch.var_mean(x, [0, 2], correction=0)
    n = x.shape[0] * x.shape[2]
    return mean, var * n, torch.full_like(mean, n, dtype=torch.int64)


def _norm(op: str, shape: list[int], parameters: int) -> Example:
    compute = getattr(torch.nn.functional, op)
    tensors = (values(N, 6, N), *(values(*shape) + k for k in range(parameters)))
    names = ["weight", "bias"][:parameters]

    def run(x, *tensors):
        return compute(x, shape, *tensors)

    name = "_".join([str(len(shape)), *names])
    return Example(op, tensors, run, {"normalized_shape": shape}, name, keywords=tuple(names))


def indices(*shape: int, below: int = N) -> torch.Tensor:
    """Int indices; each comes once along every axis of at most ``below`` elements."""
    total = sum(torch.meshgrid(*map(torch.arange, shape), indexing="ij"))
    return (total * 5 + 2) % below


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def attention(query, key, value, addend=None):
    """What sdpfa_fwd gives, on a CPU, without dropout and not causal."""
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    if addend is not None:
        scores = scores + addend
    seeds = (torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64))
    return (scores.softmax(-1) @ value, scores.logsumexp(-1), *seeds)


def masked_attention(query, key, value, mask):
    return attention(query, key, value, torch.zeros(mask.shape).masked_fill(~mask, -torch.inf))


def causal_attention(query, key, value):
    mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
    return masked_attention(query, key, value, mask)


def attention_gradients(grad, query, key, value, output, logsumexp):
    operands = [t.detach().requires_grad_() for t in (query, key, value)]
    return torch.autograd.grad(attention(*operands)[0], operands, grad)


def _attention_gradients() -> Example:
    qkv = [normal(N, N, 6, 8), normal(N, N, 12, 8) / 2, normal(N, N, 12, 8) / 4]
    saved = attention(*qkv)[:2]
    tensors = (normal(N, N, 6, 8) / 8, *qkv, *saved)
    attributes = {"dropout_p": 0.0, "is_causal": False}
    return Example("sdpfa_bwd", tensors, attention_gradients, attributes)


def grouped_product(mat1, mat2, offsets):
    """One product per group, whichever axis the groups cut."""
    ends = offsets.tolist()
    parts = list(zip([0, *ends[:-1]], ends, strict=True))
    if mat1.dim() == 3:
        return torch.cat([mat1[g] @ mat2[:, i:j] for g, (i, j) in enumerate(parts)], 1)
    if mat2.dim() == 3:
        return torch.cat([mat1[i:j] @ mat2[g] for g, (i, j) in enumerate(parts)])
    return torch.stack([mat1[:, i:j] @ mat2[i:j] for i, j in parts])


def _grouped(a: tuple[int, ...], b: tuple[int, ...]) -> Example:
    offsets = torch.arange(1, N + 1, dtype=torch.int32)
    offsets[3] = 3  # one group is empty, the next has two
    return Example(
        "grouped_mm", (ramp(*a), ramp(*b), offsets), grouped_product, name=f"{len(a)}d_{len(b)}d"
    )


def _batch_norm(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    var, mean = torch.var_mean(x, [0, 2], correction=0)
    out = torch.nn.functional.batch_norm(x, None, None, weight, None, True, 0.1, 1e-5)
    return out, mean, (var + 1e-5).rsqrt()


OTHERS: dict[str, list[Example]] = {
    "batch_norm": [
        Example(
            "batch_norm",
            (values(6, N, 4), values(N)),
            _batch_norm,
            {"momentum": 0.1, "eps": 1e-5, "training": True},
        )
    ],
    "argsort": [
        Example(
            "argsort",
            (normal(N, N),),
            lambda x: torch.argsort(x, 0, True),
            {"dim": 0, "descending": True},
        )
    ],
    "embedding_fwd": [
        Example("embedding_fwd", (indices(N, 6), values(N, N)), torch.nn.functional.embedding)
    ],
    "gather": [
        Example("gather", (values(N, N), indices(N, 6)), lambda x, i: x.gather(1, i), {"dim": 1}),
        Example(
            "gather",
            (values(N, N), indices(6, N)),
            lambda x, i: x.gather(1, i),
            {"dim": 1},
            "smaller_index",
        ),
    ],
    "grouped_mm": [
        _grouped((N, N), (N, N, N)),
        _grouped((N, N), (N, N)),
        _grouped((N, N, N), (N, N)),
    ],
    "index_select": [
        Example(
            "index_select",
            (values(N, N), indices(6)),
            lambda x, i: x.index_select(1, i),
            {"dim": 1},
        ),
        Example(
            "index_select",
            (values(N, N), torch.tensor(3)),
            lambda x, i: x.index_select(0, i),
            {"dim": 0},
            "scalar_index",
        ),
    ],
    "scatter": [
        Example(
            "scatter",
            (values(N, N), indices(N, 6), normal(N, 6)),
            lambda x, i, s: x.scatter(1, i, s),
            {"dim": 1},
            "whole_columns",
        ),
        Example(
            "scatter",
            (values(N, N), indices(6, 6), normal(N, N)),
            lambda x, i, s: x.scatter(0, i, s),
            {"dim": 0},
        ),
        Example(
            "scatter",
            (values(N, N), indices(N, 6)),
            lambda x, i: x.scatter(1, i, 2.5),
            {"dim": 1, "src": 2.5},
            "number",
        ),
    ],
    "sdpfa_fwd": [
        Example(
            "sdpfa_fwd", (normal(N, N, 6, 8), normal(N, N, N, 8), normal(N, N, N, 8)), attention
        ),
        Example(
            "sdpfa_fwd",
            (normal(6, 6, N, 8), normal(6, 6, N, 8), normal(6, 6, N, 12)),
            causal_attention,
            {"is_causal": True},
            "causal",
        ),
        Example(
            "sdpfa_fwd",
            (*(normal(2, 6, 6, N, 8) for _ in range(3)), normal(2, 1, 6, N, N)),
            attention,
            name="5d_bias",
        ),
        Example(
            "sdpfa_fwd",
            tuple(normal(6, 6, N, 8) for _ in range(3)),
            lambda q, k, v: attention(q / 2, k, v),
            {"scale": 0.5 / 8**0.5},
            "scale",
        ),
    ],
    "sdpfa_bwd": [_attention_gradients()],
    "select": [Example("select", (values(N, 6, N),), lambda x: x[:, -2], {"index": -2, "dim": 1})],
    "take_along_axis": [
        Example(
            "take_along_axis",
            (values(N, N), indices(N, 6)),
            lambda x, i: torch.take_along_dim(x, i, 1),
            {"dim": 1},
        ),
        Example(
            "take_along_axis",
            (values(1, N, 6), indices(N, N, 1)),
            lambda x, i: torch.take_along_dim(x, i, 1),
            {"dim": 1},
            "broadcast",
        ),
    ],
    "topk": [
        Example(
            "topk",
            (normal(N, N),),
            lambda x: tuple(torch.topk(x, 6, 0)),
            {"k": 6, "dim": 0, "sorted": True},
        ),
        Example(
            "topk",
            (normal(N, N),),
            lambda x: tuple(torch.topk(x, 1, largest=False)),
            {"k": 1, "largest": False},
            "smallest",
        ),
    ],
    "broadcast": [
        Example(
            "broadcast",
            (values(N, N),),
            lambda x: x.unsqueeze(1),
            {"is_broadcast_dim": [False, True, False]},
        )
    ],
    "cast": [
        Example("cast", (ramp(N, N),), torch.Tensor.double, {"dtype": DataType.Double}, "double"),
        Example("cast", (ramp(N, N),), torch.Tensor.half, {"dtype": DataType.Half}, "half"),
        Example("cast", (values(N, N),), torch.Tensor.long, {"dtype": DataType.Int}, "int"),
    ],
    "dropout": [_random("dropout", values(N, N), p=0.3)],
    "full": [
        Example(
            "full",
            (),
            lambda: torch.full((N, 6), 1.5),
            {"shape": [N, 6], "fill_value": 1.5, "dtype": DataType.Float},
        )
    ],
    "gelu": [
        Example("gelu", (values(N, N),), torch.nn.functional.gelu),
        Example(
            "gelu",
            (values(N, N),),
            lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
            {"approximate": "tanh"},
            "tanh",
        ),
    ],
    "iota": [
        Example("iota", (), lambda: torch.arange(N), {"length": N}),
        Example(
            "iota",
            (),
            lambda: torch.arange(N) * 0.5 - 1,
            {"length": N, "start": -1.0, "step": 0.5, "dtype": DataType.Float},
            "float",
        ),
    ],
    "layer_norm": [
        _norm("layer_norm", [N], 0),
        _norm("layer_norm", [N], 2),
        _norm("layer_norm", [6, N], 1),
    ],
    "linear": [
        Example("linear", (ramp(N, N), ramp(N, N)), torch.nn.functional.linear),
        Example(
            "linear",
            (ramp(N, N, N), ramp(N, N), ramp(N)),
            torch.nn.functional.linear,
            name="bias",
        ),
    ],
    "matmul": [
        _matmul((N, N), (N, N)),
        _matmul((N,), (N,)),
        _matmul((N, N), (N,)),
        _matmul((N,), (N, N)),
        _matmul((N, N, N), (N, N)),
        _matmul((N, N, N), (N, N, N)),
        _matmul((1, N, N), (N, N, N)),
    ],
    "normal": [_random("normal", mean=1.0, std=2.0, shape=[N, 6])],
    "permute": [
        Example("permute", (values(N, 6, 12),), lambda x: x.permute(2, 0, 1), {"dims": [2, 0, 1]})
    ],
    "rand_like": [
        _random("rand_like", values(N, 6, N)),
        _random("rand_like", values(N, N).bfloat16(), name="bfloat16"),
    ],
    "randn_like": [_random("randn_like", values(N, N))],
    "rms_norm": [_norm("rms_norm", [N], 0), _norm("rms_norm", [6, N], 1)],
    "softmax": [
        Example("softmax", (values(N, N),), lambda x: x.softmax(1), {"dim": 1}),
        Example("softmax", (values(N, 6, N),), lambda x: x.softmax(0), {"dim": -3}, "first"),
    ],
    "stride_order": [
        Example("stride_order", (values(N, N),), torch.clone, {"stride_order": [0, 1]})
    ],
    "add_alpha": [
        Example(
            "add_alpha",
            (values(N, N), values(N)),
            lambda a, b: a + 2 * b,
            {"alpha": 2},
        )
    ],
    "addcmul": [
        Example(
            "addcmul",
            (values(N, N), values(N, 1), values(N)),
            lambda a, b, c: a + 2 * b * c,
            {"alpha": 2},
        )
    ],
    "clamp": [
        Example("clamp", (values(N, N),), lambda x: x.clamp(-1, 0.5), {"min": -1, "max": 0.5})
    ],
    "imag": [Example("imag", (torch.complex(values(N, N), values(N, N).t()),), torch.imag)],
    "lerp": [Example("lerp", (values(N, N), values(N), values(N, 1)), torch.lerp)],
    "max": _reduction("max", torch.amax),
    "min": _reduction("min", torch.amin),
    "prod": _reduction("prod", _prod),
    "sub_alpha": [
        Example("sub_alpha", (values(N, N), values(N)), lambda a, b: a - 2 * b, {"alpha": 2})
    ],
    "sum": _reduction("sum", torch.sum),
    "threshold": [
        Example(
            "threshold",
            (values(N, N),),
            lambda x: torch.nn.functional.threshold(x, 0.5, -3),
            {"threshold": 0.5, "value": -3},
        )
    ],
    "triu": [
        Example("triu", (values(N, N),), torch.triu),
        Example("triu", (values(6, N, N),), lambda x: x.triu(-1), {"diagonal": -1}, "batch"),
    ],
    "where": [Example("where", (values(N, N) > 0, values(N), values(N, 1)), torch.where)],
    **{op: _scan(op) for op in ("cumsum", "cumprod", "cummax", "cummin")},
    "uniform": [
        _random("uniform", minval=-1.0, maxval=3.0, shape=[N, 6]),
        _random(
            "uniform", minval=0.0, maxval=1.0, shape=[N, 6], dtype=DataType.Double, name="double"
        ),
    ],
    "var": [_var("var", [1]), _var("var", [0, 2], correction=0, keepdim=True)],
    "var_mean": [_var("var_mean", [2]), _var("var_mean", [0, 1], keepdim=True)],
    "welford": [Example("welford", (values(N, 6, N),), _welford, {"dims": [0, 2]})],
}


def examples_of(op: str) -> list[Example]:
    """Return the examples of a registered op.

    Raises:
        KeyError: there is none.
    """
    if found := OTHERS.get(op) or SHAPES.get(op):
        return found
    kinds = [kind for _, kind, *_ in REGISTERED[op]["params"]]
    make = {(OPERAND,): ones, (OPERAND, OPERAND): pairs}.get(tuple(kinds))
    if make is None or not (op in TORCH_NAMES or hasattr(torch, op)):
        raise KeyError(op)
    return make(op)
