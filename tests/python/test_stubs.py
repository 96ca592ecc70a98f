# SPDX-License-Identifier: BSD-3-Clause
"""Types as a user's checker sees them: the stubs fit the package, a typed script passes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshfuse import _C

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

pytestmark = pytest.mark.cpu_only("types are the same everywhere")


def run(module: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a checker of mypy's in a folder, with the package on its path."""
    pytest.importorskip("mypy")
    paths = {"PYTHONPATH": str(ROOT / "python"), "MYPYPATH": str(ROOT / "python")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
    )


def test_typed_script_passes_strict_checks(tmp_path: Path) -> None:
    """No setting of this repository's helps it: the script is checked in another folder."""
    script = str(HERE / "typed_script.py")
    checked = run("mypy", "--strict", "--cache-dir", os.devnull, script, folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_stubs_are_those_of_the_package(tmp_path: Path) -> None:
    """Every module, with or without a stub; differences that are meant stand in the allowlist."""
    allowed = str(HERE / "stubtest_allowlist.txt")
    checked = run("mypy.stubtest", "meshfuse", "--concise", "--allowlist", allowed, folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def declared() -> Iterator[tuple[str, set[tuple[str, ...]]]]:
    """Give the functions and methods of _C.pyi, each with the parameters of its overloads."""
    found: dict[str, set[tuple[str, ...]]] = {}
    stub = ast.parse((ROOT / "python" / "meshfuse" / "_C.pyi").read_text())
    for statement in stub.body:
        owner = f"{statement.name}." if isinstance(statement, ast.ClassDef) else ""
        for member in getattr(statement, "body", ()) if owner else (statement,):
            if isinstance(member, ast.FunctionDef):
                arguments = member.args
                names = ["" for a in arguments.posonlyargs if a.arg != "self"]
                names += [a.arg for a in arguments.args + arguments.kwonlyargs]
                names = [name for name in names if name not in ("self", "cls")]
                found.setdefault(owner + member.name, set()).add(tuple(names))
    yield from found.items()


def compiled(name: str) -> set[tuple[str, ...]]:
    """Return the same from the docstring that pybind11 writes; empty if it wrote none."""
    function: object = _C
    for part in name.split("."):
        function = getattr(function, part, None)
    if type(function).__name__ not in ("builtin_function_or_method", "instancemethod"):
        return set()
    short = re.escape(name.split(".")[-1])
    forms = re.findall(rf"^\s*(?:\d+\. )?{short}\((.*)\) -> ", function.__doc__ or "", re.M)
    found = set()
    for form in forms:
        while form != (inner := re.sub(r"\[[^\[\]]*\]|<[^<>]*>|\([^()]*\)", "", form)):
            form = inner  # commas of types and of defaults
        names = [part.split(":")[0].strip() for part in form.split(",") if ":" in part]
        named = [re.sub(r"^arg\d+$", "", name) for name in names if name != "self"]
        found.add(tuple(named))
    return found


def test_stub_has_the_parameters_of_the_extension() -> None:
    """The checker above cannot see them. What has no name there is positional-only in the stub."""
    pairs = [(name, forms, compiled(name)) for name, forms in declared()]
    assert [pair for pair in pairs if pair[2] and pair[1] != pair[2]] == []
    assert sum(bool(pair[2]) for pair in pairs) > 100
