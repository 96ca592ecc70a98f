# SPDX-License-Identifier: BSD-3-Clause
"""Programs of several meshes whose sizes are not declared: ranks tell them one another.

A rank that does not hold an input learns its sizes from those that do, before every execution, so
that all compile with the same sizes and make the same calls.
"""

from __future__ import annotations

import random

import pytest
import torch
from programs import X, Y, assert_part, communications, lay, part_of, ramp
from torch.nn.functional import linear

import meshfuse
from meshfuse import Communicator, DeviceMesh, FusionDefinition

RANKS = Communicator.instance().size()
LAUNCHED = Communicator.instance().is_available()
real_ranks = pytest.mark.skipif(RANKS == 1, reason="needs several ranks")
four_ranks = pytest.mark.skipif(RANKS < 4, reason="needs four ranks")


def need(world, devices):
    if world.size < devices:
        pytest.skip(f"needs {devices} devices")


def calls_of(world, *args):
    """Run a program; return results and how many collective calls this process made for it."""
    before = meshfuse._C.collective_calls()
    results = world.run(*args)
    return results, meshfuse._C.collective_calls() - before


def assert_same_calls(world, calls):
    """All ranks made this many calls: an all-gather of the numbers."""
    if not LAUNCHED or world.size == 1:
        return
    with FusionDefinition() as fd:
        t = fd.define_tensor([world.size], dtype=meshfuse.DataType.Int)
        out = fd.ops.set(t)
        fd.add_output(out)
        lay(t, world.mesh, [(0, X)])
        lay(out, world.mesh)
    (everyone,) = fd.execute([torch.tensor([calls])])
    assert everyone.tolist() == [calls] * world.size


# --- Pipelines -----------------------------------------------------------------------------------


def halves(size):
    """Return two meshes of one or two devices each."""
    n = size // 2
    return DeviceMesh(range(n)), DeviceMesh(range(n, 2 * n))


def pipeline(first, second):
    """Return two row-parallel layers, one per mesh; no size is declared."""
    with FusionDefinition() as fd:
        x, up, down = (fd.define_tensor([-1, -1]) for _ in range(3))
        hidden = fd.ops.linear(x, up)
        moved = fd.ops.set(hidden)
        fd.add_output(fd.ops.relu(fd.ops.linear(moved, down)))
        lay(x, first)
        lay(up, first, [(0, X)])
        lay(moved, second, [(1, X)])
        lay(down, second, [(1, X)])
    return fd


def pipeline_inputs(rows, inner, features):
    return [ramp(rows, inner), ramp(features, inner), ramp(inner, features)]


def test_pipeline_of_changing_sizes(world):
    """The inputs of stage 2 are the same for all sizes of stage 1 but the features."""
    need(world, 2)
    first, second = halves(world.size)
    fd = pipeline(first, second)
    sizes = [(4, 6, 8), (3, 6, 8), (3, 5, 4), (4, 6, 8), (0, 6, 8), (1, 1, 4), (4, 6, 8)]
    for _ in range(2):
        for rows, inner, features in sizes:
            tensors = pipeline_inputs(rows, inner, features)
            want = linear(linear(*tensors[:2]), tensors[2]).relu()
            results, calls = calls_of(world, fd, tensors)
            for r, (out,) in results.items():
                assert_part(out, part_of(want, second, [], r))
            assert_same_calls(world, calls)


def test_there_and_back(world):
    """The result returns to the first mesh, with a size that only the second one gave."""
    need(world, 2)
    first, second = halves(world.size)
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, 4]), fd.define_tensor([-1, 4])
        there = fd.ops.set(x)
        back = fd.ops.set(fd.ops.linear(there, w))
        fd.add_output(back)
        for tv, mesh in ((x, first), (there, second), (w, second), (back, first)):
            lay(tv, mesh)
    for rows, features in ((3, 5), (3, 2), (6, 2), (3, 5)):
        tensors = [ramp(rows, 4).abs(), ramp(features, 4).abs()]
        for r, (out,) in world.run(fd, tensors).items():
            assert_part(out, part_of(linear(*tensors), first, [], r))


def test_plans_are_found_again(world):
    """One plan per sizes, though the inputs of the second mesh are the same for all of them."""
    need(world, 2)
    fd = pipeline(*halves(world.size))
    for _ in range(3):
        for rows in (2, 5):
            world.run(fd, pipeline_inputs(rows, 6, 4))
    assert fd._executor().stats()["compiles"] == 2


# --- Calls ---------------------------------------------------------------------------------------


