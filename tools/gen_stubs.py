# SPDX-License-Identifier: BSD-3-Clause
"""Writes python/meshfuse/operators.pyi and ops.pyi from the registry of ops.

Usage: PYTHONPATH=python python tools/gen_stubs.py [--check]

With --check nothing is written; the exit code is 1 when a file is out of date.
"""

from __future__ import annotations

import keyword
import sys
from pathlib import Path
from typing import Any

from meshfuse import _C
from meshfuse.operators import SCALED
from meshfuse.ops import __all__ as exported

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "meshfuse"

OPERATORS_HEAD = """\
# SPDX-License-Identifier: BSD-3-Clause
# Written by tools/gen_stubs.py.
# fmt: off
# ruff: noqa: E501
import builtins
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, overload

from ._C import DataType, Scalar, TensorView
from .lifecycle import Lifecycle

SCALED: tuple[str, ...]

def op_signature(info: dict[str, Any]) -> inspect.Signature: ...
def dress(function: Callable[..., Any], info: dict[str, Any], owner: str) -> Callable[..., Any]: ...

class Operators:
    def __init__(self, lifecycle: Lifecycle) -> None: ...
    def size(self, arg: TensorView, dim: int) -> Scalar: ...
    def shape(self, arg: TensorView) -> list[Scalar]: ...
    def tensor_sizes(self, arg: TensorView) -> list[Scalar]: ...
    def at(self, vector: Sequence[Scalar], index: int) -> Scalar: ...
"""

OPS_HEAD = """\
# SPDX-License-Identifier: BSD-3-Clause
# Written by tools/gen_stubs.py.
# fmt: off
# ruff: noqa: E501, RUF022
import builtins
from collections.abc import Sequence
from typing import Any, NoReturn, overload

from ._C import DataType, Scalar, TensorView

__all__ = [
NAMES]

def size(arg: TensorView, dim: int) -> Scalar: ...
def shape(arg: TensorView) -> list[Scalar]: ...
def tensor_sizes(arg: TensorView) -> list[Scalar]: ...
def at(vector: Sequence[Scalar], index: int) -> Scalar: ...
"""


OPERAND = "TensorView | Scalar | complex"


def parameter(name: str, type_name: str, has_default: bool, default: Any) -> str:
    """Return the declaration of one parameter."""
    type_name = type_name.replace("complex", "builtins.complex")  # there is an op of that name
    if has_default and default is None and "None" not in type_name:
        type_name += " | None"
    return f"{name}: {type_name}{' = ...' if has_default else ''}"


def signatures(info: dict[str, Any], first: list[str]) -> list[str]:
    """Return the declarations of one op: several where the operands decide what it returns.

    An op whose operands may all be numbers gives a scalar for these, and else tensors.
    """
    name = info["name"]
    params = [tuple(param[:4]) for param in info["params"]]
    if any(keyword.iskeyword(param[0]) for param in params):
        return [f"def {name}({', '.join([*first, '*args: Any', '**kwargs: Any'])}) -> Any: ..."]
    results = ["TensorView"] * len(info["results"])
    tensors = results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"
    operands = [i for i, param in enumerate(params) if param[1] == OPERAND]

    def declaration(types: dict[int, str], result: str) -> str:
        parts = [
            parameter(param[0], types.get(i, param[1]), *param[2:])
            for i, param in enumerate(params)
        ]
        return f"def {name}({', '.join(first + parts)}) -> {result}: ..."

    if not operands or any(param[1] == "TensorView" for param in params):
        return [declaration({}, tensors)]
    found = []
    for i in operands:  # the first tensor is operand i
        before = {j: "Scalar | complex" for j in operands if j < i}
        found.append(declaration({**before, i: "TensorView"}, tensors))
    found.append(declaration({i: "Scalar | complex" for i in operands}, "Scalar"))
    return [line for text in found for line in ("@overload", text)]


def stub(head: str, ops: list[dict[str, Any]], first: list[str], indent: str) -> str:
    """Return a stub: its head, the registered ops, and those that only raise."""
    lines = [line for info in ops for line in signatures(info, first)]
    for name in SCALED:
        arguments = ", ".join([*first, "*args: Any", "**kwargs: Any"])
        lines.append(f"def {name}({arguments}) -> NoReturn: ...")
    return head + "".join(f"{indent}{line}\n" for line in lines)


def operators_text(ops: list[dict[str, Any]]) -> str:
    """Return the stub of meshfuse.operators."""
    return stub(OPERATORS_HEAD, ops, ["self"], "    ")


def ops_text(ops: list[dict[str, Any]]) -> str:
    """Return the stub of meshfuse.ops."""
    names = "".join(f'    "{name}",\n' for name in exported)
    return stub(OPS_HEAD.replace("NAMES", names), ops, [], "")


def main() -> int:
    """Write the stubs, or check them."""
    ops = _C.registered_ops()
    texts = {"operators.pyi": operators_text(ops), "ops.pyi": ops_text(ops)}
    stale = [
        name
        for name, text in texts.items()
        if not (PACKAGE / name).exists() or (PACKAGE / name).read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{name} is out of date: run tools/gen_stubs.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (PACKAGE / name).write_text(texts[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
