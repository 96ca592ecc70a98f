# SPDX-License-Identifier: BSD-3-Clause
"""MESHFUSE_DUMP=before:<pass>,after:<pass>."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import meshfuse

PROGRAM = """
import meshfuse, warnings
warnings.simplefilter("error")
with meshfuse.FusionDefinition() as fd:
    x = fd.define_tensor([4, 6])
    y = fd.ops.relu(x)
    fd.add_output(y)
    x.set_device_mesh(meshfuse.DeviceMesh(range(2)))
    x.outer_split(0, 2)
    x.axis(0).parallelize(meshfuse.ParallelType.mesh_x)
fd.compiled_ir()
"""


def dump(**environment: str) -> tuple[str, str]:
    """Run the program; return what it printed on stdout and stderr."""
    package = str(Path(meshfuse.__file__).resolve().parent.parent)
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI"))}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=keep | {"PYTHONPATH": package} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def test_before_and_after_a_pass():
    out, err = dump(MESHFUSE_DUMP="after:propagate-sharding, before:propagate-sharding")
    assert out == ""
    before, after = err.split("// after:propagate-sharding\n")
    assert before.startswith("// before:propagate-sharding\n")
    program = before.split("\n", 1)[1]
    assert "T1 = relu(T0): f32[i0{4}, i1{6}]\n" in program
    assert "T1 = relu(T0): f32[i0{4}, i1{6}] { i2{2}@x" in after
    assert meshfuse.parse_ir(after).ir() == after
    assert meshfuse._C.run_pass(program, "propagate-sharding") == after


def test_beside_other_dumps_and_the_other_variable():
    """NVFUSER_DUMP counts where MESHFUSE_DUMP is not set; other names are of other dumps."""
    _, err = dump(NVFUSER_DUMP="fusion_ir_math,after:finalize-allocation")
    assert err.startswith("// after:finalize-allocation\n")


def test_unknown_pass_is_a_warning():
    _, err = dump(MESHFUSE_DUMP="after:propagate,after:check-local")
    first, rest = err.split("\n", 1)
    assert first == (
        "warning: MESHFUSE_DUMP: 'after:propagate' names no pass that runs. Known passes: "
        + ", ".join(meshfuse._C.pipeline())
        + "."
    )
    assert rest.startswith("// after:check-local\n")


def test_ranks():
    """Rank 0 prints, or those that are asked to."""
    rank1 = {"RANK": "1", "WORLD_SIZE": "2", "MESHFUSE_DUMP": "after:check-local"}
    assert dump(**rank1)[1] == ""
    assert dump(**rank1, MESHFUSE_DUMP_RANKS="2,0")[1] == ""
    for ranks in ("all", "0,1"):
        assert dump(**rank1, MESHFUSE_DUMP_RANKS=ranks)[1].startswith(
            "// after:check-local (rank 1)\n"
        )


def test_wrong_ranks(monkeypatch):
    monkeypatch.setenv("MESHFUSE_DUMP", "after:check-local")
    monkeypatch.setenv("MESHFUSE_DUMP_RANKS", "first")
    with meshfuse.FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([4])))
    with pytest.raises(meshfuse.Error, match=r"MESHFUSE_DUMP_RANKS has 'first'.*all"):
        fd.compiled_ir()


def test_python_does_not_know_better(monkeypatch):
    """The warning comes from the compiler alone."""
    monkeypatch.setenv("MESHFUSE_DUMP", "before:nothing,after:nothing")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert meshfuse.options.environment("DUMP") == {"before:nothing", "after:nothing"}
