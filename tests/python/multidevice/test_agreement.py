# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that would run something else than the others: all find out, and all can go on.

Real ranks only, started by ``tools/mpirun -np 4 python -m pytest tests/python/multidevice``: on a
simulated mesh one process has all inputs.
"""

from __future__ import annotations

import random
import struct

import pytest
import torch
from programs import place, ramp, shard

import meshfuse
from meshfuse import Communicator, DataType, DeviceMesh, FusionDefinition

RANKS = Communicator.instance().size()
pytestmark = pytest.mark.skipif(RANKS == 1, reason="needs several ranks")


def row_parallel(devices=None, *, bias=False, tail=None):
    """Return x @ w, symbolic, with the inner axis divided: an all-reduce."""
    devices = list(range(RANKS)) if devices is None else devices
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 3])
        y = fd.ops.matmul(x, w)
        if bias:
            y = fd.ops.add(y, fd.define_tensor([3]))
        if tail:
            y = getattr(fd.ops, tail)(y)
        fd.add_output(y)
        place(DeviceMesh(devices), x, w)
        shard(x, 1, len(devices))
        shard(w, 0, len(devices))
    return fd


def gathered_sum(devices):
    """Return x + y, the rows of both divided and the result whole: an all-gather."""
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, 3]), fd.define_tensor([-1, 3])
        z = fd.ops.set(fd.ops.add(x, y))
        fd.add_output(z)
        place(DeviceMesh(devices), x, y, z)
        shard(x, 0, len(devices))
        shard(y, 0, len(devices))
    return fd


def run(fd, rows=4, inner=2, *more):
    """Execute a row-parallel program on this rank's part, and check the result."""
    (out,) = fd.execute([torch.ones(rows, inner), torch.ones(inner, 3), *more])
    assert torch.equal(out, torch.full((rows, 3), float(inner * RANKS)))


def refused(kind, call, *args):
    """Return the exception that a call raises on this rank."""
    with pytest.raises(kind) as caught:
        call(*args)
    assert type(caught.value) is kind
    return caught.value


@pytest.mark.parametrize("ran_before", [(), (4,), (6,), (4, 6)], ids=str)
@pytest.mark.parametrize("odd", ["first", "last"])
def test_sizes_that_differ(multidevice_test, odd, ran_before):
    """Nobody communicates, and the next right call works; no matter which plans exist already."""
    fd = row_parallel()
    for rows in ran_before:
        run(fd, rows)
    other = 0 if odd == "first" else RANKS - 1
    for _ in range(3):
        error = refused(meshfuse.Error, run, fd, 6 if multidevice_test.rank == other else 4)
        first, second = (6, 4) if other == 0 else (4, 6)
        assert str(error) == (
            f"execute: axis 0 of T0 (input 0) has size {first} on rank 0, but {second} on rank "
            f"{1 if other == 0 else RANKS - 1}; its global sizes are [{first}, {2 * RANKS}] and "
            f"[{second}, {2 * RANKS}]. Give all ranks parts of the same tensor. Nothing was "
            "communicated."
        )
        assert (error.tensor, error.axis) == ("T0", 0)
        run(fd, 4)
    multidevice_test.communicator.barrier()
    run(fd, 6)


def test_divided_sizes_that_differ(multidevice_test):
    """Parts of an axis that is cut unevenly by hand give other global sizes."""
    fd = row_parallel()
    inner = 3 if multidevice_test.rank == 0 else 2
    error = refused(meshfuse.Error, run, fd, 4, inner)
    sizes = f"has size {3 * RANKS} on rank 0, but {2 * RANKS} on rank 1"
    assert f"axis 1 of T0 (input 0) {sizes}" in str(error)
    run(fd)


@pytest.mark.parametrize("odd", ["first", "last"])
def test_programs_that_differ(multidevice_test, odd):
    """The first operation that differs is named."""
    other = 0 if odd == "first" else RANKS - 1
    fds = [row_parallel(), row_parallel(tail="relu")]
    for fd in fds:
        run(fd)
    for _ in range(2):
        error = refused(meshfuse.Error, run, fds[multidevice_test.rank == other])
        assert "execute: the ranks run different programs: line" in str(error)
        assert "= relu(" in str(error)
        assert "on rank 0, but" in str(error)
        for fd in fds:
            run(fd)


def test_another_operation(multidevice_test):
    """One rank multiplies, the others add: other operations, other communication."""
    devices = list(range(RANKS))
    if multidevice_test.rank == 0:
        error = refused(meshfuse.Error, run, row_parallel())
    else:
        parts = [torch.ones(2, 3), torch.ones(2, 3)]
        error = refused(meshfuse.Error, gathered_sum(devices).execute, parts)
    assert "= matmul(" in str(error)
    assert "= add(" in str(error)
    run(row_parallel())


def test_number_of_inputs_that_differs(multidevice_test):
    with_bias, without = row_parallel(bias=True), row_parallel()
    bias = torch.zeros(3)
    if multidevice_test.rank == 1:
        error = refused(meshfuse.Error, run, with_bias, 4, 2, bias)
    else:
        error = refused(meshfuse.Error, run, without)
    assert "the ranks run different programs" in str(error)
    run(with_bias, 4, 2, bias)
    run(without)


