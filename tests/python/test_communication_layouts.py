# SPDX-License-Identifier: BSD-3-Clause
"""What communications give on two devices, with the strides and the copies that they take."""

from __future__ import annotations

import pytest
import torch
from programs import X, Y, assert_layout, communications, lay, part_of, ramp

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition

PAIR = DeviceMesh([0, 1])
T = torch.arange(24.0).reshape(4, 6)


def assignment(before, after, t=T, order=None, mesh=PAIR, new_mesh=PAIR):
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(t.shape))
        out = fd.ops.set(x)
        fd.add_output(out, stride_order=order)
        lay(x, mesh, before)
        lay(out, new_mesh, after)
    return fd


# Cuts before and after, declared stride order, and strides of the result.
LAYOUTS = {
    "gather_rows": ([(0, X)], [], None, (6, 1)),
    "gather_rows_to_columns_first": ([(0, X)], [], [0, 1], (1, 4)),
    "gather_columns": ([(1, X)], [], None, (1, 4)),
    "gather_columns_row_major": ([(1, X)], [], [1, 0], (6, 1)),
    "gather_columns_columns_first": ([(1, X)], [], [0, 1], (1, 4)),
    "cut": ([], [(0, X)], None, (6, 1)),
    "cut_columns": ([], [(1, X)], None, (3, 1)),
    "exchange": ([(0, X)], [(1, X)], None, (3, 1)),
    "exchange_columns_first": ([(0, X)], [(1, X)], [0, 1], (1, 4)),
    "exchange_back": ([(1, X)], [(0, X)], [1, 0], (6, 1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides(name):
    before, after, order, strides = LAYOUTS[name]
    fd = assignment(before, after, order=order)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [T])[0], T)
        for r in range(2):
            part = part_of(T, PAIR, after, r)
            assert torch.equal(sim.local(device=r), part)
            assert_layout(sim.local(device=r), part.shape, strides)


@pytest.mark.parametrize("views", [False, True], ids=["dense", "views"])
@pytest.mark.parametrize(
    ("cuts", "order"), [([(0, X)], None), ([(1, X)], None), ([(1, X)], [1, 0])]
)
def test_layout_of_inputs_does_not_matter(cuts, order, views):
    """Parts that are views with other strides are sent by value."""
    fd = assignment(cuts, [], order=order)
    parts = [part_of(T, PAIR, cuts, r) for r in range(2)]
    if not views:
        parts = [p.contiguous() for p in parts]
    with meshfuse.simulate(2) as sim:
        for (out,) in sim.execute(fd, [[p] for p in parts]):
            assert torch.equal(out, T)
        for (out,) in sim.execute(fd, [[p.t().contiguous().t()] for p in parts]):
            assert torch.equal(out, T)


def test_gathered_transposed_view():
    """Sending storage in memory order would give 0, 1, 2, ... row by row."""
    t = torch.arange(10.0).reshape(2, 5).t()
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 2])
        out = fd.ops.set(x)
        fd.add_output(out)
        lay(x, PAIR, [(1, X)])
        lay(out, PAIR)
    with meshfuse.simulate(2) as sim:
        for (out,) in sim.execute(fd, [[t[:, :1]], [t[:, 1:]]]):
            assert out.tolist() == [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]]


def partial_sum(after):
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 4])
        out = fd.ops.sum(x, [0])
        fd.add_output(out)
        x.set_device_mesh(PAIR)
        x.axis(0).parallelize(X)  # rank r holds row r, sizes (1, 4)
        lay(out, PAIR, after)
    return fd


@pytest.mark.parametrize(
    ("after", "parts", "kind"),
    [
        ([], [[10, 21, 32, 43]] * 2, "all-reduce x"),
        ([(1, X)], [[10, 21], [32, 43]], "reduce-scatter x"),
    ],
)
def test_partial_rows(after, parts, kind):
    rows = torch.tensor([[0.0, 1, 2, 3], [10, 20, 30, 40]])
    fd = partial_sum(after)
    with meshfuse.simulate(2) as sim:
        outputs = sim.execute(fd, [[rows[:1]], [rows[1:]]])
        assert [out.tolist() for (out,) in outputs] == parts
    assert communications(fd) == [kind]


