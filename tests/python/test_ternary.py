# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise ops of three and four operands, and those with limits, against torch."""

from __future__ import annotations

import itertools

import pytest
import torch
from programs import communications, dtype_of, place, ramp, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
X = torch.tensor([-2.5, -1.0, 0.0, 0.5, 1.0, 2.5])
Y = torch.tensor([0.5, -1.5, 2.0, 1.0, 0.25, 3.0])
W = torch.tensor([0.25, 0.5, 0.75, 1.0, 0.0, -1.0])
COND = torch.tensor([True, False, True, True, False, False])


def run(op, *operands, **attributes):
    """Execute one op; tensors become inputs, numbers stay numbers."""
    with FusionDefinition() as fd:
        args = [
            fd.define_tensor(list(x.shape), dtype=dtype_of(x)) if isinstance(x, torch.Tensor) else x
            for x in operands
        ]
        fd.add_output(getattr(fd.ops, op)(*args, **attributes))
    return fd.execute([x for x in operands if isinstance(x, torch.Tensor)])[0]


def common(*operands):
    """Torch's promoted type; 16-bit floats become float32."""
    kinds = [torch.tensor(x) if not isinstance(x, torch.Tensor) else x for x in operands]
    dtype = kinds[0].dtype
    total = kinds[0]
    for other in kinds[1:]:
        dtype = torch.result_type(total, other)
        shaped = total.dim() + other.dim() > 0
        total = torch.empty(6 if shaped else (), dtype=dtype)
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def mixed(compute):
    """``compute`` of operands in their common type."""

    def reference(*operands):
        dtype = common(*operands)
        return compute(*(torch.as_tensor(x).to(dtype) for x in operands))

    return reference


REFERENCE = {
    "lerp": mixed(torch.lerp),
    "addcmul": mixed(lambda a, b, c, alpha: a + alpha * b * c),
    "add_alpha": mixed(lambda a, b, alpha: a + alpha * b),
    "sub_alpha": mixed(lambda a, b, alpha: a - alpha * b),
}


def compare(op, operands, rtol=None):
    """Compare with torch; what torch refuses must be refused."""
    try:
        want = REFERENCE[op](*operands)
    except RuntimeError:
        with pytest.raises(meshfuse.Error):
            run(op, *operands)
        return
    out = run(op, *operands)
    assert out.dtype == want.dtype
    torch.testing.assert_close(out, want, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["lerp", "add_alpha", "sub_alpha"])
def test_three_operands(op, dtype):
    compare(op, [X.to(dtype), Y.to(dtype), W.to(dtype)])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool], ids=str)
def test_addcmul(dtype):
    compare("addcmul", [X.to(dtype), Y.to(dtype), W.to(dtype), 2])
    compare("addcmul", [X.to(dtype), Y.to(dtype), W.to(dtype), Y.to(dtype)])


@pytest.mark.parametrize("numbers", list(itertools.product([False, True], repeat=3))[:-1], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("op", ["lerp", "add_alpha", "sub_alpha"])
def test_any_mix_of_tensors_and_numbers(op, dtype, numbers):
    operands = [0.75 if n else t.to(dtype) for n, t in zip(numbers, (X, Y, W), strict=True)]
    compare(op, operands)


@pytest.mark.parametrize("numbers", list(itertools.product([False, True], repeat=4))[:-1], ids=str)
def test_any_mix_in_addcmul(numbers):
    operands = [0.75 if n else t for n, t in zip(numbers, (X, Y, W, X), strict=True)]
    compare("addcmul", operands)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.float32, torch.float64),
        (torch.int64, torch.float32),
        (torch.int32, torch.int64),
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.int64),
        (torch.float64, torch.complex64),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", ["lerp", "add_alpha", "sub_alpha"])
def test_mixed_dtypes(op, a, b):
    compare(op, [X.to(a), Y.to(b), W.to(a)])
    compare(op, [X.to(b), Y.to(a), 2])


def test_lerp_of_integers():
    with pytest.raises(meshfuse.Error, match=r"lerp: T0 is .*no operand is floating point. Cast"):
        run("lerp", X.long(), Y.long(), 2)


