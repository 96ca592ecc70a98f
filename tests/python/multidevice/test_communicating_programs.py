# SPDX-License-Identifier: BSD-3-Clause
"""Programs that add up, gather and send, on inputs that have been got wrong before.

With one process the bodies run on simulated meshes, under a launcher on its ranks.
"""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from programs import X, Y, assert_part, communications, dtype_of, lay, part_of, ramp, shard
from torch.nn.functional import linear

import meshfuse
from meshfuse import Communicator, DeviceMesh, FusionDefinition

SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))
LAUNCHED = Communicator.instance().is_available()


def need(world, devices):
    if world.size < devices:
        pytest.skip(f"needs {devices} devices")


def program(op, tensors, cuts, mesh, out=None, *, symbolic=False):
    """Return one op on tensors like these; ``out``: cuts of a declared result."""
    with FusionDefinition() as fd:
        tvs = [
            fd.define_tensor([-1 if symbolic else n for n in t.shape], dtype=dtype_of(t))
            for t in tensors
        ]
        result = getattr(fd.ops, op)(*tvs)
        fd.add_output(result)
        for tv, c in zip(tvs, cuts, strict=True):
            lay(tv, mesh, c)
        if out is not None:
            lay(result, mesh, out)
    return fd


def inner_sum(a, b, mesh, out=None, *, which="both", symbolic=False):
    """Return a @ b with the inner axis divided in both operands, or in one of them."""
    cuts = [[(a.dim() - 1, X)], [(max(b.dim() - 2, 0), X)]]
    if which != "both":
        cuts[which == "a"] = []
    return program("matmul", [a, b], cuts, mesh, out, symbolic=symbolic)


def one_sum(fd, world):
    return communications(fd) == (["all-reduce x"] if world.size > 1 else [])


# ---- shapes


def test_leading_ones(world):
    """Axes of size 1 stay when partial sums are combined."""
    d = world.size
    x, w = ramp(1, 1, 6 * d), ramp(2, 6 * d)
    fd = program("linear", [x, w], [[(2, X)], [(1, X)]], world.mesh)
    for _, (out,) in world.run(fd, [x, w]).items():
        assert_part(out, linear(x, w))
    assert one_sum(fd, world)


def test_product_of_two_vectors(world):
    d = world.size
    v, w = ramp(4), (torch.arange(4) % 7 - 1).float()
    v, w = (torch.cat([t, torch.zeros(4 * d - 4)]) for t in (v, w))
    fd = inner_sum(v, w, world.mesh)
    for _, (out,) in world.run(fd, [v, w]).items():
        assert out.shape == () and out.item() == 2.0
    assert one_sum(fd, world)


@pytest.mark.parametrize("shapes", [((2, 3, 8), (8,)), ((8,), (8, 6)), ((8,), (2, 8, 3))])
def test_vector_operand_with_the_inner_axis_divided(world, shapes):
    a, b = ramp(*shapes[0]), ramp(*shapes[1])
    fd = inner_sum(a, b, world.mesh)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert_part(out, a @ b)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_empty_inner_axis(world, symbolic):
    """Zeros on every device; the ranks stay in step."""
    a, b = torch.empty(4, 0), torch.empty(0, 6)
    fd = inner_sum(a, b, world.mesh, symbolic=symbolic)
    x, y = ramp(4, 8), ramp(8, 6)
    full = inner_sum(x, y, world.mesh)
    for _ in range(3):
        torch.full((4, 6), math.nan)
        for _, (out,) in world.run(fd, [a, b]).items():
            assert_part(out, torch.zeros(4, 6))
        for _, (out,) in world.run(full, [x, y]).items():
            assert_part(out, x @ y)


@pytest.mark.parametrize("shapes", [((0, 8), (8, 6)), ((4, 8), (8, 0))])
def test_empty_result_of_a_sum(world, shapes):
    a, b = torch.empty(shapes[0]), torch.empty(shapes[1])
    fd = inner_sum(a, b, world.mesh)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert_part(out, a @ b)


# ---- strides of inputs