def test_scalars_that_differ(multidevice_test):
    """A number that all ranks multiply with must be the same number."""
    with FusionDefinition() as fd:
        x, factor = fd.define_tensor([RANKS, 3]), fd.define_scalar(None, DataType.Double)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, factor), [0]))
        place(DeviceMesh(range(RANKS)), x)
        shard(x, 0, RANKS)
    x = torch.ones(1, 3)
    for factor in (2.0, 0.5, 2):
        assert fd.execute([x, factor])[0].tolist() == [factor * RANKS] * 3
    mine = 0.5 if multidevice_test.rank == 1 else 0.25
    error = refused(meshfuse.Error, fd.execute, [x, mine])
    assert "execute: input 1 (" in str(error)
    assert "is 0.25 on rank 0, but 0.5 on rank 1. Give all ranks the same value." in str(error)
    assert fd.execute([x, 3.0])[0].tolist() == [3.0 * RANKS] * 3


def test_scalars_that_print_alike(multidevice_test):
    """Not-a-number has many forms, and one text."""
    with FusionDefinition() as fd:
        x, factor = fd.define_tensor([RANKS, 3]), fd.define_scalar(None, DataType.Double)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, factor), [0]))
        place(DeviceMesh(range(RANKS)), x)
        shard(x, 0, RANKS)
    bits = 0x7FF8000000000000 + (multidevice_test.rank == RANKS - 1)
    (nan,) = struct.unpack("d", struct.pack("Q", bits))
    error = refused(meshfuse.Error, fd.execute, [torch.ones(1, 3), nan])
    assert str(error).startswith(
        "execute: the ranks are out of step: rank 0 is in another execution of the same program "
        f"than rank {RANKS - 1}. All ranks must execute the same programs in the same order."
    )
    assert fd.execute([torch.ones(1, 3), 2.0])[0].tolist() == [2.0 * RANKS] * 3


def test_scalars_that_differ_in_a_size(multidevice_test):
    """A number that sizes or places depend on must be the same on all ranks too."""
    with FusionDefinition() as fd:
        x, k = fd.define_tensor([RANKS, -1]), fd.define_scalar(None, DataType.Int)
        window = fd.ops.slice(x, [0, k], [RANKS, fd.ops.add(k, 2)])
        fd.add_output(fd.ops.sum(window, [0]))
        place(DeviceMesh(range(RANKS)), x)
        shard(x, 0, RANKS)
    x = torch.arange(6.0).reshape(1, 6)
    for k in (0, 3, 1):
        assert fd.execute([x, k])[0].tolist() == [k * RANKS, (k + 1) * RANKS]
    mine = 3 if multidevice_test.rank == 1 else 0
    error = refused(meshfuse.Error, fd.execute, [x, mine])
    assert "is 0 on rank 0, but 3 on rank 1. Give all ranks the same value." in str(error)
    assert fd.execute([x, 2])[0].tolist() == [2 * RANKS, 3 * RANKS]


def test_devices_in_another_order(multidevice_test):
    """Meshes of the same devices that differ in their order."""
    devices = list(range(RANKS))
    fds = [row_parallel(devices), row_parallel(devices[::-1])]
    error = refused(meshfuse.Error, run, fds[multidevice_test.rank == 0])
    assert "the ranks run different programs" in str(error)
    assert "mesh(x=" in str(error)
    for fd in fds:
        run(fd)


@pytest.mark.skipif(RANKS < 4, reason="needs four ranks")
@pytest.mark.parametrize("odd", [0, 1])
def test_meshes_that_differ(multidevice_test, odd):
    """A rank with a smaller mesh is not known to all; all find out, and are in step again."""
    small, whole = row_parallel([0, 1]), row_parallel()
    error = refused(meshfuse.Error, run, small if multidevice_test.rank == odd else whole)
    assert "the ranks run different programs" in str(error)
    for _ in range(3):
        run(whole)


@pytest.mark.skipif(RANKS < 4, reason="needs four ranks")
def test_rank_outside_of_the_mesh_is_not_awaited(multidevice_test):
    """It need not call at all, and its own executions with others do not disturb."""
    d = RANKS - 1
    inside, pair = row_parallel(list(range(d))), row_parallel([d - 1, d])
    rank = multidevice_test.rank
    parts = [torch.ones(4, 2), torch.ones(2, 3)]
    for _ in range(10):
        if rank < d:
            assert inside.execute(parts)[0].tolist() == [[2.0 * d] * 3] * 4
    if rank >= d - 1:
        assert pair.execute(parts)[0].tolist() == [[4.0] * 3] * 4
    if rank < d:  # a size that differs, for the members alone
        parts = [torch.ones(4 if rank else 5, 2), torch.ones(2, 3)]
        error = refused(meshfuse.Error, inside.execute, parts)
        assert "has size 5 on rank 0, but 4 on rank 1" in str(error)
    else:  # outside, any block is ignored
        assert inside.execute([torch.ones(9, 9), torch.ones(0)])[0].numel() == 0
    run(row_parallel())


