# SPDX-License-Identifier: BSD-3-Clause
"""define_tensor, define_scalar, define_vector, from_pytorch, add_output: forms and messages."""

from __future__ import annotations

import re

import pytest
import torch

import meshfuse
from meshfuse import DataType, FusionDefinition, compute_contiguity, compute_tensor_descriptor


def extents(tv):
    return [str(axis.extent()) for axis in tv.get_logical_domain()]


@pytest.mark.parametrize(
    ("args", "kwargs", "sizes", "contiguity"),
    [
        (([2, 3],), {}, ["2", "3"], [False, False]),
        (((2, 3), True), {}, ["2", "3"], [True, True]),
        ((torch.Size([2, 1]), True), {}, ["2", "1"], [True, None]),
        (([2, 3], [True, False]), {}, ["2", "3"], [True, False]),
        (([2, 1], [False, None]), {}, ["2", "1"], [False, None]),
        (([],), {}, [], []),
        ((), {"shape": [4], "contiguity": True, "dtype": DataType.Half}, ["4"], [True]),
        (([2, 3], [3, 1]), {"static_sizes": True}, ["2", "3"], [True, True]),
        ((), {"sizes": [2, 3], "strides": [1, 2], "static_sizes": True}, ["2", "3"], [True, True]),
        ((range(2, 4),), {}, ["2", "3"], [False, False]),
        (([2, 1, 3],), {"contiguity": True, "stride_order": [0, 2, 1]}, ["2", "1", "3"],
         [None, True, True]),
    ],
)  # fmt: skip
def test_forms(args, kwargs, sizes, contiguity):
    with FusionDefinition() as fd:
        tv = fd.define_tensor(*args, **kwargs)
    assert extents(tv) == sizes
    assert tv.get_contiguity() == contiguity
    assert fd.fusion.inputs() == [tv]


def test_symbolic_sizes():
    with FusionDefinition() as fd:
        tv = fd.define_tensor(sizes=[2, 1, 3], strides=[3, 3, 1])
    assert extents(tv)[1] == "1" and extents(tv)[0] != "2"


@pytest.mark.parametrize(
    ("order", "memory"),
    [((1, 0), [0, 1]), ((0, 1), [1, 0]), ((-1, 0), [0, 1]), ((), [0, 1])],
)
def test_stride_order(order, memory):
    with FusionDefinition() as fd:
        tv = fd.define_tensor([2, 3], stride_order=order)
    logical = tv.get_logical_domain()
    allocation = tv.get_allocation_domain() or logical
    assert allocation == [logical[i] for i in memory]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (([2, 3], [True, True, True]), {},
         "Length of contiguity argument (3) must match that of shape argument (2)"),
        (([2, -2],), {}, "The value -2 at index 1 was neither symbolic(-1), zero_element(0), "
                         "broadcast(1), or static(>1)."),
        (([2, 3],), {"stride_order": [2, 0]}, "stride_order argument is out of range"),
        (([2, 3],), {"stride_order": [0, 0]}, "define_tensor got duplicated stride_order entries"),
        (([2, 3],), {"stride_order": [0]}, "stride_order"),
        (([2, 3], [3]), {}, "The number of sizes does not match the number of strides."),
        (([2, 3], [-3, 1]), {}, "negative stride on tensor is not supported"),
        (([2],), {"is_cpu": True}, "CPU non-scalar tensor is not supported!"),
    ],
)  # fmt: skip
def test_wrong_values(args, kwargs, message):
    with FusionDefinition() as fd:
        with pytest.raises(RuntimeError, match=re.escape(message)) as caught:
            fd.define_tensor(*args, **kwargs)
    assert isinstance(caught.value, ValueError)
    assert fd.fusion.inputs() == []


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((4,), {}),
        (("ab",), {}),
        (([2.0],), {}),
        (([True],), {}),
        (([2**70],), {}),
        (([2], "yes"), {}),
        (([2], True, 3), {}),
        (([2],), {"dtype": torch.float32}),
        (([2],), {"colour": 1}),
        (([2], [1], DataType.Float, False, False, 1), {}),
    ],
)
def test_wrong_types(args, kwargs):
    with FusionDefinition() as fd:
        with pytest.raises(TypeError) as caught:
            fd.define_tensor(*args, **kwargs)
    text = str(caught.value)
    assert text.startswith(
        "define_tensor(): incompatible function arguments. "
        "The following argument types are supported:\n    1. "
    )
    assert "\n    3. (sizes: Sequence[int], strides" in text and "\nInvoked with: " in text


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "order"),
    [
        ([2, 1, 3, 1, 4], [24, 4, 8, 4, 2], [True, True, None, None, False], [4, 2, 3, 1, 0]),
        ([2, 3], [3, 1], [True, True], [1, 0]),
        ([2, 3], [1, 2], [True, True], [0, 1]),
        ([2, 5, 3], [3, 0, 1], [True, None, True], [2, 1, 0]),
        ([], [], [], []),
    ],
)
def test_descriptor(sizes, strides, contiguity, order):
    assert compute_tensor_descriptor(sizes, strides) == (contiguity, order)