def run_parts(world, fd, parts):
    """Run on inputs that are cut by hand and keep their strides."""
    if LAUNCHED:
        return {world.rank: fd.execute(parts[world.rank])}
    with meshfuse.simulate(world.size) as sim:
        return dict(enumerate(sim.execute(fd, parts)))


def test_transposed_view_with_the_inner_axis_divided(world):
    d = world.size
    t, b = torch.arange(10.0 * d).reshape(2 * d, 5).t(), ramp(2 * d, 4)
    fd = inner_sum(t, b, world.mesh)
    parts = [[t[:, 2 * r : 2 * r + 2], b[2 * r : 2 * r + 2]] for r in range(d)]
    for _, (out,) in run_parts(world, fd, parts).items():
        assert_part(out, t @ b)


def test_transposed_view_gathered(world):
    d = world.size
    t = torch.arange(5.0 * d).reshape(d, 5).t()
    fd = program("set", [t], [[(1, X)]], world.mesh, [])
    for _, (out,) in run_parts(world, fd, [[t[:, r : r + 1]] for r in range(d)]).items():
        assert_part(out, t)


@pytest.mark.parametrize("batch", [1, 2])
def test_slice_cut_and_gathered(world, batch):
    """A slice of a batch of 1 counts as contiguous, of a batch of 2 it does not."""
    x = ramp(batch, 16, 8)[:, 4:]
    with FusionDefinition() as fd:
        whole = fd.define_tensor([batch, 12, 8])
        cut = fd.ops.set(whole)
        back = fd.ops.set(cut)
        fd.add_output(back)
        fd.add_output(cut)
        for tv, cuts in ((whole, []), (cut, [(1, X)]), (back, [])):
            lay(tv, world.mesh, cuts)
    for r, (out, part) in run_parts(world, fd, [[x]] * world.size).items():
        assert_part(out, x)
        assert_part(part, part_of(x, world.mesh, [(1, X)], r))


# ---- which operand is divided how


def test_bias_is_added_once(world):
    d = world.size
    x = torch.tensor([[1.0, 2, 3, 4], [2, 3, 4, 5]])
    w, bias = ramp(3, 4), torch.tensor([100.0, 200, 300])
    fd = program("linear", [x, w, bias], [[(1, X)], [(1, X)], []], world.mesh)
    for _, (out,) in world.run(fd, [x, w, bias]).items():
        assert out.tolist() == [[90, 202, 300], [84, 205, 298]]
    assert one_sum(fd, world) and 4 % d == 0


@pytest.mark.parametrize("which", ["both", "a", "b"])
def test_sum_over_the_inner_axis(world, which):
    """With one operand whole, every device uses its rows or columns of it."""
    a, b = ramp(4, 12), ramp(12, 4)
    fd = inner_sum(a, b, world.mesh, which=which)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert_part(out, a @ b)
    assert one_sum(fd, world)


@pytest.mark.parametrize("out", [None, [], [(0, X)], [(1, X)]])
def test_both_operands_divided_on_their_first_axis(world, out):
    d = world.size
    a, b = ramp(2 * d, 2 * d), torch.eye(2 * d)
    fd = program("matmul", [a, b], [[(0, X)], [(0, X)]], world.mesh, out)
    results = world.run(fd, [a, b])
    cuts = [(0, X)] if out is None else out
    for r, (result,) in results.items():
        assert_part(result, part_of(a, world.mesh, cuts, r))


@pytest.mark.parametrize("out", [[], [(0, X)], [(1, X)]], ids=["whole", "rows", "columns"])
def test_rows_and_columns_on_one_mesh_axis(world, out):
    """No diagonal blocks with garbage beside them."""
    a, b = ramp(4, 4), ramp(4, 8)
    fd = program("matmul", [a, b], [[(0, X)], [(1, X)]], world.mesh, out)
    for r, (result,) in world.run(fd, [a, b]).items():
        assert_part(result, part_of(a @ b, world.mesh, out, r))


