# SPDX-License-Identifier: BSD-3-Clause
"""repr(fd): a Python function that defines the same program again."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from op_examples import REGISTERED, examples_of

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType
from meshfuse.python_text import function_text

EXAMPLES = [example for op in REGISTERED for example in examples_of(op)]


class ClassStyle(FusionDefinition):
    _api_name = "nvfuser"


def again(text, cls=FusionDefinition):
    """The definition that the text of a function makes."""
    names = {"FusionDefinition": cls, "DataType": DataType}
    exec(text, names)
    (function,) = (names[name] for name in names if name.startswith("nvfuser_"))
    with cls() as fd:
        function(fd)
    return fd


def check(fd):
    """Both forms make an equal program; returns the one made from the usual form."""
    for numbered in (True, False):
        made = again(function_text(fd.fusion, "nvfuser_fusion", numbered))
        assert made.fusion == fd.fusion, f"{made.ir()}\n{fd.ir()}"
    return made


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_every_op(example):
    """Each op prints as a call that gives the same program, with the same results and strides."""
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(x) for x in example.tensors]
        for result in example.call(fd.ops, tensors):
            fd.add_output(result)
    made = check(fd)
    torch.manual_seed(0)
    wanted = fd.execute(list(example.tensors))
    torch.manual_seed(0)
    for got, want in zip(made.execute(list(example.tensors)), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        assert got.stride() == want.stride()


def test_direct_text():
    """Constants stand inline, defaults are left out, operations that nothing needs too."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4], contiguity=True, dtype=DataType.BFloat16)
        s = fd.define_scalar(DataType.Double)
        y = fd.ops.mul(fd.ops.add(x, s), 3.0)
        fd.ops.neg(y)
        z = fd.ops.sum(y, dims=[1], dtype=DataType.Float)
        fd.add_output(z)
    assert repr(fd) == (
        "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        "    tv0 = fd.define_tensor(shape=[-1, 4], contiguity=[True, True], "
        "dtype=DataType.BFloat16, is_cpu=False)\n"
        "    c0 = fd.define_scalar(None, dtype=DataType.Double)\n"
        "    tv1 = fd.ops.add(tv0, c0)\n"
        "    tv2 = fd.ops.mul(tv1, 3.00000)\n"
        "    tv3 = fd.ops.sum(tv2, dims=[1], dtype=DataType.Float)\n"
        "    fd.add_output(tv3)\n"
    )


def test_class_style_text():
    """All records are counted together, constants are records, a line is left before and after."""
    fd = ClassStyle(id=3)
    with fd:
        x = fd.define_tensor([-1, 1], stride_order=[0, 1], contiguity=True)
        assert repr(fd).startswith("\ndef nvfuser_incomplete_fusion(fd : FusionDefinition)")
        fd.add_output(fd.ops.mul(x, fd.define_scalar(2.0)))
    assert repr(fd) == (
        "\ndef nvfuser_fusion_id3(fd : FusionDefinition) -> None :\n"
        "    T0 = fd.define_tensor(shape=[-1, 1], contiguity=[None, True], "
        "dtype=DataType.Float, is_cpu=False, stride_order=[0, 1])\n"
        "    S1 = fd.define_scalar(2.00000, dtype=DataType.Double)\n"
        "    T2 = fd.ops.mul(T0, S1)\n"
        "    fd.add_output(T2)\n"
    )
    assert again(repr(fd), ClassStyle).fusion == fd.fusion
    assert "not defined" in repr(ClassStyle())


VALUES = [0.1, 1e-30, -2.5, math.inf, -math.inf, 7, -7, 2**62, True, 1 + 2j, complex(0, math.inf)]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_constants_keep_their_value(value):
    with FusionDefinition() as fd:
        x = fd.define_tensor([2], dtype=DataType.Double)
        fd.add_output(fd.ops.eq(x, fd.define_scalar(value)))
        fd.add_output(fd.define_scalar(value))
    check(fd)


def test_nan_and_typed_constants():
    with FusionDefinition() as fd:
        x = fd.define_tensor([2])
        fd.add_output(fd.ops.mul(x, math.nan))
        for dtype in (DataType.Float, DataType.Int32, DataType.ComplexFloat, DataType.Index):
            fd.add_output(fd.ops.mul(x, fd.define_scalar(3, dtype)))
    check(fd)


def test_scalar_expressions():
    """Sizes and arithmetic of scalars are written as operations."""
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, 8]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.mul(x, (n + 1) * x.size(0)))
        fd.add_output(fd.ops.cast(n, DataType.Float) - 0.5)
    made = check(fd)
    for got, want in zip(
        made.execute([torch.ones(3, 8), 4]), fd.execute([torch.ones(3, 8), 4]), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("how", ["input", "output", "op", "split"])
def test_memory_orders(order, how):
    """Orders of inputs and outputs come back, also under a split."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 1, 4], stride_order=order if how == "input" else ())
        y = fd.ops.relu(x)
        if how == "op":
            y = fd.ops.stride_order(y, order)
        fd.add_output(y, stride_order=order if how in ("output", "split") else None)
        if how == "split":
            y.set_device_mesh(DeviceMesh([0]))
            y.outer_split(-1, 1)
            y.axis(-2).parallelize(ParallelType.mesh_x)
    made = check(fd)
    x = torch.randn(2, 1, 4)
    assert made.execute([x])[0].stride() == fd.execute([x])[0].stride()


def test_expanded_inputs_and_flags():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 6, 1, 5], contiguity=[True, None, None, False])
        cpu = fd.define_tensor([], is_cpu=True, dtype=DataType.Double)
        y = fd.define_tensor([-1, 6, 1, 5])
        fd.add_output(fd.ops.add(fd.ops.mul(x, cpu), y), y)
    check(fd)


def row_parallel(d):
    mesh = DeviceMesh(range(d))
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4 * d], contiguity=True)
        w = fd.define_tensor([4 * d, 6], contiguity=True)
        y = fd.ops.matmul(x, w)
        fd.add_output(fd.ops.relu(y))
        for tv in (x, w, y):
            tv.set_device_mesh(mesh)
        x.outer_split(-1, d).axis(-2).parallelize(ParallelType.mesh_x)
        w.outer_split(0, d).axis(0).parallelize(ParallelType.mesh_x)
        y.outer_split(-1, d)
        partial = y.rfactor(axes=[-1])
        partial.set_device_mesh(mesh)
        partial.axis(-2).parallelize(ParallelType.mesh_x)
        y.axis(-1).parallelize(ParallelType.mesh_x)
    return fd


def test_sharded_program_runs_again():
    """Mesh, splits, rfactor and parallel axes are lines of the function."""
    fd = row_parallel(2)
    made = check(fd)
    x, w = torch.randn(4, 8), torch.randn(8, 6)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(made, [x, w])
    torch.testing.assert_close(out, (x @ w).relu())


def test_schedule_of_several_steps():
    """Merges, inner splits, reorders, two mesh axes and orders of loop axes come back."""
    mesh = DeviceMesh(torch.tensor([[0, 1, 2], [5, 4, 3]]), names=("data", "model"))
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6, 10])
        y = fd.ops.neg(x)
        z = fd.ops.neg(y)
        fd.add_output(z)
        for tv in (x, y, z):
            tv.set_device_mesh(mesh)
        x.merge(0, 1).inner_split(0, 3).outer_split(0, 2).reorder({0: 3, 3: 0})
        x.axis(3).parallelize("data")
        y.outer_split(1, 3).axis(1).parallelize(ParallelType.mesh_x)
        y.set_allocation_as_loop()
        z.outer_split(2, 2)
        z.set_allocation_domain([z.axis(i) for i in (2, 0, 1, 3)], False)
        z.axis(2).parallelize(ParallelType.mesh_y)
    check(fd)
    assert "names=('data', 'model')" in repr(fd) and "reshape(2, 3)" in repr(fd)
