# SPDX-License-Identifier: BSD-3-Clause
"""Indexing ops against torch, whole and divided, and their errors."""

from __future__ import annotations

import pytest
import torch
from op_examples import indices, normal
from programs import communications, dtype_of, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, Error, FusionDefinition


def run(op, tensors, attributes, *, symbolic=False, dims=None, devices=2):
    """Run one op; ``dims``: the axis of each operand that is divided (None: whole)."""
    with FusionDefinition() as fd:
        tvs = [
            fd.define_tensor([-1] * t.dim() if symbolic else list(t.shape), dtype=dtype_of(t))
            for t in tensors
        ]
        results = getattr(fd.ops, op)(*tvs, **attributes)
        for tv in results if isinstance(results, tuple) else (results,):
            fd.add_output(tv)
        if dims is not None:
            mesh = DeviceMesh(range(devices))
            place(mesh, *tvs)
            for tv, dim in zip(tvs, dims, strict=True):
                if dim is not None:
                    shard(tv, dim, devices)
    if dims is None:
        return fd, fd.execute(list(tensors))
    with meshfuse.simulate(devices) as sim:
        return fd, sim.run(fd, tensors)


X = normal(4, 6, 8)


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
def test_index_select(dim, index_dtype, symbolic):
    index = torch.tensor([3, 0, 3, 1, 2], dtype=index_dtype)
    _, (out,) = run("index_select", (X, index), {"dim": dim}, symbolic=symbolic)
    torch.testing.assert_close(out, torch.index_select(X, dim, index))


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
@pytest.mark.parametrize("index", [0, 3, -1, -4])
def test_select(index, symbolic):
    _, (out,) = run("select", (X,), {"index": index, "dim": -3}, symbolic=symbolic)
    torch.testing.assert_close(out, X.select(0, index))


def test_select_of_a_scalar_input():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1])
        place_in = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.select(x, place_in, 2))
    for index in (5, 0, -8):
        torch.testing.assert_close(fd.execute([X, index])[0], X.select(2, index))
    with pytest.raises(Error, match=r"index 8 is out of the range of axis 2 of T0, which has size"):
        fd.execute([X, 8])


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_gather_of_a_smaller_index(dim, symbolic):
    index = indices(2, 3, 5, below=4)
    _, (out,) = run("gather", (X, index), {"dim": dim}, symbolic=symbolic)
    torch.testing.assert_close(out, X.gather(dim, index))


def test_take_along_axis_names_and_broadcasting():
    a, index = normal(4, 1, 8), indices(4, 6, 3, below=8)
    for name in ("arg", "arg1"):
        with FusionDefinition() as fd:
            x = fd.define_tensor([4, 1, 8])
            i = fd.define_tensor([4, 6, 3], dtype=DataType.Int)
            fd.add_output(fd.ops.take_along_axis(**{name: x}, index=i, dim=-1))
        torch.testing.assert_close(fd.execute([a, index])[0], torch.take_along_dim(a, index, 2))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
def test_scatter_of_a_tensor(dim, symbolic):
    index = torch.randperm(4, generator=torch.Generator().manual_seed(1)).reshape(4, 1, 1)
    if dim != 0:
        index = index.transpose(0, dim)
    index = index.contiguous()
    src = normal(4, 4, 4)
    _, (out,) = run("scatter", (X, index, src), {"dim": dim}, symbolic=symbolic)
    torch.testing.assert_close(out, X.scatter(dim, index, src))


@pytest.mark.parametrize("value", [2.5, 3, -1.0])
def test_scatter_of_a_number_keeps_the_operand(value):
    index = indices(4, 6, 2, below=8)
    before = X.clone()
    _, (out,) = run("scatter", (X, index), {"src": value, "dim": 2})
    torch.testing.assert_close(out, X.scatter(2, index, value))
    assert torch.equal(X, before)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
def test_topk(k, dim, largest, symbolic):
    attributes = {"k": k, "dim": dim, "largest": largest, "sorted": True}
    _, (v, i) = run("topk", (X,), attributes, symbolic=symbolic)
    want = torch.topk(X, k, dim, largest, True)
    torch.testing.assert_close(v, want.values)
    assert i.dtype == torch.int64 and torch.equal(i, want.indices)