def test_scalars_alone():
    with FusionDefinition() as fd:
        a, b, c = (fd.define_scalar(DataType.Double) for _ in range(3))
        fd.add_output(fd.ops.lerp(a, b, c))
        fd.add_output(fd.ops.addcmul(a, b, c, 2))
        fd.add_output(fd.ops.add_alpha(a, b, c))
        fd.add_output(fd.ops.sub_alpha(a, b, c))
    got = [t.item() for t in fd.execute([1.0, 3.0, 0.25])]
    assert got == [1.5, 2.5, 1.75, 0.25]


# ---- where


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_where(dtype):
    """Keeps 16-bit types."""
    x, y = X.to(dtype), Y.to(dtype)
    out = run("where", COND, x, y)
    assert out.dtype == dtype and torch.equal(out, torch.where(COND, x, y))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (1.5, 2.5),
        (1, 2),
        (1, 2.5),
        (True, 2),
        (True, False),
        (X, 2),
        (2.5, X),
        (X.half(), 2.5),
        (X.long(), 2.5),
        (X.long(), Y),
        (X.half(), Y.bfloat16()),
        (X.int(), Y.long()),
        (X, 1 + 2j),
    ],
    ids=lambda x: str(getattr(x, "dtype", x)),
)
def test_where_of_two_types(x, y):
    want = torch.where(COND, x, y)
    out = run("where", COND, x, y)
    assert out.dtype == want.dtype and torch.equal(out, want)


@pytest.mark.parametrize("condition", [True, False])
def test_where_of_one_condition(condition):
    assert torch.equal(run("where", condition, X, Y), X if condition else Y)


def test_where_broadcasts():
    cond = (ramp(3, 1) > 0)[..., None]
    x, y = ramp(4, 1), ramp(2, 3, 1, 5)
    assert torch.equal(run("where", cond, x, y), torch.where(cond, x, y))


@pytest.mark.parametrize("condition", [X, X.long(), 1, 0.5])
def test_where_needs_a_bool(condition):
    with pytest.raises(meshfuse.Error, match=r"where: Condition should be of DataType Bool.*T0"):
        run("where", condition, X, Y)


# ---- clamp and threshold


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-0.5, 1.5), (None, 1), (0, None), (2, -2)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_clamp(dtype, low, high):
    x = X.to(dtype)
    want = torch.clamp(x, low, high)
    for out in (run("clamp", x, low, high), run("clamp", x, min=low, max=high)):
        assert out.dtype == want.dtype and torch.equal(out, want)


def test_clamp_keeps_nan():
    x = torch.tensor([float("nan"), -5.0, 5.0])
    torch.testing.assert_close(run("clamp", x, -1, 1), x.clamp(-1, 1), equal_nan=True)


def test_clamp_without_limits():
    with pytest.raises(meshfuse.Error, match=r"clamp: neither min nor max is given for T0. Give"):
        run("clamp", X)