def mixed(devices):
    """Return a program of three meshes of four devices, permuted; few sizes are declared."""
    left, right = DeviceMesh(devices[:2]), DeviceMesh(devices[2:])
    square, line = DeviceMesh(torch.tensor(devices).view(2, 2)), DeviceMesh(devices[::-1])
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 4])
        c = fd.define_tensor([-1, -1])
        product = fd.ops.matmul(a, b)  # over the left pair, an all-reduce there
        moved = fd.ops.set(product)  # to the right pair, cut by rows
        total = fd.ops.sum(moved, [0])  # and summed there
        everywhere = fd.ops.set(moved)  # an exchange with all four
        spread = fd.ops.set(c)  # from four devices by columns to rows
        back = fd.ops.set(spread)  # to one device
        for out in (product, total, everywhere, spread, back):
            fd.add_output(out)
        lay(a, left, [(1, X)])
        lay(b, left, [(0, X)])
        lay(product, left)
        lay(moved, right, [(0, X)])
        lay(total, right)
        lay(everywhere, line, [(0, X)])
        lay(c, square, [(0, Y), (1, X)])
        lay(spread, square, [(1, Y)])
        lay(back, DeviceMesh(devices[1:2]))
    placed = [(left, []), (right, []), (line, [(0, X)]), (square, [(1, Y)])]
    return fd, [*placed, (DeviceMesh(devices[1:2]), [])]


@pytest.mark.parametrize("devices", [[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]], ids=str)
def test_meshes_of_some_ranks(world, devices):
    """Every rank makes the same calls, whether or not it takes part; sizes may be 0."""
    need(world, 4)
    fd, placed = mixed(devices)
    for rows, inner in ((4, 6), (8, 2), (0, 6), (4, 0), (4, 6)):
        # No negative numbers: sums of them may be -0.0, depending on the order.
        tensors = [ramp(*s).abs() for s in ((rows, inner), (inner, 4), (2 * rows, 4))]
        product = tensors[0] @ tensors[1]
        want = [product, product.sum(0), product, tensors[2], tensors[2]]
        results, calls = calls_of(world, fd, tensors)
        for r, outs in results.items():
            for out, whole, (mesh, cuts) in zip(outs, want, placed, strict=True):
                assert_part(out, part_of(whole, mesh, cuts, r))
        assert_same_calls(world, calls)


def test_rank_outside_of_all_meshes(world):
    """It knows no size, makes the calls all the same, and the next program runs."""
    need(world, 3)
    pair = DeviceMesh([2, 0])
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        turned = fd.ops.set(x)  # to the other axis: an exchange
        there = fd.ops.set(turned)  # and to another mesh, divided
        summed = fd.ops.sum(x, [0])
        for out in (turned, there, summed):
            fd.add_output(out)
        lay(x, pair, [(0, X)])
        lay(turned, pair, [(1, X)])
        lay(there, DeviceMesh([1, 2]), [(1, X)])
    for rows, columns in ((4, 6), (2, 2), (0, 4), (4, 0)):
        t = ramp(rows, columns)
        results, calls = calls_of(world, fd, [t])
        for r, (turned, there, summed) in results.items():
            assert_part(turned, part_of(t, pair, [(1, X)], r))
            assert_part(there, part_of(t, DeviceMesh([1, 2]), [(1, X)], r))
            assert_part(summed, part_of(t.sum(0), pair, [], r))
        assert_same_calls(world, calls)
    assert "send-recv x" in communications(fd)


@pytest.mark.parametrize("columns", [-1, 6])
def test_cyclic_to_blocks_among_some_ranks(world, columns):
    """Pieces go from device to device within a pair; the others don't know how many."""
    need(world, 2)
    pair = DeviceMesh([1, 0])
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, columns])
        y = fd.ops.set(x)
        fd.add_output(y)
        x.set_device_mesh(pair)
        x.inner_split(0, 2)
        x.axis(1).parallelize(X)
        lay(y, pair, [(0, X)])
    for rows in (4, 8, 2, 0):
        t = ramp(rows, 6)
        results, calls = calls_of(world, fd, [t])
        for r, (out,) in results.items():
            assert_part(out, part_of(t, pair, [(0, X)], r))
        assert_same_calls(world, calls)


# --- Errors --------------------------------------------------------------------------------------


def refused(kind, call, *args):
    with pytest.raises(kind) as caught:
        call(*args)
    assert type(caught.value) is kind
    return caught.value


def two_ends(n):
    """Return x on the first n ranks, w on the last n, multiplied there; nothing is declared."""
    first, second = DeviceMesh(range(n)), DeviceMesh(range(RANKS - n, RANKS))
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        out = fd.ops.matmul(fd.ops.set(x), w)
        fd.add_output(out)
        lay(x, first)
        lay(w, second)
        lay(out, second)
    return fd


