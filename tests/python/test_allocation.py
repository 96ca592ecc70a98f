# SPDX-License-Identifier: BSD-3-Clause
"""Local sizes and strides of results: memory orders, splits over devices, merged axes, messages."""

from __future__ import annotations

import pytest
import torch
from programs import (
    X,
    Y,
    assert_layout,
    block,
    dense_strides,
    matmul_cut,
    place,
    ramp,
    shard,
    sharded_matmul,
    stride_orders,
)

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition

MESH = DeviceMesh(range(2))
SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))


def outer(axis):
    return lambda tv: shard(tv, axis, 2)


def inner(axis):
    return lambda tv: shard(tv, axis, 2, inner=True)


def nested(axis):
    """Two blocks stay on every device; each is cut in two over the devices."""

    def schedule(tv):
        tv.split(axis, 2, False)
        shard(tv, axis + 1, 2)

    return schedule


def on_both(axis, first, second):
    def schedule(tv):
        shard(tv, axis, 2, first)
        shard(tv, axis + 1, 2, second)

    return schedule


def chain(*schedules):
    def schedule(tv):
        for one in schedules:
            one(tv)

    return schedule


def nothing(tv):
    pass


def halves(axis):
    return lambda t, r: block(t, axis, 2, r)


def strided(axis):
    return lambda t, r: t.index_select(axis, torch.arange(r, t.size(axis), 2))


def yx(axis):
    """On the square mesh, y first: device 2y + x has block 2y + x."""
    return lambda t, r: block(t, axis, 4, r)