def test_unfinished_sums_are_not_an_operand(world):
    a, b, c = ramp(2, 4), ramp(3, 4).t().contiguous(), ramp(2, 3).t().contiguous()
    with FusionDefinition() as fd:
        ta, tb, tc = (fd.define_tensor(list(t.shape)) for t in (a, b, c))
        fd.add_output(fd.ops.matmul(fd.ops.matmul(ta, tb), tc))
        for tv, cuts in ((ta, [(1, X)]), (tb, [(0, X)]), (tc, [])):
            lay(tv, world.mesh, cuts)
    for _, (out,) in world.run(fd, [a, b, c]).items():
        assert out.tolist() == [[-30, 6], [-9, 9]]
    assert one_sum(fd, world)


# ---- meshes


def test_gather_in_order_of_the_mesh(world):
    d = world.size
    mesh = DeviceMesh(list(reversed(range(d))))
    a, b = ramp(4, 6), ramp(6, 4 * d)
    fd = program("matmul", [a, b], [[], [(1, X)]], mesh, [])
    for _, (out,) in world.run(fd, [a, b]).items():
        assert_part(out, a @ b)


@pytest.mark.parametrize("devices", [[0, 2], [2, 0], [1], [1, 0], [3, 1], [0, 1, 2]], ids=str)
def test_devices_outside_the_mesh_are_not_counted(world, devices):
    need(world, 1 + max(devices))
    a, b = ramp(4, 6), ramp(6, 4)
    mesh = DeviceMesh(devices)
    for which in ("both", "a"):
        fd = inner_sum(a, b, mesh, which=which)
        for r, (out,) in world.run(fd, [a, b]).items():
            assert_part(out, part_of(a @ b, mesh, [], r))


def test_rows_and_columns_on_a_square(world):
    need(world, 4)
    a, b = torch.ones(4, 4), torch.arange(16.0).reshape(4, 4)
    fd = program("matmul", [a, b], [[(0, Y)], [(1, X)]], SQUARE)
    for r, (out,) in world.run(fd, [a, b]).items():
        assert_part(out, part_of(a @ b, SQUARE, [(0, Y), (1, X)], r))
    assert communications(fd) == []


@pytest.mark.parametrize("orders", [(Y, X, Y, X), (X, Y, X, Y), (Y, X, X, Y), (X, Y, Y, X)])
def test_inner_axis_on_both_mesh_axes(world, orders):
    """Where the operands are split in another order, their parts are brought together."""
    need(world, 4)
    a = torch.arange(16.0).reshape(4, 4)
    cuts = [[(1, orders[0]), (1, orders[1])], [(0, orders[2]), (0, orders[3])]]
    fd = program("matmul", [a, a], cuts, SQUARE)
    for _, (out,) in world.run(fd, [a, a]).items():
        assert_part(out, a @ a)
        assert out[0].tolist() == [56, 62, 68, 74] and out[3].tolist() == [344, 398, 452, 506]


def test_sum_within_rows_of_the_mesh(world):
    need(world, 4)
    a = torch.arange(16.0).reshape(4, 4)
    fd = program("matmul", [a, a], [[(0, Y), (1, X)], [(0, X)]], SQUARE)
    for r, (out,) in world.run(fd, [a, a]).items():
        assert_part(out, part_of(a @ a, SQUARE, [(0, Y)], r))
    assert communications(fd) == ["all-reduce x"]


def test_mesh_of_one_sends_nothing(world):
    """The same programs, on the last device alone."""
    mesh = DeviceMesh([world.size - 1])
    a, b, bias = ramp(4, 6), ramp(4, 6), ramp(4)
    for fd, inputs, want in (
        (program("linear", [a, b, bias], [[(1, X)], [(1, X)], []], mesh), [a, b, bias],
         linear(a, b, bias)),
        (program("matmul", [a, b.t()], [[(0, X)], [(1, X)]], mesh, []), [a, b.t()], a @ b.t()),
        (program("set", [a], [[(0, X)]], mesh, []), [a], a),
        (program("set", [a], [[(0, X)]], mesh, [(1, X)]), [a], a),
    ):  # fmt: skip
        for r, (out,) in world.run(fd, inputs).items():
            assert_part(out, want if r == world.size - 1 else None)
        assert communications(fd) == []


