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

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "meshfuse"

OPERATORS_HEAD = """\
# SPDX-License-Identifier: BSD-3-Clause
# Written by tools/gen_stubs.py.
# fmt: off
# ruff: noqa: E501
import builtins
import inspect
from collections.abc import Callable, Sequence
from typing import Any

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
# ruff: noqa: E501
import builtins
from collections.abc import Sequence
from typing import Any

from ._C import DataType, Scalar, TensorView

__all__: list[str]

def size(arg: TensorView, dim: int) -> Scalar: ...
def shape(arg: TensorView) -> list[Scalar]: ...
def tensor_sizes(arg: TensorView) -> list[Scalar]: ...
def at(vector: Sequence[Scalar], index: int) -> Scalar: ...
"""


def signature(info: dict[str, Any], first: list[str]) -> str:
    """Return the declaration of one op; what it returns depends on its parameters."""
    names = [name for name, *_ in info["params"]]
    if any(keyword.iskeyword(name) for name in names):
        return (
            f"def {info['name']}({', '.join([*first, '*args: Any', '**kwargs: Any'])}) -> Any: ..."
        )
    # There is an op named complex.
    parameters = [
        f"{name}: {type_name.replace('complex', 'builtins.complex')}"
        f"{' = ...' if has_default else ''}"
        for name, type_name, has_default, _, _ in info["params"]
    ]
    # Ops of scalars alone give a scalar; ops of several results give a tuple.
    takes_tensors = any(type_name == "TensorView" for _, type_name, *_ in info["params"])
    result = "TensorView" if takes_tensors and len(info["results"]) == 1 else "Any"
    return f"def {info['name']}({', '.join(first + parameters)}) -> {result}: ..."


def operators_text(ops: list[dict[str, Any]]) -> str:
    """Return the stub of meshfuse.operators."""
    return OPERATORS_HEAD + "".join(f"    {signature(info, ['self'])}\n" for info in ops)


def ops_text(ops: list[dict[str, Any]]) -> str:
    """Return the stub of meshfuse.ops."""
    return OPS_HEAD + "".join(f"{signature(info, [])}\n" for info in ops)


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
