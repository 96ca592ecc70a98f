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
from programs import ramp

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

    @property
    def label(self) -> str:
        return f"{self.op}-{self.name}" if self.name else self.op

    def call(self, ops: Any, tensors: Sequence[Any]) -> Any:
        """Call the op; ``ops`` is ``fd.ops`` or a namespace like it."""
        arguments = [list(tensors)] if self.as_list else tensors
        return getattr(ops, self.op)(*arguments, **self.attributes)

    def expected(self) -> list[torch.Tensor]:
        results = self.compute(*self.tensors)
        return list(results) if isinstance(results, tuple | list) else [results]


def values(*shape: int) -> torch.Tensor:
    """Multiples of a quarter between -1.5 and 1.5, halves among them."""
    return ramp(*shape) / 2 + 0.25 * (ramp(*shape).flip(0) > 1)


# Elementwise ops that torch has under another name.
TORCH_NAMES: dict[str, Callable[..., torch.Tensor]] = {
    "set": torch.clone,
    "segment_set": torch.clone,
    "silu": torch.nn.functional.silu,
    "truediv": torch.true_divide,
    "div": torch.div,
    "mod": torch.remainder,
}


def ones(op: str) -> list[Example]:
    return [Example(op, (values(N, N),), TORCH_NAMES.get(op) or getattr(torch, op))]


def pairs(op: str) -> list[Example]:
    compute = TORCH_NAMES.get(op) or getattr(torch, op)
    return [
        Example(op, (values(N, N), values(N, N).t().contiguous()), compute),
        Example(op, (values(N, N), values(N)), compute, name="fewer_axes"),
        Example(op, (values(N, 1), values(N, N)), compute, name="broadcast"),
    ]


def _sum(dims: Any, keepdim: bool, *shape: int) -> Example:
    def compute(x):
        return torch.sum(x, dim=dims, keepdim=keepdim)

    name = f"{'all' if dims is None else '_'.join(map(str, dims))}{'_keepdim' if keepdim else ''}"
    return Example("sum", (values(*shape),), compute, {"dims": dims, "keepdim": keepdim}, name)


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

OTHERS: dict[str, list[Example]] = {
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
    "permute": [
        Example("permute", (values(N, 6, 12),), lambda x: x.permute(2, 0, 1), {"dims": [2, 0, 1]})
    ],
    "stride_order": [
        Example("stride_order", (values(N, N),), torch.clone, {"stride_order": [0, 1]})
    ],
    "sum": [
        _sum([0], False, N, N),
        _sum([1], False, N, N),
        _sum(None, False, N, N),
        _sum([0], True, N, N),
        _sum([0, 2], False, N, 6, N),
    ],
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
