# SPDX-License-Identifier: BSD-3-Clause
"""Divisions of integers: by -1, where the least integer has no quotient, and by 0."""

from __future__ import annotations

import pytest
import torch
from programs import dtype_of, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, Error, FusionDefinition

QUOTIENTS, REMAINDERS = ["div", "floor_divide"], ["fmod", "mod", "remainder"]
NAMES = QUOTIENTS + REMAINDERS
dtypes = pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
names = pytest.mark.parametrize("name", NAMES)


def run(name, left, right):
    """Run one op on tensors and numbers."""
    with FusionDefinition() as fd:
        operands = [
            fd.define_tensor([-1], dtype=dtype_of(x)) if isinstance(x, torch.Tensor) else x
            for x in (left, right)
        ]
        fd.add_output(getattr(fd.ops, name)(*operands))
    (out,) = fd.execute([x for x in (left, right) if isinstance(x, torch.Tensor)])
    return out


def by_minus_one(name, x):
    """What ``name`` gives for -1: integers wrap around, as they do in torch's neg."""
    return -x if name in QUOTIENTS else torch.zeros_like(x)


@dtypes
@names
def test_least_integer_by_minus_one(name, dtype):
    """The processor's division faults there, and ended the process."""
    least = torch.iinfo(dtype).min
    x = torch.tensor([least, least, least + 1, 7, -7], dtype=dtype)
    ones = torch.tensor([-1, 1, -1, -1, -1], dtype=dtype)
    want = torch.where(ones == -1, by_minus_one(name, x), x if name in QUOTIENTS else 0)
    out = run(name, x, ones)
    assert out.dtype == dtype and torch.equal(out, want)
    assert torch.equal(run(name, x, -1), by_minus_one(name, x))


@names
def test_least_integer_as_a_number(name):
    least = -(2**63)
    x = torch.tensor([-1, 1, 3])
    want = {"div": [least, least, -3074457345618258602], "floor_divide": [least, least, least // 3]}
    want |= {"fmod": [0, 0, -2]} | {n: [0, 0, least % 3] for n in ("mod", "remainder")}
    assert run(name, least, x).tolist() == want[name]


@names
def test_number_that_is_minus_one_in_a_narrower_type(name):
    """2**32 - 1 has the bits of -1 in Int32."""
    x = torch.tensor([torch.iinfo(torch.int32).min, 5], dtype=torch.int32)
    assert torch.equal(run(name, x, 2**32 - 1), by_minus_one(name, x))


@names
def test_divisors_of_all_signs(name):
    x = torch.arange(-6, 6).repeat_interleave(6)
    y = torch.tensor([-3, -2, -1, 1, 2, 3]).repeat(12)
    torch_op = {
        "div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "mod": torch.remainder,
    }.get(name) or getattr(torch, name)
    assert torch.equal(run(name, x, y), torch_op(x, y))


def test_divided_over_devices():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([4], dtype=DataType.Int) for _ in range(2))
        fd.add_output(fd.ops.div(x, y))
        place(DeviceMesh(range(2)), x, y)
        shard(x, 0, 2)
    least = torch.tensor([-(2**63), 8, -(2**63), 8])
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [least, torch.tensor([-1, -1, 2, 2])])
    assert out.tolist() == [-(2**63), -8, -(2**62), 4]


@pytest.mark.cpu_only("divisors on other devices are not looked at: the host would have to wait")
@names
def test_tensor_with_zeros(name):
    message = rf"{name}: T1 is 0 at \[2\] of this device's part, and T0 are integers"
    with pytest.raises(Error, match=message) as caught:
        run(name, torch.tensor([1, 2, 3]), torch.tensor([1, -1, 0]))
    assert caught.value.tensor == "T1"


@names
def test_the_number_zero(name):
    """It is told when the program is defined."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Int)
        with pytest.raises(Error, match=rf"{name}: T0 is divided by 0, and integers have no"):
            getattr(fd.ops, name)(x, 0)


def test_scalar_input_that_is_zero():
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1], dtype=DataType.Int), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.div(x, s))
    assert fd.execute([torch.tensor([6]), 2])[0].tolist() == [3]
    with pytest.raises(Error, match=r"div: T0 is divided by \w+, which is 0, and integers have no"):
        fd.execute([torch.tensor([6]), 0])
    assert fd.execute([torch.tensor([6]), 3])[0].tolist() == [2]


@names
def test_floats_divide_by_zero(name):
    x = torch.tensor([1.0, -2.0])
    assert not run(name, x, 0).isfinite().any()
    assert not run(name, torch.tensor([1, 2]), 0.0).isfinite().any()


def test_empty_tensors_have_no_zeros():
    empty = torch.empty(0, dtype=torch.int64)
    assert run("div", empty, empty).numel() == 0