def test_topk_as_many_as_another_axis_has():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1])
        v, i = fd.ops.topk(x, fd.ops.size(x, 0), 1, True, True)
        fd.add_output(v)
        fd.add_output(i)
    v, i = fd.execute([X])
    want = X.topk(4, 1)
    torch.testing.assert_close(v, want.values)
    assert torch.equal(i, want.indices)
    with pytest.raises(Error, match=r"Invalid resized domain extent: k \(7\) is not in the range"):
        fd.execute([normal(7, 6, 1)])


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("descending", [True, False])
def test_argsort(descending, stable):
    x = X if not stable else (X * 2).round()
    _, (out,) = run("argsort", (x,), {"dim": 1, "descending": descending, "stable": stable})
    assert torch.equal(out, torch.argsort(x, dim=1, descending=descending, stable=stable))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embedding(shape, dtype):
    weight = normal(8, 6).to(dtype)
    index = indices(*shape, below=8) if shape else torch.tensor(3)
    _, (out,) = run("embedding_fwd", (index, weight), {"padding_idx": -1})
    torch.testing.assert_close(out, torch.nn.functional.embedding(index, weight))


@pytest.mark.parametrize("norm_type", [None, 1.0, 2.0])
def test_embedding_max_norm_scales_the_weight(norm_type):
    weight, index = normal(8, 6), torch.tensor([[1, 2], [2, 5]])
    mine, theirs = weight.clone(), weight.clone()
    _, (out,) = run("embedding_fwd", (index, mine), {"max_norm": 1.5, "norm_type": norm_type})
    want = torch.nn.functional.embedding(index, theirs, max_norm=1.5, norm_type=norm_type or 2.0)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(mine, theirs)
    assert not torch.equal(mine, weight)


def test_embedding_max_norm_of_a_divided_weight():
    with pytest.raises(Error, match=r"max_norm scales .* in place, but it is a copy of T1"):
        run("embedding_fwd", (indices(4), normal(8, 6)), {"max_norm": 1.0}, dims=(None, 0))


LOCAL = {
    "index_select_rows": ("index_select", (X, indices(6, below=6)), {"dim": 1}, (0, None)),
    "index_select_index": ("index_select", (X, indices(6, below=6)), {"dim": 1}, (None, 0)),
    "select": ("select", (X,), {"index": 1, "dim": 1}, (0,)),
    "gather": ("gather", (X, indices(4, 6, 2, below=8)), {"dim": 2}, (0, 0)),
    "gather_along": ("gather", (X, indices(4, 6, 2, below=8)), {"dim": 2}, (None, 2)),
    "take_along_axis": ("take_along_axis", (X, indices(4, 6, 2, below=8)), {"dim": 2}, (1, 1)),
    "scatter": ("scatter", (X, indices(4, 6, 8, below=8), X + 1), {"dim": 2}, (0, 0, 0)),
    "topk": ("topk", (X,), {"k": 3, "dim": 2, "sorted": True}, (0,)),
    "argsort": ("argsort", (X,), {"dim": 2}, (1,)),
    "embedding_index": ("embedding_fwd", (indices(4, 6), normal(16, 6)), {}, (0, None)),
    "embedding_columns": ("embedding_fwd", (indices(4, 6), normal(16, 6)), {}, (None, 1)),
}
GATHERED = {
    "index_select": ("index_select", (X, indices(6, below=6)), {"dim": 1}, (1, None)),
    "select": ("select", (X,), {"index": 1, "dim": 1}, (1,)),
    "gather": ("gather", (X, indices(4, 6, 2, below=8)), {"dim": 2}, (2, None)),
    "gather_smaller": ("gather", (X, indices(2, 6, 2, below=8)), {"dim": 2}, (0, 0)),
    "take_along_axis": ("take_along_axis", (X, indices(4, 6, 2, below=8)), {"dim": 2}, (2, None)),
    "topk": ("topk", (X,), {"k": 3, "dim": 2, "sorted": True}, (2,)),
    "argsort": ("argsort", (X,), {"dim": 2}, (2,)),
    "embedding_rows": ("embedding_fwd", (indices(4, 6), normal(16, 6)), {}, (None, 0)),
}


