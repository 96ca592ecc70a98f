# SPDX-License-Identifier: BSD-3-Clause
"""Programs and calls that the tests of the command line use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from meshfuse.cli.app import group

ROW_PARALLEL = """\
T0: f32[i0{4}, i1{16}] { i2{2}@x, i3{8} = split i1 outer 2; alloc contig f f } mesh(x=2)
T1: f32[i0{16}, i1{8}] { i2{2}@x, i3{8} = split i0 outer 2; alloc contig f f } mesh(x=2)
T2 = matmul(T0, T1): f32[i0{4}, i1{8}, r2{16}]
return T2
"""

SCRIPT = """\
import torch
from meshfuse import DeviceMesh, FusionDefinition, ParallelType, DataType

print("the script ran")


def matmul(rows=4, devices=2):
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([rows, 16]), fd.define_tensor([16, 8])
        fd.add_output(fd.ops.matmul(x, w))
        for t, axis in ((x, 1), (w, 0)):
            t.set_device_mesh(DeviceMesh(range(devices)))
            t.outer_split(axis, devices)
            t.axis(axis).parallelize(ParallelType.mesh_x)
    return fd


class Neg(FusionDefinition):
    def definition(self):
        self.add_output(self.ops.neg(self.define_tensor([-1, 6])))


class Sized(FusionDefinition):
    def __init__(self, n):
        super().__init__()


def nothing():
    print("called")


def given(fd):
    return fd


def failing():
    raise OSError("no weights.")


def refused():
    with FusionDefinition() as fd:
        fd.ops.matmul(fd.define_tensor([4, 6]), fd.define_tensor([7, 8]))
    return fd


definition, number = matmul(), 3
"""


def run(*arguments: Any, env: dict[str, str] | None = None, input: str | None = None) -> Result:
    """Call the command line in this process."""
    return CliRunner().invoke(group, [str(a) for a in arguments], env=env, input=input)


def ok(*arguments: Any) -> str:
    """Return what a call prints, which must end well."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def ok_json(*arguments: Any) -> Any:
    return json.loads(ok(*arguments, "--json"))


def failed(*arguments: Any, input: str | None = None) -> tuple[int, str]:
    """Return exit code and message of a call that fails."""
    result = run(*arguments, input=input)
    assert result.exit_code != 0, result.output
    assert "Traceback" not in result.output, result.output
    return result.exit_code, click.unstyle(result.stderr).removeprefix("meshfuse: ").strip()


def process(*arguments: Any, timeout: float = 120, **variables: str) -> Any:
    """Call the command line in a process of its own."""
    environment = {**os.environ, **variables}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "meshfuse", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file
