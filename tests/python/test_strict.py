# SPDX-License-Identifier: BSD-3-Clause
"""Strict mode: communication that the program does not write down is an error."""

from __future__ import annotations

import pytest
import torch
from programs import mlp, mlp_inputs, mlp_reference, place, ramp, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition

TWO = DeviceMesh(range(2))


def compile_(fd: FusionDefinition) -> str:
    return fd.compiled_ir()


def test_names_operations_shardings_lines_and_the_cure():
    with pytest.raises(meshfuse.Error) as error:
        compile_(mlp(TWO, in_seq=True, strict=True))
    text = str(error.value)
    for part in (
        "strict mode: matmul: T5 needs an implicit all-gather over mesh_x: "
        "T0 splits 'm' over mesh_x, T5 splits 'n' over it (",
        "matmul: T8 needs an implicit all-reduce over mesh_x: "
        "T7 and T3 split 'k' over mesh_x, so T8 is a sum over these devices (",
        "programs.py:",
        "pass the operand through fd.ops.set",
        "for a sum over devices, annotate its result",
    ):
        assert part in text


def test_local_programs_are_fine():
    """A conflict that costs nothing is none: the operand that is whole is cut in place."""
    with FusionDefinition(strict=True) as fd:
        x, y = fd.define_tensor([4, 6]), fd.define_tensor([4, 6])
        fd.add_output(fd.ops.add(x, y))
        place(TWO, x, y)
        shard(y, 0, 2)
    a, b = ramp(4, 6), ramp(4, 6)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [a, b])[0], a + b)


def annotated_sum(how: str) -> FusionDefinition:
    """A sum over devices; ``how`` its result is annotated."""
    with FusionDefinition(strict=True) as fd:
        x, w = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        total = fd.ops.matmul(x, w)
        out = fd.ops.set(total) if "set" in how else total
        fd.add_output(out)
        for tv, axis in ((x, 1), (w, 0)):
            place(TWO, tv)
            shard(tv, axis, 2)
        if how != "no" and how != "set without mesh":
            place(TWO, out)
        if "rows" in how:
            shard(out, 0, 2)
    return fd


@pytest.mark.parametrize("how", ["whole", "rows", "set", "set rows"])
def test_annotated_sums_are_explicit(how):
    x, w = ramp(4, 6), ramp(6, 8)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(annotated_sum(how), [x, w])[0], x @ w)


@pytest.mark.parametrize("how", ["no", "set without mesh"])
def test_other_sums_are_implicit(how):
    with pytest.raises(meshfuse.Error, match="T2 needs an implicit all-reduce over mesh_x"):
        compile_(annotated_sum(how))


@pytest.mark.parametrize(("before", "after"), [(0, None), (0, 1), (None, 0)])
def test_annotated_set_is_explicit(before, after):
    with FusionDefinition(strict=True) as fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.set(fd.ops.relu(x))
        fd.add_output(y)
        for tv, axis in ((x, before), (y, after)):
            place(TWO, tv)
            if axis is not None:
                shard(tv, axis, 2)
    x = ramp(4, 6)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x])[0], x.relu())


def test_annotated_result_of_another_op_is_implicit():
    with FusionDefinition(strict=True) as fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.relu(x)
        fd.add_output(y)
        place(TWO, x, y)
        shard(x, 0, 2)
    with pytest.raises(meshfuse.Error, match=r"relu: T1 needs an implicit all-gather over mesh_x"):
        compile_(fd)


def test_following_the_advice():
    """The block of before, with what it lacked written down."""
    d = 2
    with FusionDefinition(strict=True) as fd:
        x, w1, b1 = (fd.define_tensor(s) for s in ([4, 2 * d, 6], [6, 4 * d], [4 * d]))
        w2, b2 = fd.define_tensor([4 * d, 6]), fd.define_tensor([6])
        whole = fd.ops.set(x)
        h = fd.ops.gelu(fd.ops.add(fd.ops.matmul(whole, w1), b1))
        total = fd.ops.matmul(h, w2)
        y = fd.ops.add(total, b2)
        fd.add_output(y)
        place(TWO, whole, total)
        for tv, axis in ((w1, 1), (w2, 0), (x, 1)):
            place(TWO, tv)
            shard(tv, axis, d)
    inputs = mlp_inputs(d)
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, inputs)
    torch.testing.assert_close(out, mlp_reference(*inputs), rtol=1e-5, atol=1e-5)
    assert [c.op for c in fd.explain().communications] == ["set", "matmul"]


def test_explain_works_in_strict_mode():
    assert len(mlp(TWO, strict=True).explain().communications) == 1


@pytest.mark.parametrize("value", ["1", "true", "Yes", " ON "])
def test_variable_on(monkeypatch, value):
    monkeypatch.setenv("MESHFUSE_STRICT", value)
    with pytest.raises(meshfuse.Error, match="T8 needs an implicit all-reduce"):
        compile_(mlp(TWO))


@pytest.mark.parametrize("value", ["", "0", "False", "no", "off"])
def test_variable_off(monkeypatch, value):
    monkeypatch.setenv("MESHFUSE_STRICT", value)
    assert "sum(" in compile_(mlp(TWO))


def test_variable_wrong(monkeypatch):
    monkeypatch.setenv("MESHFUSE_STRICT", "perhaps")
    with pytest.raises(meshfuse.Error, match='MESHFUSE_STRICT is "perhaps", which is neither on'):
        compile_(mlp(TWO))