def xy(axis):
    return lambda t, r: block(t, axis, 4, 2 * (r % 2) + r // 2)


def pieces_of_blocks(axis):
    return lambda t, r: t.unflatten(axis, (2, 2, -1)).select(axis + 1, r).flatten(axis, axis + 1)


# mesh, shapes, schedules of a, b and the result, stride order, local sizes and strides, local part
TABLE = {
    "n": (MESH, (2, 1024, 2), (2, 1536), nothing, outer(1), outer(2), None,
          (2, 1024, 768), (786432, 768, 1), halves(2)),
    "column-major, n": (MESH, (4, 5), (5, 6), nothing, outer(1), outer(1), (0, 1),
                        (4, 3), (1, 4), halves(1)),
    "column-major, m": (MESH, (4, 5), (5, 6), outer(0), nothing, outer(0), (0, 1),
                        (2, 6), (1, 2), halves(0)),
    "order m b n, n": (MESH, (5, 4, 3), (3, 6), nothing, outer(1), outer(2), (1, 2, 0),
                       (5, 4, 3), (3, 15, 1), halves(2)),
    "order b n m, n": (MESH, (5, 4, 3), (3, 6), nothing, outer(1), outer(2), (2, 0, 1),
                       (5, 4, 3), (12, 1, 4), halves(2)),
    "cyclic n": (MESH, (4, 5), (5, 6), nothing, inner(1), inner(1), None,
                 (4, 3), (3, 1), strided(1)),
    "nested n": (MESH, (4, 5), (5, 12), nothing, nested(1), nested(1), None,
                 (4, 6), (6, 1), pieces_of_blocks(1)),
    "n on y, then x": (SQUARE, (4, 5), (5, 8), nothing, on_both(1, Y, X), on_both(1, Y, X), None,
                       (4, 2), (2, 1), yx(1)),
    "n on x, then y": (SQUARE, (4, 5), (5, 8), nothing, on_both(1, X, Y), on_both(1, X, Y), None,
                       (4, 2), (2, 1), xy(1)),
    "m on y, n on x, column-major": (
        SQUARE, (4, 5), (5, 8), lambda a: shard(a, 0, 2, Y), outer(1),
        chain(lambda c: shard(c, 1, 2, X), lambda c: shard(c, 0, 2, Y)), (0, 1),
        (2, 4), (1, 2), lambda t, r: block(block(t, 0, 2, r // 2), 1, 2, r % 2)),
    "one row": (MESH, (1, 5), (5, 6), nothing, outer(1), outer(1), (0, 1),
                (1, 3), (1, 1), halves(1)),
    "no rows": (MESH, (0, 5), (5, 6), nothing, outer(1), outer(1), None,
                (0, 3), (3, 1), halves(1)),
    "cyclic n, column-major": (MESH, (4, 5), (5, 6), nothing, inner(1), inner(1), (0, 1),
                               (4, 3), (1, 4), strided(1)),
    "nested n, column-major": (MESH, (4, 5), (5, 12), nothing, nested(1), nested(1), (0, 1),
                               (4, 6), (1, 4), pieces_of_blocks(1)),
    "cyclic m, column-major": (MESH, (4, 5), (5, 6), inner(0), nothing, inner(0), (0, 1),
                               (2, 6), (1, 2), strided(0)),
    "n on y, then x, column-major": (SQUARE, (4, 5), (5, 8), nothing, on_both(1, Y, X),
                                     on_both(1, Y, X), (0, 1), (4, 2), (1, 4), yx(1)),
    "batch, order n m b": (MESH, (4, 3, 5), (5, 6), outer(0), nothing, outer(0), (0, 1, 2),
                           (2, 3, 6), (1, 2, 6), halves(0)),
}  # fmt: skip


def program(mesh, a, b, on_a, on_b, on_out, order, before=True, after=nothing):
    with FusionDefinition() as fd:
        tvs = fd.define_tensor(list(a)), fd.define_tensor(list(b))
        out = fd.ops.matmul(*tvs)
        place(mesh, *tvs, out)
        if before:
            fd.add_output(out, stride_order=order)
        for tv, schedule in zip((*tvs, out), (on_a, on_b, on_out), strict=True):
            schedule(tv)
        after(out)
        if not before:
            fd.add_output(out)
    return fd


@pytest.mark.parametrize("as_loop", [0, 1, 2], ids=["derived", "as loop", "as loop twice"])
@pytest.mark.parametrize("name", TABLE)
def test_layout_of_a_part(name, as_loop):
    """set_allocation_as_loop is optional, may be repeated, and keeps a stride order."""
    mesh, a, b, on_a, on_b, on_out, order, sizes, strides, part = TABLE[name]

    def allocate(out):
        for _ in range(as_loop):
            out.set_allocation_as_loop()

    fd = program(mesh, a, b, on_a, on_b, on_out, order, after=allocate)
    x, y = ramp(*a), ramp(*b)
    want = x @ y
    with meshfuse.simulate(mesh.size) as sim:
        (out,) = sim.run(fd, [x, y])
        assert torch.equal(out, want)
        for r in range(mesh.size):
            local = sim.local(device=r)
            assert_layout(local, sizes, strides)
            assert torch.equal(local, part(want, r))


@pytest.mark.parametrize("as_loop", [False, True], ids=["derived", "as loop"])
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize(
    ("a", "b", "loop", "order"),
    [((6, 5), (5, 6), loop, o) for loop in ("m", "n") for o in stride_orders(2)]
    + [
        ((6, 12, 5), b, loop, o)
        for loop in ("batch0", "m", "n")
        for b in ((5, 6), (6, 5, 6))
        for o in stride_orders(3)
    ],
)
def test_every_stride_order(a, b, loop, order, d, as_loop):
    x, y = ramp(*a), ramp(*b)
    cut = matmul_cut(a, b, loop)
    fd = sharded_matmul(x, y, cut, d, stride_order=order)
    if as_loop:
        fd.fusion.outputs()[0].set_allocation_as_loop()
    want = x @ y
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [x, y])
        assert torch.equal(out, want)
        for r in range(d):
            part = block(want, cut.out, d, r)
            local = sim.local(device=r)
            assert_layout(local, part.shape, dense_strides(part.shape, order))
            assert torch.equal(local, part)


@pytest.mark.parametrize("way", ["add_output", "stride_order", "set_allocation_domain"])
@pytest.mark.parametrize("order", stride_orders(3))
def test_ways_to_state_an_order(order, way):
    """All three give the same strides, also for a result divided over devices."""
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([2, 3, 5]), fd.define_tensor([5, 4])
        place(MESH, a, b)
        shard(b, 1, 2)
        out = fd.ops.matmul(a, b)
        if way == "stride_order":
            out = fd.ops.stride_order(out, order)
        fd.add_output(out, stride_order=order if way == "add_output" else None)
        if way == "set_allocation_domain":
            axes = sorted(range(3), key=lambda i: -order[i])
            tail = [out.axis(3)]
            out.set_allocation_domain([out.axis(i) for i in axes] + tail, True)
    x, y = ramp(2, 3, 5), ramp(5, 4)
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [x, y])
        assert torch.equal(result, x @ y)
        assert_layout(sim.local(device=1), (2, 3, 2), dense_strides((2, 3, 2), order))


@pytest.mark.parametrize("order", stride_orders(2))
@pytest.mark.parametrize("r_place", [0, 1, 2])
@pytest.mark.parametrize("x_place", range(4))
def test_device_axis_anywhere_in_the_allocation(x_place, r_place, order):
    """Its local size is 1, so where it stands does not matter, nor where the reduction stands."""
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 5]), fd.define_tensor([5, 6])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        place(MESH, a, b, out)
        shard(b, 1, 2)
        shard(out, 1, 2)
        m, device, n, r = (out.axis(i) for i in range(4))
        axes = [m, n] if order == (1, 0) else [n, m]
        axes.insert(r_place, r)
        axes.insert(x_place, device)
        out.set_allocation_domain(axes, True)
    x, y = ramp(4, 5), ramp(5, 6)
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [x, y])
        assert torch.equal(result, x @ y)
        for r in range(2):
            assert_layout(sim.local(device=r), (4, 3), dense_strides((4, 3), order))


