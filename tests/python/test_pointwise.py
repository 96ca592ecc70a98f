# SPDX-License-Identifier: BSD-3-Clause
"""Every registered elementwise op against torch, and the ops with attributes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from programs import (
    assert_layout,
    block,
    communications,
    dense_strides,
    dtype_of,
    place,
    ramp,
    shard,
    stride_orders,
)

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition

OPERAND = "TensorView | Scalar | complex"
PARAMS = {op["name"]: [kind for _, kind, *_ in op["params"]] for op in meshfuse._C.registered_ops()}
UNARY = sorted(name for name, params in PARAMS.items() if params == [OPERAND])
BINARY = sorted(name for name, params in PARAMS.items() if params == [OPERAND, OPERAND])

# Ops that keep 16-bit types, and ops that torch has under another name.
KEEP = {
    "set", "segment_set", "relu", "ceil", "floor", "round", "trunc", "frac", "silu", "abs", "sign",
    "real",
}  # fmt: skip
INTEGERS = {
    "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift",
    "bitwise_right_shift", "logical_right_shift", "gcd",
}  # fmt: skip


def operand_dtype(name):
    """A type that the op takes."""
    if name in INTEGERS:
        return torch.int64
    return torch.complex64 if name == "imag" else torch.float32


def erfcinv(x):
    if x.is_complex():
        return torch.erfinv(x)  # which torch refuses
    return torch.erfinv(1 - x.double()).to(x.dtype if x.is_floating_point() else torch.float32)


def logical_right_shift(a, b):
    """By numpy, which has shifts of unsigned numbers."""
    dtype = torch.result_type(a, b)
    torch.bitwise_right_shift(a, b)  # refuses what is no integer
    unsigned = np.uint32 if dtype == torch.int32 else np.uint64
    bits = [t.to("cpu", dtype).numpy().view(unsigned) for t in (a, b)]
    shifted = np.asarray(bits[0] >> bits[1]).view(np.int32 if dtype == torch.int32 else np.int64)
    return torch.from_numpy(shifted.copy()).to(torch.get_default_device())


def nextafter(a, b):
    """Torch has it for 16-bit types too, which are widened here, and promotes integers."""
    for t in (a, b):
        if t.dim() > 0 and t.dtype not in (torch.float32, torch.float64):
            raise RuntimeError(t.dtype)
    return torch.nextafter(a, b)


def make_complex(a, b):
    """As torch, and operands of two types are promoted."""
    for t in (a, b):
        if (t.dim() > 0 and not t.is_floating_point()) or t.is_complex():
            raise RuntimeError(t.dtype)
    dtype = torch.result_type(a, b)
    return torch.complex(a.to(dtype), b.to(dtype))


OTHER_NAMES = {
    "set": torch.clone,
    "segment_set": torch.clone,
    "silu": torch.nn.functional.silu,
    "truediv": torch.true_divide,
    "mod": torch.remainder,
    "erfcinv": erfcinv,
    "logical_right_shift": logical_right_shift,
    "nextafter": nextafter,
    "complex": make_complex,
}


def div(a, b):
    integers = not (
        a.is_floating_point() or a.is_complex() or b.is_floating_point() or b.is_complex()
    )
    return torch.div(a, b, rounding_mode="trunc" if integers else None)


def reference(name, *operands):
    """Torch's result; 16-bit floats are widened first where the op does not keep them."""
    if name not in KEEP and name != "nextafter":
        operands = [t.float() if t.dtype in (torch.half, torch.bfloat16) else t for t in operands]
    compute = div if name == "div" else OTHER_NAMES.get(name) or getattr(torch, name)
    return compute(*operands)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def values(dtype, other=False):
    """Six values; those of the other operand are fit for divisors and exponents."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True, False, False] if other else [True, False] * 3)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.tensor([1, 2, 3, 1, 2, 1] if other else [-2, 3, 0, 1, 2, 5], dtype=dtype)
    if dtype.is_complex:
        return torch.complex(values(torch.float64, other), values(torch.float64).flip(0)).to(dtype)
    return torch.tensor(
        [0.5, -1.5, 2.0, 1.0, 0.25, 3.0] if other else [-2.5, -1.0, 0.0, 0.5, 1.0, 2.5], dtype=dtype
    )


def run(name, *operands):
    """Execute one op; tensors become inputs, numbers stay numbers."""
    with FusionDefinition() as fd:
        args = [
            fd.define_tensor(list(x.shape), dtype=dtype_of(x)) if isinstance(x, torch.Tensor) else x
            for x in operands
        ]
        fd.add_output(getattr(fd.ops, name)(*args))
    return fd.execute([x for x in operands if isinstance(x, torch.Tensor)])[0]


def compare(name, operands, tensors=None):
    """Compare with torch; what torch refuses, the library must not answer with a crash."""
    try:
        want = reference(name, *(tensors or operands))
    except RuntimeError:
        with pytest.raises(RuntimeError):
            run(name, *operands)
        return
    out = run(name, *operands)
    assert out.dtype == want.dtype
    torch.testing.assert_close(out, want, equal_nan=True)


def test_registry_has_the_ops_of_a_matrix_program():
    assert {"add", "sub", "mul", "div", "relu", "set", "exp", "tanh", "maximum", "eq"} <= {
        *UNARY,
        *BINARY,
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    compare(name, [values(dtype)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    compare(name, [values(dtype), values(dtype, other=True)])


MIXED = [
    (torch.float32, torch.float64),
    (torch.int64, torch.float32),
    (torch.int32, torch.int64),
    (torch.bool, torch.int32),
    (torch.bool, torch.float16),
    (torch.float16, torch.bfloat16),
    (torch.float16, torch.float64),
    (torch.bfloat16, torch.int64),
    (torch.float32, torch.complex64),
    (torch.float64, torch.complex64),
]


@pytest.mark.parametrize(("left", "right"), MIXED, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_mixed_dtypes(name, left, right):
    compare(name, [values(left), values(right, other=True)])
    compare(name, [values(right), values(left, other=True)])


NUMBERS = [
    (torch.float32, 2),
    (torch.float32, 2.5),
    (torch.float16, 2),
    (torch.float16, 0.5),
    (torch.bfloat16, 1.5),
    (torch.float64, 2.5),
    (torch.int64, 3),
    (torch.int32, 3),
    (torch.int64, 2.5),
    (torch.int32, 0.5),
    (torch.bool, 2),
    (torch.bool, 2.5),
    (torch.bool, True),
    (torch.float32, True),
    (torch.complex64, 2.5),
]


@pytest.mark.parametrize(("dtype", "number"), NUMBERS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_numbers_on_either_side(name, dtype, number):
    """A number never widens a tensor of the same category."""
    zero_dim = torch.tensor(number)
    right, left = values(dtype), values(dtype, other=True)
    compare(name, [right, number], [right, zero_dim])
    compare(name, [number, left], [zero_dim, left])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.complex64], ids=str
)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "eq", "pow"])
def test_complex_numbers(name, dtype):
    x, number = values(dtype, other=True), 1 + 2j
    compare(name, [x, number], [x, torch.tensor(number)])
    compare(name, [number, x], [torch.tensor(number), x])


@pytest.mark.parametrize("constant", [True, False])
def test_complex_scalars(constant):
    x = values(torch.complex64)
    with FusionDefinition() as fd:
        t = fd.define_tensor([6], dtype=DataType.ComplexFloat)
        s = fd.define_scalar(1 + 2j) if constant else fd.define_scalar(DataType.ComplexDouble)
        fd.add_output(fd.ops.mul(t, s))
    (out,) = fd.execute([x] if constant else [x, 1 + 2j])
    torch.testing.assert_close(out, x * (1 + 2j))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "lt"])
@pytest.mark.parametrize("left", [True, False])
def test_scalar_inputs(name, left):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        s = fd.define_scalar(DataType.Double)
        fd.add_output(getattr(fd.ops, name)(*((s, x) if left else (x, s))))
    x = values(torch.float32)
    for number in (2.5, 3.0):
        operands = (torch.tensor(number), x) if left else (x, torch.tensor(number))
        want = reference(name, *operands)
        torch.testing.assert_close(fd.execute([x, number])[0], want, equal_nan=True)


def test_operation_on_scalars_alone():
    with FusionDefinition() as fd:
        a, b = fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(fd.ops.add(a, b), 2))
    (out,) = fd.execute([3, 0.5])
    assert out.dim() == 0 and out.dtype == torch.float64 and out.item() == 7.0


# ---- broadcasting


SHAPES = [
    ((3, 1), (1, 4)),
    ((4,), (3, 4)),
    ((3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((1,), (2, 3)),
    ((), (2, 3)),
    ((2, 3), ()),
    ((0, 4), (1, 4)),
    ((1, 1), (1, 1)),
    ((2, 1, 4), (3, 1)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("name", ["add", "mul", "lt", "atan2"])
def test_broadcasting(name, a, b):
    compare(name, [ramp(*a), ramp(*b) + 0.5])


@pytest.mark.parametrize("other", [5, -1])
def test_symbolic_size_of_one_does_not_broadcast(other):
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1]), fd.define_tensor([other])
        fd.add_output(fd.ops.add(a, b))
    with pytest.raises(meshfuse.Error) as caught:
        fd.execute([torch.ones(1), torch.ones(5)])
    for text in ("add", "T0", "T1", "1", "5", "declare"):
        assert text in str(caught.value)
    assert torch.equal(fd.execute([torch.ones(5), torch.ones(5)])[0], torch.full((5,), 2.0))


@pytest.mark.parametrize(("a", "b"), [((3, 4), (3, 5)), ((2, 4), (3, 4)), ((4,), (3, 5))])
def test_sizes_that_do_not_broadcast(a, b):
    with pytest.raises(meshfuse.Error, match=r"add.*T[01].*T[01]"):
        with FusionDefinition() as fd:
            fd.ops.add(fd.define_tensor(list(a)), fd.define_tensor(list(b)))


def test_expanded_input():
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 6], contiguity=[None, True])
        fd.add_output(fd.ops.add(a, fd.define_tensor([4, 6])))
    x, y = ramp(6).expand(4, 6), ramp(4, 6)
    assert torch.equal(fd.execute([x, y])[0], x + y)


# ---- divided over devices


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", UNARY)
def test_sharded_unary(name, axis):
    x = values(operand_dtype(name)).repeat(4, 1)
    with FusionDefinition() as fd:
        tv = fd.define_tensor([4, 6], dtype=dtype_of(x))
        fd.add_output(getattr(fd.ops, name)(tv))
        place(DeviceMesh(range(2)), tv)
        shard(tv, axis, 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x])
        # Vectorised and scalar code may differ in the last bit.
        torch.testing.assert_close(out, reference(name, x), equal_nan=True)
        assert sim.local(device=1).shape == ((2, 6) if axis == 0 else (4, 3))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("other", [(4, 6), (6,), (4, 1), (1, 6), (1, 1)], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_sharded_binary(name, other, axis):
    dtype = operand_dtype(name)
    x, y = values(dtype).repeat(4, 1), values(dtype, other=True).repeat(4, 1)
    y = y[tuple(slice(0, n) for n in other)] if len(other) == 2 else y[0]
    with FusionDefinition() as fd:
        tx = fd.define_tensor([4, 6], dtype=dtype_of(x))
        ty = fd.define_tensor(list(other), dtype=dtype_of(y))
        fd.add_output(getattr(fd.ops, name)(tx, ty))
        place(DeviceMesh(range(2)), tx, ty)
        shard(tx, axis, 2)
        own = axis - (2 - y.dim())
        if own >= 0 and y.size(own) > 1:
            shard(ty, own, 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x, y])
        torch.testing.assert_close(out, reference(name, x, y), equal_nan=True)
        assert sim.local(device=1).shape == ((2, 6) if axis == 0 else (4, 3))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_sharded_operand_beside_a_whole_one(which, axis):
    """The whole operand is cut on each device; nothing is sent."""
    x, y = ramp(4, 6), 10 * ramp(4, 6)
    with FusionDefinition() as fd:
        tvs = [fd.define_tensor([4, 6]), fd.define_tensor([4, 6])]
        fd.add_output(fd.ops.add(*tvs))
        place(DeviceMesh(range(2)), *tvs)
        shard(tvs[which], axis, 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, y])[0], x + y)
        for r in range(2):
            assert torch.equal(sim.local(device=r), block(x + y, axis, 2, r))
    assert communications(fd) == []


def test_operands_divided_on_different_axes():
    x, y = ramp(4, 6), 10 * ramp(4, 6)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([4, 6])
        fd.add_output(fd.ops.add(a, b))
        place(DeviceMesh(range(2)), a, b)
        shard(a, 0, 2)
        shard(b, 1, 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, y])[0], x + y)
    assert communications(fd) == ["all-to-all x"]


def test_product_then_bias_then_activation():
    """A column-parallel layer: every tensor takes the sharding of the weight."""
    torch.manual_seed(0)
    x, w, bias = torch.randn(3, 5), torch.randn(5, 8), torch.randn(8)
    with FusionDefinition() as fd:
        tx, tw, tb = fd.define_tensor([-1, 5]), fd.define_tensor([5, 8]), fd.define_tensor([8])
        fd.add_output(fd.ops.gelu(fd.ops.add(fd.ops.matmul(tx, tw), tb)))
        place(DeviceMesh(range(4)), tx, tw, tb)
        shard(tw, 1, 4)
        shard(tb, 0, 4)
    with meshfuse.simulate(4) as sim:
        (out,) = sim.run(fd, [x, w, bias])
        torch.testing.assert_close(out, torch.nn.functional.gelu(x @ w + bias))
        assert sim.local(device=3).shape == (3, 2)


# ---- ops with attributes


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate, dtype):
    x = torch.linspace(-4, 4, 33, dtype=dtype)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.gelu(fd.define_tensor([-1], dtype=dtype_of(x)), approximate))
    (out,) = fd.execute([x])
    assert out.dtype == dtype
    torch.testing.assert_close(out, torch.nn.functional.gelu(x, approximate=approximate))


def test_gelu_of_another_approximation():
    with pytest.raises(
        meshfuse.Error, match=r'gelu: approximate is \'exact\'. Use "none" or "tanh".'
    ):
        with FusionDefinition() as fd:
            fd.ops.gelu(fd.define_tensor([4]), "exact")


@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cast(dtype, to):
    x = values(dtype)
    with FusionDefinition() as fd:
        out = fd.ops.cast(
            fd.define_tensor([6], dtype=dtype_of(x)), dtype_of(torch.empty(0, dtype=to))
        )
        fd.add_output(out)
    if dtype.is_complex and not to.is_complex:
        want = (x != 0) if to == torch.bool else x.real.to(to)
    else:
        want = x.to(to)
    (result,) = fd.execute([x])
    assert result.dtype == to and torch.equal(result, want)


def test_cast_gives_16_bit_back():
    x = values(torch.bfloat16)
    with FusionDefinition() as fd:
        t = fd.define_tensor([6], dtype=DataType.BFloat16)
        s = fd.ops.add(t, t)
        fd.add_output(s)
        fd.add_output(fd.ops.cast(s, DataType.BFloat16))
    wide, narrow = fd.execute([x])
    assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(narrow, x + x)


@pytest.mark.parametrize("dims", stride_orders(3))
def test_permute(dims):
    x = ramp(2, 3, 4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([2, 3, 4])
        fd.add_output(fd.ops.permute(t, dims))
        fd.add_output(fd.ops.permute(t, [d - 3 for d in dims]))
        place(DeviceMesh(range(2)), t)
        shard(t, 2, 2)
    with meshfuse.simulate(2) as sim:
        outputs = sim.run(fd, [x])
        for k, out in enumerate(outputs):
            assert torch.equal(out, x.permute(dims))
            part = block(x.permute(dims), dims.index(2), 2, 1)
            assert torch.equal(sim.local(output=k, device=1), part)
            assert sim.local(output=k, device=1).is_contiguous()


@pytest.mark.parametrize("order", stride_orders(3))
def test_stride_order(order):
    x = ramp(2, 3, 4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([2, 3, 4])
        fd.add_output(fd.ops.stride_order(t, order))
        place(DeviceMesh(range(2)), t)
        shard(t, 2, 2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [x])
        assert torch.equal(out, x)
        assert_layout(sim.local(device=1), (2, 3, 2), dense_strides((2, 3, 2), order))


@pytest.mark.parametrize("op", ["permute", "stride_order"])
@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([0, 1], "argument to have the same length as input"),
        ([0, 1, 3], "dims argument is out of range, expects"),
        ([0, 1, -4], "dims argument is out of range, expects"),
        ([0, 1, 1], "duplicated dimension entries"),
        ([0, 1, -2], "duplicated dimension entries"),
    ],
)
def test_wrong_permutations(op, dims, message):
    with pytest.raises(meshfuse.Error, match=f"{op}.*{message}|{message}"):
        with FusionDefinition() as fd:
            getattr(fd.ops, op)(fd.define_tensor([2, 3, 4]), dims)


@pytest.mark.parametrize(
    "flags", [[False, True, False], [True, False, False], [False, False, True], [False, False],
              [True, False, True, False, True]],
)  # fmt: skip
def test_broadcast(flags):
    x = ramp(4, 6)
    want = x
    for i, new in enumerate(flags):
        want = want.unsqueeze(i) if new else want
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, 6])
        b = fd.ops.broadcast(t, flags)
        fd.add_output(b)
        fd.add_output(fd.ops.add(b, 1))
        place(DeviceMesh(range(2)), t)
        shard(t, 1, 2)
    with meshfuse.simulate(2) as sim:
        out, more = sim.run(fd, [x])
    assert out.shape == want.shape and torch.equal(out, want) and torch.equal(more, want + 1)


def test_broadcast_axis_broadcasts():
    """Row sums subtracted from rows, with an axis put back by hand."""
    x = ramp(4, 6)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1])
        s = fd.ops.broadcast(fd.ops.sum(t, [1]), [False, True])
        fd.add_output(fd.ops.sub(t, s))
    assert torch.equal(fd.execute([x])[0], x - x.sum(1, keepdim=True))


@pytest.mark.parametrize("flags", [[True, False], [False, False, False], []])
def test_wrong_broadcast(flags):
    message = "Invalid broadcast, number of false entries in is_broadcast_dim expected to be 2"
    with pytest.raises(meshfuse.Error, match=message):
        with FusionDefinition() as fd:
            fd.ops.broadcast(fd.define_tensor([4, 6]), flags)


def test_set_keeps_values_and_gives_new_memory():
    x = ramp(4, 6)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.set(fd.define_tensor([4, 6])))
    (out,) = fd.execute([x])
    assert torch.equal(out, x) and out.data_ptr() != x.data_ptr()