@pytest.mark.parametrize(("threshold", "value"), [(0, 7), (0.5, -2.5), (-1, 0)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_threshold(dtype, threshold, value):
    x = X.to(dtype)
    out = run("threshold", x, threshold, value)
    assert out.dtype == dtype
    assert torch.equal(out, torch.nn.functional.threshold(x, threshold, value))


def test_limits_may_be_inputs():
    with FusionDefinition() as fd:
        t = fd.define_tensor([6])
        low, high = (fd.define_scalar(DataType.Double) for _ in range(2))
        fd.add_output(fd.ops.clamp(t, low, high))
        fd.add_output(fd.ops.threshold(t, low, high))
    for a, b in ((-1.0, 1.0), (0.0, 2.0)):
        clamped, cut = fd.execute([X, a, b])
        assert torch.equal(clamped, X.clamp(a, b))
        assert torch.equal(cut, torch.nn.functional.threshold(X, a, b))


# ---- divided over devices


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["where", "lerp", "add_alpha"])
def test_divided(op, axis):
    """One operand is divided; the others are cut on each device, and nothing is sent."""
    a, b, c = ramp(4, 6), ramp(6) + 0.5, ramp(4, 1)
    first = a > 0 if op == "where" else a
    with FusionDefinition() as fd:
        tvs = [fd.define_tensor(list(x.shape), dtype=dtype_of(x)) for x in (first, b, c)]
        fd.add_output(getattr(fd.ops, op)(*tvs))
        place(DeviceMesh(range(2)), *tvs)
        shard(tvs[0], axis, 2)
    want = torch.where(first, b, c) if op == "where" else REFERENCE[op](first, b, c)
    with meshfuse.simulate(2) as sim:
        torch.testing.assert_close(sim.run(fd, [first, b, c])[0], want)
        assert sim.local(device=1).shape == ((2, 6) if axis == 0 else (4, 3))
    assert communications(fd) == []


# ---- operators of Python


def test_operators_on_integers():
    x, y = torch.tensor([-7, -2, 0, 3, 8]), torch.tensor([2, 3, 1, 2, 3])
    cases = [
        lambda a, b: a & b,
        lambda a, b: a | b,
        lambda a, b: a ^ b,
        lambda a, b: a << b,
        lambda a, b: a >> b,
        lambda a, b: a % b,
        lambda a, b: a // b,
        lambda a, b: a**b,
        lambda a, b: a & 3,
        lambda a, b: 3 | a,
        lambda a, b: 5 ^ a,
        lambda a, b: a << 1,
        lambda a, b: a >> 1,
        lambda a, b: 2**b,
        lambda a, b: 7 % b,
        lambda a, b: 7 // b,
        lambda a, b: 7 >> b,
        lambda a, b: 7 << b,
        lambda a, b: ~a,
        lambda a, b: -a,
        lambda a, b: abs(a),
    ]
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([5], dtype=DataType.Int) for _ in range(2))
        for case in cases:
            fd.add_output(case(a, b))
    for out, case in zip(fd.execute([x, y]), cases, strict=True):
        want = case(x, y)
        assert out.dtype == want.dtype and torch.equal(out, want)


def test_operators_on_scalars():
    with FusionDefinition() as fd:
        a, b = (fd.define_scalar(DataType.Int) for _ in range(2))
        fd.add_output(a % b)
        fd.add_output(a // b)
        fd.add_output(fd.ops.remainder(a, b))
        fd.add_output(fd.ops.truediv(a, b))
    assert [t.item() for t in fd.execute([-7, 2])] == [1, -4, 1, -3.5]


@pytest.mark.parametrize(
    ("op", "operands", "message"),
    [
        ("bitwise_and", (X, X.long()), r"bitwise_and: T0 is float.*takes integers and Bool. Cast"),
        ("bitwise_or", (X.long(), 0.5), r"bitwise_or: the scalar beside T0 is double.*integers"),
        ("gcd", (COND, COND), r"gcd: T0 is bool, and so is every operand.*takes integers. Cast"),
        ("nextafter", (X.half(), X), r"nextafter: T0 is __half.*takes Float and Double. Cast"),
        ("nextafter", (X, X.long()), r"nextafter: T1 is .*takes Float and Double. Cast"),
        ("imag", (X,), r"imag: T0 is float.*takes complex numbers. Cast"),
        ("complex", (X, X.long()), r"complex: T1 is .*floating point. Cast it first"),
        ("complex", (X, 1j), r"complex: the scalar beside T0 is a complex number. Give the two"),
    ],
)
def test_operands_that_an_op_does_not_take(op, operands, message):
    with pytest.raises(meshfuse.Error, match=message):
        run(op, *operands)


@pytest.mark.parametrize("x", [1e-300, 1e-20, 1e-8, 0.5, 1.0, 1.5, 1.9999])
def test_erfcinv_has_all_digits_of_small_numbers(x):
    out = run("erfcinv", torch.tensor([x], dtype=torch.float64))
    torch.testing.assert_close(
        torch.erfc(out), torch.tensor([x], dtype=torch.float64), rtol=1e-11, atol=0
    )


def test_part_of_one_complex_number_is_no_view_of_the_input():
    x = torch.tensor([1 + 2j])
    for op in ("real", "imag"):
        out = run(op, x)
        assert torch.equal(out, getattr(torch, op)(x))
        assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_parts_of_a_conjugate():
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    for op in ("real", "imag"):
        assert torch.equal(run(op, x), getattr(torch, op)(x))