@pytest.mark.parametrize("x_place", range(3))
@pytest.mark.parametrize("order", stride_orders(2))
def test_device_axis_anywhere_in_the_allocation_of_an_input(order, x_place):
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 5]), fd.define_tensor([5, 6])
        place(MESH, a, b)
        shard(b, 1, 2)
        k, device, n = (b.axis(i) for i in range(3))
        axes = [k, n] if order == (1, 0) else [n, k]
        axes.insert(x_place, device)
        b.set_allocation_domain(axes, True)
        fd.add_output(fd.ops.matmul(a, b))
    x, y = ramp(4, 5), ramp(5, 6)
    parts = [
        torch.empty_strided((5, 3), dense_strides((5, 3), order)).copy_(block(y, 1, 2, r))
        for r in range(2)
    ]
    with meshfuse.simulate(2) as sim:
        outputs = sim.execute(fd, [[x, part] for part in parts])
        for r in range(2):
            assert torch.equal(outputs[r][0], block(x @ y, 1, 2, r))
        with pytest.raises(meshfuse.Error, match=r"stride mismatch with contiguity info.*T1"):
            other = torch.empty_strided((5, 3), dense_strides((5, 3), order[::-1]))
            sim.execute(fd, [[x, other]] * 2)


def test_reordered_loop_wins_over_a_stride_order():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 5]), fd.define_tensor([5, 6])
        out = fd.ops.matmul(a, b)
        fd.add_output(out, stride_order=(0, 1))
        place(MESH, a, b, out)
        shard(b, 1, 2)
        shard(out, 1, 2)
        out.reorder({1: 0})  # device, m, n, r: row-major again
        out.set_allocation_as_loop()
    with meshfuse.simulate(2) as sim:
        sim.run(fd, [ramp(4, 5), ramp(5, 6)])
        assert_layout(sim.local(), (4, 3), (3, 1))


def test_reordered_loop_without_a_stride_order():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 5]), fd.define_tensor([5, 6])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        place(MESH, a, b, out)
        shard(b, 1, 2)
        shard(out, 1, 2)
        out.reorder({0: 2})  # device, n, m, r
        out.set_allocation_as_loop()
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [ramp(4, 5), ramp(5, 6)])
        assert torch.equal(result, ramp(4, 5) @ ramp(5, 6))
        assert_layout(sim.local(), (4, 3), (1, 4))


def test_reordered_loop_alone_changes_no_memory_order():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 5]), fd.define_tensor([5, 6])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        out.reorder({0: 1})
    assert_layout(fd.execute([ramp(4, 5), ramp(5, 6)])[0], (4, 6), (6, 1))


def test_allocation_as_loop_of_plain_splits():
    """Serial splits that stay in order change nothing in memory."""
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 5]), fd.define_tensor([5, 6])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
        out.split(1, 2)
        out.split(0, 2, False)
        out.set_allocation_as_loop()
    (result,) = fd.execute([ramp(4, 5), ramp(5, 6)])
    assert torch.equal(result, ramp(4, 5) @ ramp(5, 6))
    assert_layout(result, (4, 6), (6, 1))