def test_contiguity_in_given_order():
    assert compute_contiguity([2, 1, 3], [3, 3, 1]) == [True, None, True]
    assert compute_contiguity([2, 3], [1, 2]) == [False, False]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3),
        torch.ones(3, 2).t(),
        torch.ones(2, 3, dtype=torch.bfloat16)[:, :2],
        torch.ones(1, 3).expand(4, 3),
        torch.tensor(1.5),
        torch.empty(0, 3),
    ],
    ids=["rows", "columns", "gaps", "expanded", "scalar", "empty"],
)
@pytest.mark.parametrize("static", [False, True])
def test_from_pytorch(tensor, static):
    with FusionDefinition() as fd:
        x = fd.from_pytorch(tensor, static_sizes=static)
        fd.add_output(fd.ops.set(x))
    (out,) = fd.execute([tensor])
    torch.testing.assert_close(out, tensor)


def test_from_pytorch_can_reject_cpu(monkeypatch):
    monkeypatch.setenv("MESHFUSE_REJECT_CPU_INPUTS", "1")
    with FusionDefinition() as fd:
        fd.from_pytorch(torch.tensor(1.0))
        with pytest.raises(ValueError, match="Found unsupported device cpu"):
            fd.from_pytorch(torch.ones(2, device="cpu"))


@pytest.mark.parametrize(
    ("args", "kwargs", "dtype", "symbolic"),
    [
        ((), {}, DataType.Double, True),
        ((DataType.Int,), {}, DataType.Int, True),
        ((), {"dtype": DataType.Bool}, DataType.Bool, True),
        ((None, DataType.Int), {}, DataType.Int, True),
        ((2,), {}, DataType.Int, False),
        ((True,), {}, DataType.Bool, False),
        ((2.5,), {}, DataType.Double, False),
        ((1j,), {}, DataType.ComplexDouble, False),
        ((2, DataType.Double), {}, DataType.Double, False),
        ((), {"value": 3, "dtype": DataType.Int}, DataType.Int, False),
    ],
)
def test_define_scalar(args, kwargs, dtype, symbolic):
    with FusionDefinition() as fd:
        scalar = fd.define_scalar(*args, **kwargs)
    assert scalar.dtype() == dtype
    assert scalar.is_symbolic() == symbolic
    assert fd.fusion.inputs() == ([scalar] if symbolic else [])


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [(("a",), {}), ((1, 2), {}), ((1, DataType.Int, 3), {}), ((2**70,), {}), ((), {"val": 1}),
     ((DataType.Int,), {"dtype": DataType.Int})],
)  # fmt: skip
def test_define_scalar_wrong_types(args, kwargs):
    with FusionDefinition() as fd:
        with pytest.raises(
            TypeError, match=re.escape("define_scalar(): incompatible function arguments")
        ):
            fd.define_scalar(*args, **kwargs)


def test_define_vector():
    with FusionDefinition() as fd:
        inputs = fd.define_vector(3)
        constants = fd.define_vector([2, inputs[0], 4])
        assert len(inputs) == inputs.size == 3 and list(inputs) == fd.fusion.inputs()
        assert constants.at(1) == inputs[0] and str(constants[0]) == "2"
        for wrong in ("a", [1.5], True, None):
            with pytest.raises(TypeError, match=r"define_vector\(\): incompatible function"):
                fd.define_vector(wrong)
        with pytest.raises(RuntimeError, match=re.escape("The value -2 at index 1 was neither")):
            fd.define_vector([1, -2])
    assert "Vector(index=" in repr(inputs) and repr(inputs).endswith("size=3)")