# ---- types


def test_bfloat16_partial_sums_accumulate_wider(world):
    a, b = torch.ones(1, 4096, dtype=torch.bfloat16), torch.ones(4096, 1, dtype=torch.bfloat16)
    fd = inner_sum(a, b, world.mesh)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert out.dtype == torch.bfloat16 and out.item() == 4096


def test_half_partial_sums_that_overflow_alone(world):
    """Inf and -inf in the partial sums give nan, on every rank; never a finite wrong number."""
    need(world, 2)
    mesh = DeviceMesh([0, 1])
    a = torch.tensor([[200.0] * 4 + [-200.0] * 4], dtype=torch.float16)
    b = torch.full((8, 1), 100.0, dtype=torch.float16)
    fd = inner_sum(a, b, mesh)
    for r, (out,) in world.run(fd, [a, b]).items():
        assert out.numel() == 0 if r > 1 else out.isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("values", [(1.0, 0.0078125), (256.0, 1.0), (math.inf, 1.0), (-0.0, -0.0)])
def test_sum_of_16_bit_numbers(world, dtype, values):
    """Not as bytes, and not as integers."""
    need(world, 2)
    mesh = DeviceMesh([0, 1])
    t = torch.tensor(values, dtype=dtype).unsqueeze(1)
    fd = FusionDefinition()
    with fd:
        x = fd.define_tensor([2, 1], dtype=dtype_of(t))
        fd.add_output(fd.ops.sum(x, [0]))
        lay(x, mesh, [(0, X)])
    want = (t[0].float() + t[1].float()).to(dtype)
    for r, (out,) in world.run(fd, [t]).items():
        if r < 2:
            assert torch.equal(out, want)


def test_int64_is_exact(world):
    d = world.size
    a = torch.tensor([[2**53 + 1, 1] + [0] * (4 * d - 2)])
    b = torch.tensor([[1], [2]] + [[0]] * (4 * d - 2))
    order = torch.arange(4 * d).reshape(d, 4).t().reshape(-1)  # the two terms on two devices
    a, b = a[:, order], b[order]
    fd = inner_sum(a, b, world.mesh)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert out.tolist() == [[9007199254740995]]


def test_complex_is_not_conjugated(world):
    zeros = [0j] * (world.size - 2)
    a = torch.tensor([[1 + 2j, 3 - 1j, *zeros]], dtype=torch.complex64)
    b = torch.tensor([2 - 1j, 1j, *zeros], dtype=torch.complex64).unsqueeze(1)
    fd = inner_sum(a, b, world.mesh)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert out.tolist() == [[5 + 6j]]


# ---- the same fusion again


def test_sizes_change(world):
    """Earlier results keep their values."""
    d = world.size
    w = ramp(6, 4 * d)
    with FusionDefinition() as fd:
        x, tw = fd.define_tensor([-1, -1, 4 * d]), fd.define_tensor([6, 4 * d])
        fd.add_output(fd.ops.linear(x, tw))
        lay(x, world.mesh, [(2, X)])
        lay(tw, world.mesh, [(1, X)])
    earlier = []
    for shape in ((2, 3), (1, 5), (2, 3)):
        t = ramp(*shape, 4 * d) + len(earlier)
        for _, (out,) in world.run(fd, [t, w]).items():
            earlier.append((out, linear(t, w)))
        for out, want in earlier:
            assert_part(out, want)


def test_plans_of_other_shardings_are_not_taken(world):
    """Same shapes, mesh axes or order of devices exchanged."""
    need(world, 4)
    a, b = ramp(4, 4), ramp(4, 4) + 1
    for rows, inner in ((Y, X), (X, Y), (Y, X)):
        fd = program("matmul", [a, b], [[(0, rows), (1, inner)], [(0, inner)]], SQUARE)
        for r, (out,) in world.run(fd, [a, b]).items():
            assert_part(out, part_of(a @ b, SQUARE, [(0, rows)], r))
    for devices in ([0, 1], [1, 0], [0, 1]):
        mesh = DeviceMesh(devices)
        fd = inner_sum(a, b, mesh, [(0, X)])
        for r, (out,) in world.run(fd, [a, b]).items():
            assert_part(out, part_of(a @ b, mesh, [(0, X)], r))