@pytest.mark.parametrize("order", stride_orders(3))
def test_pointwise_result_takes_the_order_of_its_operand(order):
    x = torch.empty_strided((2, 3, 4), dense_strides((2, 3, 4), order)).copy_(ramp(2, 3, 4))
    with FusionDefinition() as fd:
        a = fd.define_tensor([2, 3, 4], contiguity=True, stride_order=order)
        fd.add_output(fd.ops.neg(fd.ops.relu(a)))
        place(MESH, a)
        shard(a, 2, 2)
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [x])
        assert torch.equal(result, -x.relu())
        assert_layout(sim.local(device=1), (2, 3, 2), dense_strides((2, 3, 2), order))
        assert fd._executor().stats()["relayouts"] == 0


# ---- merged axes


def merged(sizes, d, *, inner=False, shape=None):
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(shape or sizes))
        y = fd.ops.neg(x)
        fd.add_output(y)
        place(DeviceMesh(range(d)), x, y)
        for tv in (x, y):
            tv.merge(0, 1)
            shard(tv, 0, d, inner=inner)
    return fd


@pytest.mark.parametrize(
    ("a", "b", "d", "inner", "local"),
    [
        (4, 3, 2, False, (2, 3)),
        (2, 6, 4, False, (1, 3)),
        (6, 4, 3, False, (2, 4)),
        (2, 6, 12, False, (1, 1)),
        (3, 4, 2, True, (3, 2)),
        (5, 6, 3, True, (5, 2)),
        pytest.param(4, 1, 2, False, (2, 1)),
        pytest.param(4, 1, 2, True, (2, 1)),
        (1, 4, 2, True, (1, 2)),
    ],
)
def test_merged_axes(a, b, d, inner, local):
    """A device's part of the flat range must be a rectangle of the two axes."""
    fd = merged((a, b), d, inner=inner)
    x = torch.arange(float(a * b)).reshape(a, b)
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [x])
        assert torch.equal(out, -x)
        for r in range(d):
            flat = x.flatten()[r::d] if inner else block(x.flatten(), 0, d, r)
            assert sim.local(device=r).shape == local
            assert torch.equal(sim.local(device=r), -flat.reshape(local))