@pytest.mark.parametrize("case", LOCAL)
def test_axes_that_are_not_indexed_need_no_communication(case):
    op, tensors, attributes, dims = LOCAL[case]
    fd, found = run(op, tensors, attributes, dims=dims)
    assert communications(fd) == []
    _, whole = run(op, tensors, attributes)
    for got, want in zip(found, whole, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("case", GATHERED)
def test_indexed_axes_are_gathered(case):
    op, tensors, attributes, dims = GATHERED[case]
    fd, found = run(op, tensors, attributes, dims=dims)
    assert set(communications(fd)) == {"all-gather x"}
    _, whole = run(op, tensors, attributes)
    for got, want in zip(found, whole, strict=True):
        assert torch.equal(got, want)


@pytest.mark.cpu_only("torch checks indices of other devices itself, when the device gets to them")
@pytest.mark.parametrize("bad", [-1, 6])
@pytest.mark.parametrize("op", ["index_select", "gather", "take_along_axis", "scatter"])
def test_index_out_of_range(op, bad):
    index = torch.tensor([2, bad, 0])
    attributes = {"dim": 1}
    if op != "index_select":
        index = index.reshape(1, 3, 1).repeat(4, 1, 8)
    if op == "scatter":
        attributes["src"] = 1.0
    with pytest.raises(
        Error, match=rf"{op}: T1 holds the index {bad}, but axis 1 of T0 has size 6\. Give indices"
    ):
        run(op, (X, index), attributes, symbolic=True)


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_index_larger_than_the_operand(op, symbolic):
    """On the axes but dim the index may be smaller, not larger."""
    more = {"dim": 1} | ({"src": 1.0} if op == "scatter" else {})
    index = torch.zeros(4, 7, 9, dtype=torch.int64)
    message = (
        rf"{op}: axis 2 of T1 has size 9 but axis 2 of T0 has size 8, and an index may not be "
        r"larger there\. Give a smaller index, or a larger arg"
    )
    with pytest.raises(Error, match=message) as caught:
        run(op, (X, index), more, symbolic=symbolic)
    assert (caught.value.tensor, caught.value.axis) == ("T1", 2)


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbolic"])
def test_index_larger_than_what_is_scattered(symbolic):
    index, src = torch.zeros(4, 6, 8, dtype=torch.int64), normal(4, 5, 8)
    message = r"scatter: axis 1 of T1 has size 6 but axis 1 of T2 has size 5, .* a larger src\."
    with pytest.raises(Error, match=message):
        run("scatter", (X, index, src), {"dim": 1}, symbolic=symbolic)


@pytest.mark.cpu_only("torch checks indices of other devices itself, when the device gets to them")
def test_embedding_index_out_of_range():
    with pytest.raises(Error, match=r"T0 holds the index 8, but axis 0 of T1 has size 8\. Give"):
        run("embedding_fwd", (torch.tensor([1, 8]), normal(8, 6)), {})


@pytest.mark.parametrize("dim", [3, -4])
@pytest.mark.parametrize(
    "op", ["index_select", "select", "gather", "take_along_axis", "scatter", "topk", "argsort"]
)
def test_axis_out_of_range(op, dim):
    more = {
        "index_select": {"index": 1},
        "select": {"index": 0},
        "gather": {"index": 3},
        "take_along_axis": {"index": 3},
        "scatter": {"index": 3, "src": 1.0},
        "topk": {"k": 1},
    }.get(op, {})
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6, 8])
        if op != "select" and "index" in more:
            more["index"] = fd.define_tensor([2] * more["index"], dtype=DataType.Int)
        with pytest.raises(Error, match="Tried to access out of boundary index") as caught:
            getattr(fd.ops, op)(x, dim=dim, **more)
        fd.add_output(x)
    assert f"index {dim}. total index: 3. " in str(caught.value)
    assert "so dim argument must satisfy -3 <= dim < 3 for T0" in str(caught.value)
    assert caught.value.tensor == "T0" and caught.value.axis == dim


def definition_error(build):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        index = fd.define_tensor([4], dtype=DataType.Int)
        fd.add_output(x)
        with pytest.raises(Error) as caught:
            build(fd, x, index)
    return str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda fd, x, i: fd.ops.gather(x, i, 0),
            "gather: Tensor arguments have different dimensions. "
            "Tensor arguments have dimension 2 (T0) and 1 (T1). Give",
        ),
        (
            lambda fd, x, i: fd.ops.index_select(i, fd.ops.cast(x, DataType.Int), 0),
            "index_select: Tensor arguments have dimension 1 (T1) and 2 (T2), but the index must",
        ),
        (lambda fd, x, i: fd.ops.gather(x, x, 0), "gather: indices must be integers, but T0 is"),
        (lambda fd, x, i: fd.ops.select(x, 0.5, 0), "select: the index into T0 is double. Give"),
        (lambda fd, x, i: fd.ops.topk(x, -1), "topk: Invalid resized domain extent: k (-1)"),
        (
            lambda fd, x, i: fd.ops.embedding_fwd(i, i),
            "embedding_fwd: Expected weight to be 2-D, but T1 has 1 axes. Give",
        ),
        (
            lambda fd, x, i: fd.ops.scatter(i, i, fd.define_tensor([4]), 0),
            "scatter: T2 is float but T1 is int64_t. Cast one of them.",
        ),
    ],
    ids=["rank", "index_rank", "type", "select", "topk", "weight", "src"],
)
def test_definition_errors(build, message):
    assert definition_error(build).startswith(message)


def test_topk_of_more_than_there_are():
    with pytest.raises(Error, match=r"k \(9\) is not in the range of axis 2 of T0, which has size"):
        run("topk", (X,), {"k": 9})