# ---- values and repeatability


def test_nan_in_one_part(world):
    a, b = ramp(2, 4), ramp(4, 3)
    a[0, 3] = math.nan
    b[3] = 0
    fd = inner_sum(a, b, world.mesh)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert out[0].isnan().all() and out[1].tolist() == [6, -9, -3]


@pytest.mark.parametrize(
    "row", [(1e8, 1, -1e8, 1), (1, 1e8, 1, -1e8), (1e8, -1e8, 1, 1), (1, 1, 1e8, -1e8)], ids=str
)
def test_order_of_a_sum_is_fixed(world, row):
    """The same bits on all ranks, and every time."""
    a, b = torch.tensor([row]), torch.ones(4, 1)
    fd = inner_sum(a, b, world.mesh)
    seen = {out.item() for _ in range(50) for _, (out,) in world.run(fd, [a, b]).items()}
    assert len(seen) == 1 and seen <= {0.0, 1.0, 2.0}
    if LAUNCHED:  # a gather of what every rank has
        mine = torch.tensor([seen.pop()])
        gather = program("set", [torch.empty(world.size)], [[(0, X)]], world.mesh, [])
        (all_of_them,) = gather.execute([mine])
        assert len(set(all_of_them.tolist())) == 1


def test_same_input_same_bits(world):
    torch.manual_seed(5)
    a, b = torch.randn(16, 64), torch.randn(64, 8)
    results = []
    for _ in range(2):
        fd = inner_sum(a, b, world.mesh)
        results += [out for _ in range(2) for _, (out,) in world.run(fd, [a, b]).items()]
    for out in results[1:]:
        assert torch.equal(out, results[0])
    torch.testing.assert_close(results[0], a @ b, rtol=1e-5, atol=1e-5)


BITS = """
import hashlib, torch, meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType
torch.set_num_threads(1)
torch.manual_seed(5)
a, b = torch.randn(16, 64), torch.randn(64, 8)
with FusionDefinition() as fd:
    x, y = fd.define_tensor([16, 64]), fd.define_tensor([64, 8])
    fd.add_output(fd.ops.matmul(x, y))
    for tv, axis in ((x, 1), (y, 0)):
        tv.set_device_mesh(DeviceMesh(range(4)))
        tv.outer_split(axis, 4)
        tv.axis(axis).parallelize(ParallelType.mesh_x)
with meshfuse.simulate(4) as sim:
    (out,) = sim.run(fd, [a, b])
torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-5)
print(hashlib.sha256(out.numpy().tobytes()).hexdigest())
"""


@pytest.mark.skipif(LAUNCHED, reason="starts processes of its own")
def test_same_bits_in_two_processes():
    command = [sys.executable, "-c", BITS]
    texts = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        for _ in range(2)
    ]
    assert len(texts[0].strip()) == 64 and texts[0] == texts[1]


# ---- lifetime and aliasing


def test_one_tensor_as_output_twice(world):
    d = world.size
    t = ramp(2 * d, 3)
    with FusionDefinition() as fd:
        x = fd.define_tensor([2 * d, 3])
        out = fd.ops.set(x)
        fd.add_output(out)
        fd.add_output(out)
        lay(x, world.mesh, [(0, X)])
        lay(out, world.mesh)
    for _, (first, second) in world.run(fd, [t]).items():
        assert_part(first, t)
        assert_part(second, t)


def test_result_outlives_the_program(world):
    def make():
        a, b = ramp(4, 8), ramp(8, 4)
        return world.run(inner_sum(a, b, DeviceMesh(range(world.size))), [a, b])

    results = make()
    gc.collect()
    torch.full((25_000_000,), math.nan)
    for _, (out,) in results.items():
        assert_part(out, ramp(4, 8) @ ramp(8, 4))