def test_dispatch():
    """Rows to columns where a device has one row."""
    t = torch.arange(8.0).reshape(2, 4)
    fd = assignment([(0, X)], [(1, X)], t)
    with meshfuse.simulate(2) as sim:
        sim.run(fd, [t])
        assert sim.local(device=0).tolist() == [[0, 1], [4, 5]]
        assert sim.local(device=1).tolist() == [[2, 3], [6, 7]]


def test_broadcast_to_a_larger_mesh():
    fd = assignment([], [], mesh=DeviceMesh([0]))
    with meshfuse.simulate(2) as sim:
        first, second = sim.execute(fd, [[T], [torch.empty(0)]])
        assert torch.equal(first[0], T) and torch.equal(second[0], T)
        first[0].zero_()
        assert torch.equal(second[0], T) and T.sum() == 276


def test_gather_at_one_device():
    fd = assignment([(0, X)], [], new_mesh=DeviceMesh([1]))
    with meshfuse.simulate(2) as sim:
        first, second = sim.execute(fd, [[T[:2]], [T[2:]]])
    assert first[0].shape == (0, 6) and torch.equal(second[0], T)


@pytest.mark.parametrize(
    ("after", "axis"), [([(0, Y)], 0), ([(1, X)], 1)], ids=["x_gathered", "y_gathered"]
)
def test_teams_of_a_square(after, axis):
    """Teams {0, 1} and {2, 3} over x, {0, 2} and {1, 3} over y."""
    mesh = DeviceMesh(torch.arange(4).reshape(2, 2))
    fd = assignment([(0, Y), (1, X)], after, mesh=mesh, new_mesh=mesh)
    want = [T[:2], T[:2], T[2:], T[2:]] if axis == 0 else [T[:, :3], T[:, 3:]] * 2
    with meshfuse.simulate(4) as sim:
        sim.run(fd, [T])
        for r in range(4):
            assert torch.equal(sim.local(device=r), want[r])


@pytest.mark.parametrize("what", ["same", "cut", "gather"])
@pytest.mark.parametrize("devices", [1, 2])
def test_result_is_not_the_input(what, devices):
    """Results have storage of their own, also where nothing is sent; inputs stay as they are."""
    cuts = {"same": ([], []), "cut": ([], [(0, X)]), "gather": ([(0, X)], [])}[what]
    mesh = DeviceMesh(range(devices))
    fd = assignment(*cuts, mesh=mesh, new_mesh=mesh)
    given = [part_of(ramp(4, 6), mesh, cuts[0], r).clone() for r in range(devices)]
    kept = [g.clone() for g in given]
    with meshfuse.simulate(devices) as sim:
        outputs = sim.execute(fd, [[g] for g in given])
    storages = {t.untyped_storage().data_ptr() for t in given + [o for (o,) in outputs]}
    assert len(storages) == 2 * devices
    for (out,) in outputs:
        out.zero_()
    for g, k in zip(given, kept, strict=True):
        assert torch.equal(g, k) and g.stride() == k.stride()


@pytest.mark.parametrize("order", [None, [1, 0], [0, 1]])
@pytest.mark.parametrize("cuts", [[(0, X)], [(1, X)]], ids=["rows", "columns"])
def test_reduce_scatter_of_a_product(cuts, order):
    """A declared memory order is kept; else that of the communication."""
    a, b = ramp(4, 6), ramp(6, 4)
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([4, 6]), fd.define_tensor([6, 4])
        out = fd.ops.matmul(x, y)
        fd.add_output(out, stride_order=order)
        lay(x, PAIR, [(1, X)])
        lay(y, PAIR, [(0, X)])
        lay(out, PAIR, cuts)
    scattered_first = {None: {0: (4, 1), 1: (1, 4)}[cuts[0][0]]}
    strides = {(1, 0): (4, 1) if cuts[0][0] == 0 else (2, 1),
               (0, 1): (1, 2) if cuts[0][0] == 0 else (1, 4)}  # fmt: skip
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [a, b])[0], a @ b)
        for r in range(2):
            part = part_of(a @ b, PAIR, cuts, r)
            want = scattered_first[None] if order is None else strides[tuple(order)]
            assert_layout(sim.local(device=r), part.shape, want)
    assert communications(fd) == ["reduce-scatter x"]