@real_ranks
def test_sizes_of_two_meshes_that_contradict(multidevice_test):
    """No rank holds both inputs, yet all say what does not fit, and go on."""
    fd = two_ends(RANKS // 2)
    for inner in (3, 3, 5):
        fd.execute([torch.ones(2, inner), torch.ones(inner, 4)])
        error = refused(meshfuse.Error, fd.execute, [torch.ones(2, inner), torch.ones(7, 4)])
        assert f"has size {inner} but axis 0 of T1 has size 7" in str(error)
    multidevice_test.communicator.barrier()


@four_ranks
@pytest.mark.parametrize("odd", [0, 1, 2, 3])
def test_size_that_holders_give_in_two_ways(multidevice_test, odd):
    """Ranks that don't hold the input hear both, and raise the same error as those that do."""
    fd = two_ends(2)
    inputs = [torch.ones(2, 3), torch.ones(3, 4)]
    for _ in range(3):
        fd.execute(inputs)
        mine = [torch.ones(2, 5), torch.ones(3, 6)] if multidevice_test.rank == odd else inputs
        error = refused(meshfuse.Error, fd.execute, mine)
        name, axis, size, usual = ("T0", 1, 5, 3) if odd < 2 else ("T1", 1, 6, 4)
        pair = (0, 1) if odd < 2 else (2, 3)
        seen = [size if r == odd else usual for r in pair]
        assert (
            f"axis {axis} of {name} (input {int(name[1])}) has size {seen[0]} on rank {pair[0]}, "
            f"but {seen[1]} on rank {pair[1]}"
        ) in str(error)
        assert "Nothing was communicated." in str(error)
    fd.execute(inputs)
    multidevice_test.communicator.barrier()


@real_ranks
@pytest.mark.parametrize("odd", ["first", "last"])
def test_programs_that_differ(multidevice_test, odd):
    other = 0 if odd == "first" else RANKS - 1
    n = RANKS // 2
    fds = [two_ends(n), pipeline(*halves(RANKS))]
    mine = fds[multidevice_test.rank == other]
    parts = [torch.ones(2, 2)] * (3 if mine is fds[1] else 2)
    error = refused(meshfuse.Error, mine.execute, parts)
    assert "the ranks run different programs" in str(error)
    fds[0].execute([torch.ones(2, 3), torch.ones(3, 4)])


@real_ranks
def test_size_that_one_mesh_cannot_divide(multidevice_test):
    """Found by the ranks of that mesh alone; the others hear of it before anything is sent."""
    n = RANKS // 2
    first, second = DeviceMesh(range(n)), DeviceMesh(range(n, RANKS))
    with FusionDefinition() as fd:
        x, extra = fd.define_tensor([-1, 3]), fd.define_tensor([RANKS, 3])
        moved = fd.ops.set(x)
        fd.add_output(moved)
        fd.add_output(fd.ops.sum(extra, [0]))
        lay(x, first)
        lay(moved, second, [(0, X)])
        lay(extra, DeviceMesh(range(RANKS)), [(0, X)])
    part = torch.ones(1, 3)
    for _ in range(2):
        fd.execute([torch.ones(2 * n, 3), part])
        if n == 1:  # one device divides everything
            continue
        with pytest.raises((meshfuse.Error, meshfuse.PeerError), match="not divisible by"):
            fd.execute([torch.ones(2 * n + 1, 3), part])
        fd.execute([torch.ones(2 * n, 3), part])
    multidevice_test.communicator.barrier()


@real_ranks
def test_any_order_of_faults(multidevice_test):
    """Whatever happened before: a right call works, and every rank sees what it must."""
    rng = random.Random(7)
    fd, rank = two_ends(RANKS // 2), multidevice_test.rank
    for _ in range(100):
        what = rng.choice(["right", "right", "contradiction", "refusal", "all refuse"])
        culprit, rows, inner = rng.randrange(RANKS), rng.randrange(1, 4), rng.randrange(1, 4)
        inputs = [torch.ones(rows, inner), torch.ones(inner, 2)]
        if what == "right":
            (out,) = fd.execute(inputs)
            if rank >= RANKS - RANKS // 2:
                assert torch.equal(out, torch.full((rows, 2), float(inner)))
        elif what == "contradiction":
            refused(meshfuse.Error, fd.execute, [inputs[0], torch.ones(inner + 1, 2)])
        elif what == "refusal" and rank != culprit:
            assert refused(meshfuse.PeerError, fd.execute, inputs).rank == culprit
        else:
            refused(meshfuse.Error, fd.execute, [torch.ones(1), torch.ones(1)])
    multidevice_test.communicator.barrier()
