# SPDX-License-Identifier: BSD-3-Clause
"""Methods of the extension's classes that are called on None, as ``Communicator.size(None)``."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLS = """
import types
from meshfuse import _C

wrong = []
for name in dir(_C.{kind}):
    method = getattr(_C.{kind}, name)
    public = not name.startswith("_") or name in ("__str__", "__repr__", "__hash__")
    if not public or isinstance(method, (types.FunctionType, property)):
        continue
    if type(method).__name__ not in ("instancemethod", "builtin_function_or_method"):
        continue
    print("{kind}." + name, flush=True)  # the last line, should this crash
    try:
        method(None)
    except TypeError:
        continue
    wrong.append(name)
assert not wrong, wrong
"""


KINDS = "Communicator DeviceMesh Fusion TensorView IterDomain Expr FusionExecutorCache"


@pytest.mark.parametrize("kind", KINDS.split())
def test_none_as_self_is_a_type_error(kind):
    """In a process of its own, which a crash would end."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS.format(kind=kind)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") >= 5  # it found methods to call