def test_outputs_in_order_and_twice():
    with FusionDefinition() as fd:
        x = fd.define_tensor([2])
        y = fd.ops.neg(x)
        fd.add_output(y)
        fd.add_output(x)
        fd.add_output(y)
    a, b, c = fd.execute([torch.ones(2)])
    assert a.tolist() == c.tolist() == [-1.0, -1.0] and b.tolist() == [1.0, 1.0]


def test_scalar_output():
    with FusionDefinition() as fd:
        s = fd.define_scalar(DataType.Double)
        fd.add_output(s)
        fd.add_output(s * 2.0)
    one, two = fd.execute([1.5])
    assert one.dim() == 0 and one.item() == 1.5 and two.item() == 3.0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (-3, 2, 1), ()])
@pytest.mark.parametrize("keyword", [False, True])
def test_output_stride_order(order, keyword):
    with FusionDefinition() as fd:
        out = fd.ops.neg(fd.define_tensor([2, 3, 4]))
        if keyword:
            fd.add_output(out, stride_order=order)
        else:
            fd.add_output(out, order)
    value = torch.randn(2, 3, 4)
    (result,) = fd.execute([value])
    torch.testing.assert_close(result, -value)
    order = [o % 3 for o in order] or [2, 1, 0]
    by_stride = sorted(range(3), key=lambda i: result.stride(i))
    assert [order[i] for i in by_stride] == [0, 1, 2]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0], "stride_order needs to be either empty or the same length of Tensor `output`"),
        ([0, 2], "stride_order elements need to be within [0, stride_order.size())"),
        ([0, 0], "duplicated elements in stride_order detected!"),
    ],
)
def test_wrong_output_stride_order(order, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 3])
        with pytest.raises(RuntimeError, match=re.escape(message)):
            fd.add_output(fd.ops.neg(x), stride_order=order)


def test_stride_order_needs_a_plain_tensor():
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 3])
        y = fd.ops.neg(x)
        with pytest.raises(
            RuntimeError, match="stride_order can't be dictated for aliased outputs"
        ):
            fd.add_output(y, x, stride_order=[0, 1])
        with pytest.raises(RuntimeError, match="stride_order can't be dictated for scalar outputs"):
            fd.add_output(fd.define_scalar(1.0), stride_order=[0])
        with pytest.raises(TypeError, match=r"add_output\(\): incompatible function arguments"):
            fd.add_output(torch.ones(2))


def test_alias_input():
    """The input is updated in place; the output is not returned."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([3])
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        fd.add_output(fd.ops.mul(y, 2.0))
    value = torch.zeros(3)
    (out,) = fd.execute([value])
    assert value.tolist() == [1.0] * 3 and out.tolist() == [2.0] * 3


@pytest.mark.parametrize("set_first", [False, True])
def test_output_that_is_an_overwritten_input(set_first):
    """It has the value that the program read, whatever else is returned."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([3])
        if set_first:
            fd.add_output(fd.ops.set(x))
        fd.add_output(x)
        fd.add_output(fd.ops.mul(x, 2.0), alias_input=x)
        fd.add_output(x)
    value = torch.ones(3)
    outputs = fd.execute([value])
    assert value.tolist() == [2.0] * 3
    assert [out.tolist() for out in outputs] == [[1.0] * 3] * (3 if set_first else 2)


def test_alias_must_be_an_input():
    with FusionDefinition() as fd:
        x = fd.define_tensor([3])
        y = fd.ops.neg(x)
        with pytest.raises(RuntimeError, match="is not an input"):
            fd.add_output(fd.ops.neg(y), y)


def test_free_functions_do_not_register_an_input():
    fusion = meshfuse.Fusion()
    guard = meshfuse.FusionGuard(fusion)
    x = meshfuse.define_tensor([2])
    assert fusion.inputs() == []
    fusion.add_input(x)
    fusion.add_output(meshfuse.ops.neg(x))
    del guard
    (out,) = meshfuse.FusionExecutorCache(fusion).execute([torch.ones(2)])
    assert out.tolist() == [-1.0, -1.0]
    with pytest.raises(RuntimeError, match="must be called from an initialized definition"):
        meshfuse.define_tensor([2])
