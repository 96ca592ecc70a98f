# SPDX-License-Identifier: BSD-3-Clause
"""Tensors made from scalars: full and iota, whole and divided."""

from __future__ import annotations

import math

import pytest
import torch
from programs import X, Y, assert_part, lay, part_of

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition
from meshfuse.pytorch_utils import torch_dtype_to_meshfuse_dtype

TORCH_TYPES = {
    torch_dtype_to_meshfuse_dtype(t): t
    for t in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.bool,
        torch.complex64,
    )
}
PAIR = DeviceMesh([0, 1])
SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))


def made(op, *args, **options):
    """Return what one device makes of an op without operands."""
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, op)(*args, **options))
    (out,) = fd.execute([])
    return out


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (DataType.Float, 1.5),
        (DataType.Double, 0.1),
        (DataType.Half, -2),
        (DataType.BFloat16, math.inf),
        (DataType.Int, 2_722_423_872_872_113),
        (DataType.Int32, -7),
        (DataType.Bool, True),
        (DataType.ComplexFloat, 1 + 2j),
        (DataType.Int, 2.75),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [[], [3], [2, 1, 4], [0, 5]], ids=str)
def test_full(shape, dtype, value):
    want = torch.full(shape, value, dtype=TORCH_TYPES[dtype])
    torch.testing.assert_close(made("full", shape, value, dtype), want, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [[2**62], [2**40, 2**40], [2, 2**58]], ids=str)
def test_full_larger_than_any_memory(shape):
    message = r"part of T0 has more elements than any memory holds: axis \d of its allocation"
    with pytest.raises(meshfuse.Error, match=message):
        made("full", shape, 1.0, DataType.Float)


@pytest.mark.parametrize("op", ["full", "uniform", "iota"])
def test_negative_size_of_a_scalar_input(op):
    with FusionDefinition() as fd:
        k = fd.define_scalar(DataType.Int)
        args = {
            "full": ([2, k], 1.0, DataType.Float),
            "uniform": (0.0, 1.0, [2, k]),
            "iota": (k, 0, 1, DataType.Int),
        }
        fd.add_output(getattr(fd.ops, op)(*args[op]))
    axis = 0 if op == "iota" else 1
    message = rf"the size of axis {axis} of T0, \w+, is -3\. Give the scalars that it depends on"
    with pytest.raises(meshfuse.Error, match=message) as caught:
        fd.execute([-3])
    assert (caught.value.tensor, caught.value.axis) == ("T0", axis)
    assert fd.execute([4])[0].shape[axis] == 4


def test_full_of_size_1_broadcasts():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, -1])
        ones = fd.ops.full([4, 1], 2.0, DataType.Float)
        fd.add_output(fd.ops.add(x, ones))
    t = torch.randn(4, 6)
    torch.testing.assert_close(fd.execute([t])[0], t + 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_full_of_the_sizes_of_a_tensor(axis):
    """Sizes are global: those of a divided tensor's whole, and the result follows its reader."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        ones = fd.ops.full([x.size(0), x.size(1)], 2.0, DataType.Float)
        fd.add_output(fd.ops.mul(x, ones))
        lay(x, PAIR, [(axis, X)])
    assert fd.explain(sizes={x: [6, 8]}).communications == []
    for shape in [(6, 8), (4, 10)]:
        t = torch.randn(shape)
        with meshfuse.simulate(2) as sim:
            torch.testing.assert_close(sim.run(fd, [t])[0], t * 2)


def test_full_of_a_scalar_input():
    with FusionDefinition() as fd:
        value = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.full([3], value, DataType.Float))
    for value in (1.5, -2.0):
        assert torch.equal(fd.execute([value])[0], torch.full((3,), value))


@pytest.mark.parametrize("mesh", [PAIR, SQUARE], ids=["2", "2x2"])
@pytest.mark.parametrize("placement", ["outer", "inner", "two axes"])
def test_iota_has_the_parts_of_each_device(mesh, placement):
    """By global position, in blocks, cyclic, and over two mesh axes."""
    cuts = {"outer": [(0, X)], "inner": [], "two axes": [(0, Y), (0, X)]}[placement]
    if placement == "two axes" and mesh is PAIR:
        pytest.skip("one mesh axis")
    with FusionDefinition() as fd:
        out = fd.ops.iota(24, 3, 2)
        fd.add_output(out)
        lay(out, mesh, cuts)
        if placement == "inner":
            out.inner_split(0, 2)
            out.axis(1).parallelize(X)
    want = torch.arange(24) * 2 + 3
    with meshfuse.simulate(mesh.size) as sim:
        assert torch.equal(sim.run(fd, [])[0], want)
        for device in range(mesh.size):
            part = part_of(want, mesh, cuts, device)
            if placement == "inner":
                part = want[mesh.index_of(device)[-1] :: 2]
            assert_part(sim.local(device=device), part)


def test_iota_of_uneven_parts():
    with FusionDefinition(uneven=True) as fd:
        out = fd.ops.iota(7)
        fd.add_output(out)
        lay(out, PAIR, [(0, X)])
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [])[0], torch.arange(7))
        assert [sim.local(device=d).tolist() for d in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6]]


def test_iota_follows_its_reader():
    """The positions of a divided sequence: no annotation, no communication."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 4], dtype=DataType.Int)
        line = fd.ops.broadcast(fd.ops.iota(8), [False, True])
        fd.add_output(fd.ops.add(x, line))
        lay(x, PAIR, [(0, X)])
    assert fd.explain().communications == []
    t = torch.randint(9, (8, 4))
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [t])[0], t + torch.arange(8)[:, None])