@pytest.mark.skipif(RANKS < 4, reason="needs four ranks")
def test_size_of_a_tensor_that_only_some_ranks_hold(multidevice_test):
    """Ranks compare what they hold both."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 3])
        u = fd.define_tensor([-1, 3])
        fd.add_output(fd.ops.matmul(x, w))
        fd.add_output(fd.ops.sum(u, [0]))
        place(DeviceMesh([0, 1]), x, w)
        place(DeviceMesh([2, 3]), u)
        shard(x, 1, 2)
        shard(w, 0, 2)
        shard(u, 0, 2)
    parts = [torch.ones(4, 2), torch.ones(2, 3), torch.ones(2, 3)]
    fd.execute(parts)
    if multidevice_test.rank >= 2:
        parts[:2] = [torch.ones(7, 7), torch.ones(1)]  # not held, so not looked at
    else:
        parts[2] = torch.ones(11)
    fd.execute(parts)


@pytest.mark.parametrize("who", ["first", "last"])
def test_one_rank_refuses(multidevice_test, who):
    """Its input is wrong, and it catches that: the others know, and the group goes on."""
    culprit = 0 if who == "first" else RANKS - 1
    fd = row_parallel()
    for _ in range(3):
        if multidevice_test.rank == culprit:
            bad = [torch.ones(4, 2), torch.ones(5, 3)]
            error = refused(meshfuse.Error, fd.execute, bad)
            assert f"size {2 * RANKS}" in str(error)
        else:
            error = refused(meshfuse.PeerError, run, fd)
            assert error.rank == culprit
            assert error.reason.startswith("matmul: axis 1 of T0 has size")
            assert f"execute: rank {culprit} gave up an execution that rank" in str(error)
            assert "Nothing was communicated, and the group goes on." in str(error)
        run(fd)
    multidevice_test.communicator.barrier()


@pytest.mark.parametrize("wrong", [["not a tensor"], None, [torch.ones(4, 2)]], ids=str)
def test_one_rank_passes_something_else(multidevice_test, wrong):
    """Inputs that cannot even be read are told to the others, too."""
    fd = row_parallel()
    run(fd)
    if multidevice_test.rank == 1:
        with pytest.raises((TypeError, meshfuse.Error)):
            fd.execute(wrong)
    else:
        assert refused(meshfuse.PeerError, run, fd).rank == 1
    run(fd)


def test_refusal_of_a_program_without_communication(multidevice_test):
    """Nobody waits for it, so nobody else hears of it."""
    with FusionDefinition() as alone:
        alone.add_output(alone.ops.relu(alone.define_tensor([3])))
    if multidevice_test.rank == 0:
        refused(meshfuse.Error, alone.execute, [torch.ones(4)])
    run(row_parallel())
    multidevice_test.communicator.barrier()


def test_any_order_of_faults(multidevice_test):
    """Whatever happened before: a right call works, and every rank sees what it must."""
    rng = random.Random(5)
    fds = [row_parallel(), row_parallel(tail="relu")]
    rank = multidevice_test.rank
    for _ in range(150):
        what = rng.choice(["right", "right", "size", "program", "refusal", "all refuse"])
        culprit, rows = rng.randrange(RANKS), rng.randrange(1, 4)
        mine = rank == culprit
        if what == "right":
            run(fds[rng.randrange(2)], rows)
        elif what == "size":
            refused(meshfuse.Error, run, fds[0], rows + mine)
        elif what == "program":
            refused(meshfuse.Error, run, fds[mine], rows)
        elif what == "refusal" and not mine:
            assert refused(meshfuse.PeerError, run, fds[1], rows).rank == culprit
        else:
            refused(meshfuse.Error, fds[1].execute, [ramp(4, 2), ramp(5, 3)])
    multidevice_test.communicator.barrier()


@pytest.mark.parametrize("compiled", [False, True])
def test_results_into_shared_memory_on_one_rank(multidevice_test, compiled):
    """The other ranks hear of it instead of waiting, and write nothing."""
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([2 * RANKS]), fd.define_tensor([2])
        fd.add_output(fd.ops.mul(y, fd.ops.sum(x, [0])), alias_input=y)
        z = fd.define_tensor([2])
        fd.add_output(fd.ops.add(z, 1.0), alias_input=z)
        place(DeviceMesh(range(RANKS)), x, y, z)
        shard(x, 0, RANKS)
    part = torch.ones(2)
    if compiled:
        fd.execute([part, torch.ones(2), torch.ones(2)])
    y, z = torch.ones(2), torch.ones(2)
    if multidevice_test.rank == 1:
        error = refused(meshfuse.Error, fd.execute, [part, y, y])
        assert "inputs 1 (T1) and 2 (" in str(error)
    else:
        error = refused(meshfuse.PeerError, fd.execute, [part, y, z])
        assert "rank 1" in str(error)
        assert "each take a result, but they share memory" in str(error)
    assert y.tolist() == z.tolist() == [1, 1]
    fd.execute([part, y, z])
    assert y.tolist() == [2.0 * RANKS] * 2
    assert z.tolist() == [2, 2]
