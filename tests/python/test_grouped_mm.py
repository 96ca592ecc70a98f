# SPDX-License-Identifier: BSD-3-Clause
"""Products of groups against one torch product per group."""

from __future__ import annotations

import pytest
import torch
from op_examples import grouped_product, normal
from programs import X, communications, dtype_of, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, Error, FusionDefinition, UnsupportedError

ENDS = torch.tensor([3, 3, 8, 12], dtype=torch.int32)
FORMS = {"m": ((12, 8), (4, 8, 6)), "k": ((6, 12), (12, 8)), "n": ((4, 6, 8), (8, 12))}


def define(fd, *tensors, symbolic=False):
    return [
        fd.define_tensor([-1] * t.dim() if symbolic else list(t.shape), dtype=dtype_of(t))
        for t in tensors
    ]


def operands(form, dtype=torch.float32):
    return [normal(*shape).to(dtype) for shape in FORMS[form]]


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half], ids=str
)
@pytest.mark.parametrize("form", FORMS)
def test_grouped_mm(form, dtype, symbolic):
    """An empty group stands among the others."""
    a, b = operands(form, dtype)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.grouped_mm(*define(fd, a, b, ENDS, symbolic=symbolic)))
    (out,) = fd.execute([a, b, ENDS])
    torch.testing.assert_close(out, grouped_product(a, b, ENDS))


@pytest.mark.parametrize("form", FORMS)
def test_operands_in_any_memory_order(form):
    a, b = operands(form)
    a, b = (t.transpose(-2, -1).contiguous().transpose(-2, -1) for t in (a, b))
    with FusionDefinition() as fd:
        tvs = [
            fd.define_tensor(list(t.shape), list(t.stride()), dtype=dtype_of(t))
            for t in (a, b, ENDS)
        ]
        fd.add_output(fd.ops.grouped_mm(*tvs))
    (out,) = fd.execute([a, b, ENDS])
    torch.testing.assert_close(out, grouped_product(a, b, ENDS))


def run_divided(form, dims, d=2):
    a, b = operands(form)
    with FusionDefinition() as fd:
        tvs = define(fd, a, b, ENDS)
        out = fd.ops.grouped_mm(*tvs)
        fd.add_output(out)
        place(DeviceMesh(range(d)), *tvs)
        for tv, dim in zip(tvs, dims, strict=True):
            if dim is not None:
                shard(tv, dim, d)
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [a, b, ENDS])
    # Sums of other partial products than torch's.
    torch.testing.assert_close(out, grouped_product(a, b, ENDS), rtol=1e-5, atol=1e-5)
    return communications(fd)


@pytest.mark.parametrize(
    ("form", "dims"),
    [
        ("m", (None, 2, None)),
        ("k", (0, None, None)),
        ("k", (None, 1, None)),
        ("n", (1, None, None)),
    ],
)
def test_column_parallel_is_local(form, dims):
    assert run_divided(form, dims) == []


@pytest.mark.parametrize(("form", "dims"), [("m", (1, 1, None)), ("n", (2, 0, None))])
def test_row_parallel_sums_once(form, dims):
    assert run_divided(form, dims) == ["all-reduce x"]


@pytest.mark.parametrize(
    ("form", "dims"),
    [
        ("m", (0, None, None)),
        ("m", (None, 0, None)),
        ("m", (None, None, 0)),
        ("k", (1, 0, None)),
        ("n", (None, 1, None)),
        ("n", (0, None, 0)),
    ],
)
def test_groups_and_the_axis_that_they_cut_are_gathered(form, dims):
    assert set(run_divided(form, dims)) == {"all-gather x"}


@pytest.mark.parametrize("declare_output", [True, False])
def test_row_parallel_by_rfactor(declare_output):
    """The reduction axis is cut and factored out by hand."""
    a, b = operands("m")
    d = 2
    with FusionDefinition() as fd:
        tvs = define(fd, a, b, ENDS)
        out = fd.ops.grouped_mm(*tvs)
        fd.add_output(out)
        place(DeviceMesh(range(d)), *tvs, out)
        shard(tvs[0], 1, d)
        shard(tvs[1], 1, d)
        out.outer_split(-1, d)
        partial = out.rfactor([-1])
        partial.axis(-2).parallelize(X)
        out.axis(-1).parallelize(X)
    with meshfuse.simulate(d) as sim:
        (got,) = sim.run(fd, [a, b, ENDS])
    torch.testing.assert_close(got, grouped_product(a, b, ENDS), rtol=1e-5, atol=1e-5)
    assert communications(fd) == ["all-reduce x"]


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([3, 2, 8, 12], r"offsets T2 hold 2 after 3\. Give the ends"),
        ([-1, 3, 8, 12], r"offsets T2 hold -1 after 0\. Give the ends"),
        (
            [3, 5, 8, 11],
            r"the last of the offsets T2 is 11, but axis 0 of T0, .*, has size 12\. Give",
        ),
        ([3, 5, 8, 13], r"the last of the offsets T2 is 13, but axis 0 of T0"),
    ],
)
def test_bad_offsets(ends, message):
    a, b = operands("m")
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.grouped_mm(*define(fd, a, b, ENDS)))
    with pytest.raises(Error, match=message):
        fd.execute([a, b, torch.tensor(ends, dtype=torch.int32)])


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        (([4, 6, 8], [4, 8, 6], [4]), None, "T0 and T1 both have 3 axes.*Use matmul"),
        (([8], [8, 6], [4]), None, "T0 has 1 axes and T1 has 2. Give"),
        (([6, 8], [4, 8, 6], [4, 1]), None, "offsets T2 has 2 axes"),
        (([6, 8], [4, 8, 6], [5]), None, "axis 0 of T1 has size 4 but axis 0 of T2 has size 5"),
        (([6, 8], [4, 9, 6], [4]), None, "axis 1 of T0 has size 8 but axis 1 of T1 has size 9"),
        (([6, 8], [4, 8, 6], [4]), {2: DataType.Int}, "offsets T2 has 1 axes and is int64_t"),
        (([6, 8], [4, 8, 6], [4]), {1: DataType.Half}, "T0 is float and T1 is __half. Cast"),
    ],
)
def test_definition_errors(shapes, dtypes, message):
    types = {0: DataType.Float, 1: DataType.Float, 2: DataType.Int32} | (dtypes or {})
    with FusionDefinition() as fd:
        tvs = [fd.define_tensor(s, dtype=types[i]) for i, s in enumerate(shapes)]
        fd.add_output(tvs[0])
        with pytest.raises(Error, match=message):
            fd.ops.grouped_mm(*tvs)


def test_scaled_products_are_unsupported():
    with FusionDefinition() as fd:
        a, b, ends = define(fd, *operands("m"), ENDS)
        scale = fd.define_tensor([12, 1])
        fd.add_output(a)
        with pytest.raises(UnsupportedError, match=r"Multiply by the scales first"):
            fd.ops.grouped_mm(a, b, ends, scale, scale)
        for name in ("scaled_mm", "cutlass_nvfp4_grouped_mm", "nv_block_quantize"):
            with pytest.raises(UnsupportedError, match=rf"^{name} .*ATen"):
                getattr(fd.ops, name)(a, b)
            with pytest.raises(NotImplementedError):
                getattr(meshfuse.ops, name)(a, b)