@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Int32, DataType.Float, DataType.Double])
def test_iota_dtypes(dtype):
    start, step = (1, -3) if dtype in (DataType.Int, DataType.Int32) else (0.5, 0.25)
    want = torch.arange(11, dtype=torch.double) * step + start
    got = made("iota", 11, start, step, dtype)
    assert torch.equal(got, want.to(TORCH_TYPES[dtype]))


@pytest.mark.parametrize("length", [0, 1])
def test_iota_short(length):
    assert torch.equal(made("iota", length), torch.arange(length))


def test_iota_of_a_size():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        step = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.iota(x.size(0), step=step))
    for n, step in [(5, 2), (3, -1)]:
        (out,) = fd.execute([torch.zeros(n), step])
        assert torch.equal(out, torch.arange(n) * step)


def test_iota_step_zero_at_execution():
    with FusionDefinition() as fd:
        step = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.iota(4, step=step))
    with pytest.raises(meshfuse.Error, match=r"iota: step value must not equal zero\."):
        fd.execute([0])


def test_text_of_programs_without_inputs():
    with FusionDefinition() as fd:
        lay(a := fd.ops.iota(8), PAIR, [(0, X)])
        b = fd.ops.full([8], -1.5, DataType.Double)
        fd.add_output(fd.ops.mul(a, b))
    again = meshfuse.parse_ir(fd.ir())
    assert again.ir() == fd.ir()
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(again, [])[0], torch.arange(8) * -1.5)


ERRORS = [
    (lambda ops: ops.full([2.5], 0, DataType.Int), r"full: the size at index 0, .*2\.5.*integers"),
    (
        lambda ops: ops.full([3, -2], 0, DataType.Int),
        r"The value -2 at index 1 was neither symbolic\(-1\), zero_element\(0\), broadcast\(1\), "
        r"or static\(>1\)\.",
    ),
    (lambda ops: ops.full([-1], 0, DataType.Int), r"index 0 is -1, and no operand tells"),
    (lambda ops: ops.full([2], 1j, DataType.Float), r"full: fill_value is .*Give a complex dtype"),
    (lambda ops: ops.full([2], 1, DataType.Null), r"full: dtype is Null"),
    (lambda ops: ops.iota(2.5), r"iota: length must be integer"),
    (lambda ops: ops.iota(-3), r"iota: length is -3"),
    (lambda ops: ops.iota(math.inf), r"iota: length, start, step must be finite numbers\."),
    (
        lambda ops: ops.iota(3, 0.0, 1.0, DataType.Int),
        r"iota: start dtype does not match specified dtype argument",
    ),
    (
        lambda ops: ops.iota(3, None, 1, DataType.Float),
        r"iota: step dtype does not match specified dtype argument",
    ),
    (
        lambda ops: ops.iota(3, math.nan, 1.0, DataType.Float),
        r"iota: length, start, step must be finite numbers\.",
    ),
    (lambda ops: ops.iota(3, 0, 0), r"iota: step value must not equal zero\."),
    (lambda ops: ops.iota(3, dtype=DataType.Bool), r"iota: dtype is .*integer or a floating"),
]


@pytest.mark.parametrize(("program", "message"), ERRORS, ids=[m for _, m in ERRORS])
def test_errors(program, message):
    with FusionDefinition() as fd, pytest.raises(meshfuse.Error, match=message):
        program(fd.ops)