@pytest.mark.parametrize("cut", ["inner", "columns"])
def test_inputs_that_require_grad(world, cut):
    """Values as without; the result carries no graph."""
    d = world.size
    x, w, bias = ramp(3, 4 * d), ramp(4 * d, 4 * d), ramp(4 * d)
    cuts = [[(1, X)], [(1, X)], []] if cut == "inner" else [[], [(0, X)], [(0, X)]]
    fd = program("linear", [x, w, bias], cuts, world.mesh, [])
    inputs = [t.clone().requires_grad_() for t in (x, w, bias)]
    for _, (out,) in world.run(fd, inputs).items():
        assert_part(out.detach(), linear(x, w, bias))
        assert not out.requires_grad


# ---- long messages

PIECES = """
import torch
import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType, Communicator
world, me = Communicator.instance().size(), Communicator.instance().rank()
mesh = DeviceMesh(range(world))
t = torch.arange(35.0 * world).reshape(5, 7 * world)
def part(axis):
    return mesh.shard_tensor(t, axis, me)
def run(op, axis, want, rest=(), cut_out=None):
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(t.shape))
        out = fd.ops.set(x) if op == "set" else fd.ops.sum(x, [1])
        fd.add_output(out)
        for tv, a in ((x, axis), (out, cut_out)):
            tv.set_device_mesh(mesh)
            if a is not None:
                tv.outer_split(a, world)
                tv.axis(a).parallelize(ParallelType.mesh_x)
    (got,) = fd.execute([part(axis)])
    assert torch.equal(got, want), (op, got, want)
run("set", 1, t)
run("sum", 1, t.sum(1))
"""


@pytest.mark.skipif(LAUNCHED, reason="starts a launcher of its own")
@pytest.mark.parametrize("size", ["64", "4", "1000"])
def test_messages_in_pieces(size, tmp_path):
    """Pieces of 64 bytes of a tensor [5, 7], which is not a multiple of them."""
    root = Path(__file__).resolve().parents[3]
    launcher = Path(sys.executable).parent / "mpirun"
    if not launcher.exists():
        pytest.skip("no MPI beside this Python")
    script = tmp_path / "pieces.py"
    script.write_text(PIECES)
    env = dict(os.environ, MESHFUSE_MESSAGE_PIECE_BYTES=size, MPIEXEC=str(launcher))
    done = subprocess.run(
        [root / "tools" / "mpirun", "-np", "2", sys.executable, script],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# ---- threads


@pytest.mark.skipif(LAUNCHED, reason="a simulated mesh for each thread")
@pytest.mark.parametrize("shared", [False, True], ids=["own_program", "same_program"])
def test_two_threads(shared):
    """Two threads, a simulated mesh each, 200 sums."""
    a, b = ramp(4, 8), ramp(8, 4)
    common = inner_sum(a, b, DeviceMesh([0, 1]))
    failures = []

    def work(k):
        try:
            x, y = (a, b) if shared else (ramp(4 + k, 8), ramp(8, 4))
            fd = common if shared else inner_sum(x, y, DeviceMesh([0, 1]))
            with meshfuse.simulate(2) as sim:
                for _ in range(200):
                    assert torch.equal(sim.run(fd, [x, y])[0], x @ y)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_cyclic_inner_axis(world):
    """Every d-th column of a and row of b: the same sum."""
    d = world.size
    a, b = ramp(4, 4 * d), ramp(4 * d, 3)
    with FusionDefinition() as fd:
        ta, tb = fd.define_tensor([4, 4 * d]), fd.define_tensor([4 * d, 3])
        fd.add_output(fd.ops.matmul(ta, tb))
        for tv, axis in ((ta, 1), (tb, 0)):
            tv.set_device_mesh(world.mesh)
            shard(tv, axis, d, inner=True)
    for _, (out,) in world.run(fd, [a, b]).items():
        assert_part(out, a @ b)
    assert one_sum(fd, world)