@pytest.mark.parametrize(("a", "b", "d"), [(4, 3, 2), (2, 6, 4)])
def test_merged_axes_of_a_product(a, b, d):
    """Batch and rows of a product merged; the other operand is whole."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([a, b, 5]), fd.define_tensor([5, 3])
        out = fd.ops.matmul(x, w)
        fd.add_output(out)
        place(DeviceMesh(range(d)), x, w, out)
        for tv in (x, out):
            tv.merge(0, 1)
            shard(tv, 0, d)
    left, right = ramp(a, b, 5), ramp(5, 3)
    with meshfuse.simulate(d) as sim:
        (result,) = sim.run(fd, [left, right])
    assert torch.equal(result, left @ right)


@pytest.mark.parametrize(("a", "b", "d", "inner"), [(3, 4, 2, False), (4, 3, 2, True)])
def test_merged_axes_that_give_no_rectangle(a, b, d, inner):
    fd = merged((a, b), d, inner=inner)
    with meshfuse.simulate(d) as sim:
        with pytest.raises(meshfuse.Error, match=r"^NonRectangularShard: .*T0"):
            sim.run(fd, [torch.ones(a, b)])


def test_merged_axes_of_unknown_size():
    """From [1, 3] on each of 4 devices one cannot tell how the axes go on."""
    fd = merged((2, 6), 4, shape=(-1, -1))
    with meshfuse.simulate(4) as sim:
        with pytest.raises(meshfuse.Error, match="T0 is merged with another one"):
            sim.run(fd, [torch.ones(2, 6)])


def test_merged_axes_whose_outer_size_is_found():
    """With whole rows of a declared length the number of rows follows from the local tensor."""
    fd = merged((4, 3), 2, shape=(-1, 3))
    x = ramp(4, 3)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x])[0], -x)


# ---- messages


def one(shape, mesh=MESH):
    """Return x -> neg(x) on a mesh, with both tensors."""
    fd = FusionDefinition()
    with fd:
        x = fd.define_tensor(list(shape))
        y = fd.ops.neg(x)
        fd.add_output(y)
        if mesh is not None:
            place(mesh, x, y)
    return fd, x, y


def test_same_mesh_axis_twice():
    _, x, _ = one([4, 6])
    shard(x, 0, 2)
    x.outer_split(2, 2)
    with pytest.raises(
        meshfuse.Error,
        match=r"Found multiple loop IterDomains with the same parallel type.*mesh_x.*T0",
    ):
        x.axis(2).parallelize(X)


def test_same_mesh_axis_on_a_reduction_and_another_axis():
    with FusionDefinition() as fd:
        out = fd.ops.matmul(fd.define_tensor([4, 6]), fd.define_tensor([6, 8]))
        place(MESH, out)
        shard(out, 1, 2)
        shard(out, -1, 2)
    assert [axis.is_device_dim() for axis in out.get_loop_domain()] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_device_axis_without_a_mesh():
    fd, x, _ = one([4], mesh=None)
    shard(x, 0, 2)
    with pytest.raises(
        meshfuse.Error, match="axis 0 of T0 is on mesh_x, but the tensor has no DeviceMesh"
    ):
        fd.execute([torch.ones(2)])


def test_mesh_without_that_axis():
    _, x, _ = one([4])
    x.outer_split(0, 2)
    with pytest.raises(meshfuse.Error, match=r"rank 1.*does not have parallel type mesh_y"):
        x.axis(0).parallelize(Y)


def test_mesh_set_later_without_that_axis():
    _, x, _ = one([4], mesh=None)
    shard(x, 0, 2, Y)
    with pytest.raises(meshfuse.Error, match="does not have parallel type mesh_y"):
        place(MESH, x)


def test_extent_that_is_not_the_size_of_the_mesh():
    _, x, _ = one([10])
    with pytest.raises(meshfuse.Error, match="T0 of size 10 is on mesh_x, which has 2 devices"):
        x.axis(0).parallelize(X)


def test_device_axis_on_a_broadcast_means_nothing():
    fd, x, y = one([1, 6])
    for tv in (x, y):
        tv.axis(0).parallelize(X)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(fd, [ramp(1, 6)])
        assert torch.equal(out, -ramp(1, 6))
        assert sim.local(device=1).shape == (1, 6)


def test_allocation_divided_and_loop_not():
    fd, _, y = one([4])
    shard(y, 0, 2)
    y.set_allocation_domain([y.axis(0), y.axis(1)], True)
    y.set_loop_domain(y.get_logical_domain())
    with meshfuse.simulate(2) as sim:
        with pytest.raises(
            meshfuse.Error,
            match="T1 is divided over mesh_x in its allocation domain but not in its loop",
        ):
            sim.run(fd, [torch.ones(4)])


@pytest.mark.parametrize("inner", [False, True], ids=["outer", "inner"])
def test_size_that_does_not_divide(inner):
    _, x, _ = one([10], DeviceMesh(range(4)))
    with pytest.raises(meshfuse.Error, match="T0 of size 10 is not divisible by 4"):
        shard(x, 0, 4, inner=inner)


def test_symbolic_size_that_does_not_divide():
    fd, x, y = one([-1], DeviceMesh(range(4)))
    shard(x, 0, 4)
    shard(y, 0, 4)
    with meshfuse.simulate(4) as sim:
        with pytest.raises(meshfuse.Error, match="T0 of size 10 is not divisible by 4"):
            sim.run(fd, [torch.ones(10)])
        assert torch.equal(sim.run(fd, [torch.ones(12)])[0], -torch.ones(12))


def test_halves_of_a_split_apart():
    fd, _, y = one([6], mesh=None)
    y.split(0, 2)
    y.set_allocation_domain([y.axis(1), y.axis(0)], True)
    with pytest.raises(
        meshfuse.Error, match=r"allocation domain of T1 keeps the halves .*\(sizes 3 and 2\) apart"
    ):
        fd.execute([torch.ones(6)])


@pytest.mark.parametrize("contiguous", [False, True])
def test_halves_of_a_split_apart_in_an_input(contiguous):
    fd, x, _ = one([6], mesh=None)
    x.split(0, 2)
    x.set_allocation_domain([x.axis(1), x.axis(0)], contiguous)
    if not contiguous:
        assert torch.equal(fd.execute([ramp(6)])[0], -ramp(6))
        return
    with pytest.raises(meshfuse.Error, match=r"stride mismatch with contiguity info.*T0"):
        fd.execute([ramp(6)])


def test_merged_axes_apart_in_memory():
    fd, x, y = one([4, 3])
    for tv in (x, y):
        tv.set_stride_order([0, 1])
        tv.merge(0, 1)
        shard(tv, 0, 2)
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=r"Merging of discontiguous dimensions.*T0"):
            sim.run(fd, [torch.ones(4, 3)])


def test_merged_axes_of_an_input_with_gaps():
    fd = merged((4, 3), 2)
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=r"Merging of discontiguous dimensions.*T0"):
            sim.execute(fd, [[torch.ones(2, 5)[:, :3]]] * 2)


@pytest.mark.parametrize(
    "pick", [lambda axes: axes[:1], lambda axes: [*axes, axes[0]], lambda axes: []]
)
def test_domains_that_do_not_cover_the_logical_one(pick):
    _, x, _ = one([4, 6])
    axes = pick([x.axis(0), x.axis(1)])
    with pytest.raises(meshfuse.Error, match=r"set_allocation_domain.*logical axes of T0"):
        x.set_allocation_domain(axes, True)
    with pytest.raises(meshfuse.Error, match=r"set_loop_domain.*logical axes of T0"):
        x.set_loop_domain(axes)


def test_domain_with_an_axis_and_its_halves():
    _, x, _ = one([4, 6])
    whole = x.axis(0)
    x.outer_split(0, 2)
    with pytest.raises(meshfuse.Error, match=r"set_allocation_domain.*T0"):
        x.set_allocation_domain([x.axis(0), x.axis(1), x.axis(2), whole], True)


def test_number_of_contiguity_flags():
    _, x, _ = one([4, 6])
    with pytest.raises(meshfuse.Error, match="1 contiguity flags were given for 2 axes of T0"):
        x.set_allocation_domain([x.axis(0), x.axis(1)], [True])


def test_some_tensors_with_a_mesh_and_some_without():
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([4]), fd.define_tensor([4])
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.neg(y))
        place(MESH, x)
        shard(x, 0, 2)
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=r"T[23] has no mesh"):
            sim.run(fd, [torch.ones(4), torch.ones(4)])


# ---- stride orders of inputs


@pytest.mark.parametrize("order", stride_orders(3))
@pytest.mark.parametrize("d", [2, 3])
def test_declared_order_of_a_divided_input(order, d):
    """Contiguity is checked on the local tensor, in the declared order."""
    sizes = (6, 2, 6)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 2, 6], contiguity=True, stride_order=order)
        w = fd.define_tensor([6, 4])
        fd.add_output(fd.ops.matmul(x, w))
        place(DeviceMesh(range(d)), x, w)
        shard(x, 0, d)
    whole, weight = ramp(*sizes), ramp(6, 4)
    local = (6 // d, 2, 6)
    parts = [
        torch.empty_strided(local, dense_strides(local, order)).copy_(block(whole, 0, d, r))
        for r in range(d)
    ]
    with meshfuse.simulate(d) as sim:
        outputs = sim.execute(fd, [[part, weight] for part in parts])
        for r in range(d):
            assert torch.equal(outputs[r][0], block(whole @ weight, 0, d, r))


def test_view_of_a_global_tensor_as_a_part():
    """A view has gaps: fine by default, an error where the input is declared contiguous."""
    whole, weight = ramp(4, 6), ramp(4, 3)
    for contiguity in (False, True):
        with FusionDefinition() as fd:
            x = fd.define_tensor([4, 6], contiguity=contiguity)
            w = fd.define_tensor([3, 4])
            fd.add_output(fd.ops.matmul(w, x))
            place(MESH, x, w)
            shard(x, 1, 2)
        views = [[whole[:, 3 * r : 3 * r + 3], weight.t()] for r in range(2)]
        with meshfuse.simulate(2) as sim:
            if contiguity:
                with pytest.raises(meshfuse.Error, match="stride mismatch with contiguity info"):
                    sim.execute(fd, views)
            else:
                outputs = sim.execute(fd, views)
                assert torch.equal(outputs[1][0], (weight.t() @ whole)[:, 3:])
